"""Templates without a server: what makes a version, references, the log of a build, rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.errors import InvalidRequest
from cloche.models import ContextCreate, ServiceCreate, TemplateContext, TemplateCreate
from cloche_server.state import Database, TemplateRow, TemplateStore
from cloche_server.templates._log import HEAD_CHARACTERS, TAIL_CHARACTERS, BuildLog
from cloche_server.templates._spec import newest_ready, next_version, parse_reference, spec_digest

SPEC = TemplateCreate(name="data")


def row(version: int, state: str = "ready", name: str = "data", owner: str = "ann") -> TemplateRow:
    return TemplateRow(owner, name, version, state, SPEC, "d" * 64, created_us=version)


def test_the_same_inputs_have_the_same_digest() -> None:
    spelt_out = TemplateCreate.model_validate({"name": "other-name", "setup": "", "env": {}, "sudo": True})
    assert spec_digest(SPEC, "sha256:a", "gvisor") == spec_digest(spelt_out, "sha256:a", "gvisor")


@pytest.mark.parametrize(
    "change",
    [{"setup": "true"}, {"env": {"A": "1"}}, {"sudo": False}, {"contexts": [{"code": "x = 1"}]}],
    ids=["setup", "env", "sudo", "contexts"],
)
def test_every_input_counts(change: dict[str, object]) -> None:
    changed = TemplateCreate.model_validate({"name": "data", **change})
    assert spec_digest(SPEC, "sha256:a", "gvisor") != spec_digest(changed, "sha256:a", "gvisor")


def test_the_content_of_the_image_and_the_driver_count() -> None:
    first = spec_digest(SPEC, "sha256:a", "gvisor")
    assert first != spec_digest(SPEC, "sha256:b", "gvisor")
    assert first != spec_digest(SPEC, "sha256:a", "runc")


def test_a_reference_is_a_name_with_or_without_a_version() -> None:
    assert parse_reference("data") == ("data", None)
    assert parse_reference("data@12") == ("data", 12)


def test_a_bare_name_means_the_newest_that_is_ready() -> None:
    assert newest_ready([row(1), row(2), row(3, "failed"), row(4, "building")]) == 2
    assert newest_ready([row(1, "failed")]) is None


def test_numbers_of_deleted_versions_are_not_used_again() -> None:
    assert next_version([]) == 1
    assert next_version([row(1), row(2, "deleted")]) == 3


def test_a_short_log_is_kept_as_it_is() -> None:
    log = BuildLog()
    log.line("$ setup")
    log.add("one\ntw")
    log.add("o")
    log.line("done")
    assert log.text == "$ setup\none\ntwo\ndone\n"
    assert not log.truncated


def test_a_long_log_keeps_its_head_and_its_tail() -> None:
    log = BuildLog()
    log.add("H" * HEAD_CHARACTERS)
    log.add("m" * 10_000)
    log.add("T" * TAIL_CHARACTERS)
    assert log.truncated
    assert log.text == "H" * HEAD_CHARACTERS + "\n[... 10000 characters left out ...]\n" + "T" * TAIL_CHARACTERS


@given(st.lists(st.text(alphabet="ab", max_size=40_000), max_size=12))
def test_a_log_never_grows_over_its_bounds_and_never_reorders(parts: list[str]) -> None:
    log = BuildLog()
    for part in parts:
        log.add(part)
    whole = "".join(parts)
    if len(whole) <= HEAD_CHARACTERS + TAIL_CHARACTERS:
        assert log.text == whole
    else:
        assert log.text.startswith(whole[:HEAD_CHARACTERS])
        assert log.text.endswith(whole[-TAIL_CHARACTERS:])
    assert len(log.text) <= HEAD_CHARACTERS + TAIL_CHARACTERS + 60


def test_a_log_has_no_control_characters_of_the_sandbox() -> None:
    log = BuildLog()
    log.add("\x1b]0;pwned\x07ok\ttab\n")
    assert log.text == "\ufffd]0;pwned\ufffdok\ttab\n"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TemplateStore]:
    database = Database.open(tmp_path / "cloche.db")
    yield TemplateStore(database)
    database.close()


def test_a_version_comes_back_as_it_was_written(store: TemplateStore) -> None:
    store.insert(row(1, "building"))
    changed = store.update(row(1, "building"), state="failed", failure="no")
    store.write_log(changed, "printed", True)
    assert store.get("ann", "data", 1) == changed
    assert store.log(changed) == ("printed", True)
    assert store.get("bob", "data", 1) is None


def test_lists_are_by_name_and_newest_version_first_without_deleted_ones(store: TemplateStore) -> None:
    for one in (row(1), row(2), row(3, "deleted"), row(1, name="a"), row(1, owner="bob")):
        store.insert(one)
    first, page = store.list("ann", 2, None)
    second, end = store.list("ann", 2, page)
    assert [one.reference for one in first + second] == ["a@1", "data@2", "data@1"]
    assert end is None
    assert len(store.list(None, 10, None)[0]) == 4


def test_a_page_token_of_another_list_is_refused(store: TemplateStore) -> None:
    with pytest.raises(InvalidRequest):
        store.list("ann", 2, "x1")


def test_no_value_of_an_environment_is_read_back() -> None:
    spec = TemplateCreate(
        name="data",
        env={"A": "secret"},
        contexts=[TemplateContext(context=ContextCreate(env={"B": "secret"}))],
        services=[ServiceCreate(name="web", argv=["web"], env={"C": "secret"})],
    )
    shown = TemplateRow("ann", "data", 1, "ready", spec, "d" * 64, 1).to_model()
    assert "secret" not in shown.model_dump_json()
    assert shown.spec.env == {"A": ""}


@given(st.lists(st.text("ab\n", max_size=40_000), max_size=12), st.data())
def test_whoever_follows_a_log_gets_every_character_or_is_told_how_many_are_lost(
    parts: list[str], data: st.DataObject
) -> None:
    log, place, got = BuildLog(), 0, 0
    whole = ""
    for part in parts:
        log.add(part)
        whole += part
        if data.draw(st.booleans()):
            for piece in log.since(place):
                place += piece.lost
                assert piece.text == whole[place : place + len(piece.text)]
                place, got = place + len(piece.text), got + len(piece.text)
            assert place == log.size == len(whole)
    stored = BuildLog.stored(log.text, log.truncated)
    assert (stored.size, stored.text, stored.closed) == (log.size, log.text, True)
    somewhere = data.draw(st.integers(0, log.size))
    assert stored.since(somewhere) == log.since(somewhere)
    assert sum(piece.lost + len(piece.text) for piece in log.since(somewhere)) == log.size - somewhere


def test_a_listener_hears_of_news_and_of_the_end() -> None:
    log, heard = BuildLog(), []
    log.listeners.add(lambda: heard.append(log.size))
    log.add("one")
    log.close()
    assert heard == [3, 3]
