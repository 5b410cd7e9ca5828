"""Templates, whose builds are waited for, pools and intents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_app import App

from cloche import AsyncClient, Client
from cloche._build_log import ANCHOR_CHARACTERS, MISSING, BuildLog
from cloche.errors import InvalidRequest, NotFound, TemplateBuildFailed
from cloche.models import TemplateLog


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloche._templates.LOOK_S", 0.001)


def test_a_build_is_waited_for_and_its_log_comes_piece_by_piece(client: Client, app: App) -> None:
    printed: list[str] = []
    made = client.templates.create(
        "data", image="python", setup="echo", contexts=[{"code": "import os"}], on_log=printed.append
    )
    assert (made.state, made.version) == ("ready", 1)
    assert "".join(printed) == "line 0\nline 1\nline 2\nline 3\n"
    assert len(printed) > 1
    assert app.bodies == [{"name": "data", "image": "python", "setup": "echo", "contexts": [{"code": "import os"}]}]


def test_the_same_inputs_are_the_same_version(client: Client) -> None:
    first = client.templates.create("data", setup="a")
    assert client.templates.create("data", setup="a") == first
    assert client.templates.create("data", setup="b").version == 2


def test_a_build_that_is_not_waited_for_goes_on(client: Client) -> None:
    assert client.templates.create("data", wait=False).state == "building"


def test_a_build_that_fails_says_where_and_shows_the_end_of_its_log(client: Client) -> None:
    with pytest.raises(TemplateBuildFailed, match=r"data@1 .*exited with 3") as caught:
        client.templates.create("data", setup="fail")
    assert caught.value.details == {
        "template": "data",
        "version": 1,
        "step": "setup",
        "log": "line 0\nline 1\nline 2\nline 3\n",
    }
    assert client.templates.get("data").state == "failed"


def test_templates_are_listed_read_and_deleted(client: Client) -> None:
    client.templates.create("data")
    assert [each.name for each in client.templates.list()] == ["data"]
    assert client.templates.log("data@1").text.startswith("line 0")
    assert client.templates.delete("data@1").version == 1
    with pytest.raises(NotFound):
        client.templates.get("data")


@pytest.mark.parametrize("reference", ["", "a/b", "a@", "a@0", "a@x", "a@1@2", "../pools"])
def test_what_is_no_template_is_not_asked_for(client: Client, reference: str) -> None:
    with pytest.raises(InvalidRequest):
        client.templates.get(reference)


def test_pools_are_made_changed_listed_and_deleted(client: Client, app: App) -> None:
    made = client.pools.put("p", template="data", min=2, max=5, max_age_s=60)
    assert (made.min, made.stats.ready) == (2, 2)
    assert app.bodies == [{"template": "data", "min": 2, "max": 5, "max_age_s": 60.0}]
    assert client.pools.get("p") == made
    assert client.pools.put("p", image="python").template is None
    assert [pool.name for pool in client.pools.list()] == ["p"]
    client.pools.delete("p")
    with pytest.raises(NotFound):
        client.pools.get("p")


def test_an_intent_says_which_pool_serves_it(client: Client) -> None:
    assert client.intents.create(template="data").pool is None
    client.pools.put("p", template="data")
    assert client.intents.create(template="data", count=3, within_s=30).pool == "p"


async def test_awaiting_does_the_same(async_client: AsyncClient) -> None:
    printed: list[str] = []

    async def on_log(text: str) -> None:
        printed.append(text)

    assert (await async_client.templates.create("data", on_log=on_log)).state == "ready"
    assert "".join(printed).endswith("line 3\n")
    assert (await async_client.pools.put("p", template="data")).name == "p"
    assert (await async_client.intents.create(template="data")).pool == "p"
    assert [each.name for each in await async_client.pools.list()] == ["p"]
    assert [each.version for each in await async_client.templates.list()] == [1]


@given(st.lists(st.text(max_size=20)), st.data())
def test_a_short_log_is_read_without_loss_however_often_one_looks(parts: list[str], data: st.DataObject) -> None:
    reader, text, read = BuildLog(), "", ""
    for part in parts:
        text += part
        if data.draw(st.booleans()):
            read += reader.news(TemplateLog(text=text, truncated=False))
    assert read + reader.news(TemplateLog(text=text, truncated=False)) == text


def test_a_log_whose_middle_is_left_out_goes_on_where_it_was() -> None:
    lines = [f"{number:05d}\n" for number in range(1000)]
    reader = BuildLog()
    reader.news(TemplateLog(text="".join(lines[:800]), truncated=False))
    shorter = "".join(lines[:100]) + "\n[... 1 characters left out ...]\n" + "".join(lines[500:900])
    assert reader.news(TemplateLog(text=shorter, truncated=True)) == "".join(lines[800:900])


def test_a_reader_who_looked_too_seldom_is_told_so() -> None:
    reader = BuildLog()
    reader.news(TemplateLog(text="a" * ANCHOR_CHARACTERS, truncated=False))
    news = reader.news(TemplateLog(text="b" * 10 + "[... left out ...]" + "c" * 30, truncated=True))
    assert news.startswith(MISSING)
    assert news.endswith("c" * 20)
