"""The reader of an event stream: pure rules, then real bytes cut at random places."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_app import frame_of

from cloche._config import Config
from cloche._link import AsyncLink, Link
from cloche._patience import Patience
from cloche._tail import Frame, OneStream, Tail
from cloche.errors import (
    ConnectionFailed,
    ErrorBody,
    ForeignCursor,
    GuestFault,
    NotFound,
    SandboxNotRunning,
    SandboxUnreachable,
)
from cloche.journal import Gap, Journal
from cloche.models import Event

QUICK = Patience(window_s=30.0, first_delay_s=1e-6)


def tail(cursor: str | None = None, patience: Patience = QUICK) -> Tail:
    return Tail("/events", cursor=cursor, last_type="finished", patience=patience)


def test_it_asks_for_what_follows_the_last_event() -> None:
    reader = tail()
    assert reader.query == ()
    reader.take(Frame("stdout", '{"text": "a"}', "e.1"))
    assert reader.query == (("cursor", "e.1"),)


def test_it_is_done_after_the_last_event() -> None:
    reader = tail()
    assert reader.take(Frame("finished", "{}", "e.9")) == Event(type="finished", cursor="e.9", data={})
    assert reader.done


def test_the_stream_that_answers_a_post_is_never_opened_again() -> None:
    """It would do what it tells of a second time."""
    for error, raised in ((SandboxUnreachable("x"), SandboxUnreachable), (None, ConnectionFailed)):
        with pytest.raises(raised):
            OneStream("/clone", b"{}", last_type="finished").lost(error)
    assert tail().lost(SandboxUnreachable("x")) >= 0


def test_a_stream_that_was_open_waits_for_a_sandbox_that_rests() -> None:
    asleep = SandboxNotRunning("it rests", details={"state": "suspended"})
    with pytest.raises(SandboxNotRunning):
        tail().lost(asleep)
    reader = tail()
    reader.opened = True
    assert reader.lost(asleep) >= 0
    with pytest.raises(SandboxNotRunning):
        reader.lost(SandboxNotRunning("it is over", details={"state": "stopped"}))
    with pytest.raises(SandboxNotRunning):
        list(map(reader.lost, [asleep] * 100))


def test_a_heartbeat_is_no_event() -> None:
    reader = tail("e.1")
    assert reader.take(Frame("message", "", "e.1")) is None
    assert reader.cursor == "e.1"


def test_a_failure_frame_raises_its_error_and_moves_nothing() -> None:
    reader = tail("e.1")
    body = ErrorBody(code="foreign_cursor", message="another epoch")
    with pytest.raises(ForeignCursor):
        reader.take(Frame("failure", body.model_dump_json(), "e.2"))
    assert reader.cursor == "e.1"


@pytest.mark.parametrize("error", [ForeignCursor("x"), NotFound("x"), GuestFault("x")])
def test_an_error_that_no_new_connection_cures_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        tail().lost(error)  # type: ignore[arg-type]


def test_a_curable_error_costs_a_pause_and_an_event_restores_patience() -> None:
    reader = Tail("/events", cursor=None, last_type="finished", patience=Patience(0.15))
    assert reader.lost(SandboxUnreachable("x")) == 0.05
    assert reader.lost(None) == pytest.approx(0.1)
    reader.take(Frame("stdout", "{}", "e.1"))
    assert reader.lost(None) == 0.05


def test_patience_ends_with_the_reason() -> None:
    reader = Tail("/events", cursor=None, last_type="finished", patience=Patience(0))
    with pytest.raises(ConnectionFailed, match="ended early"):
        reader.lost(None)


@pytest.mark.parametrize("data", ["[1]", "nothing", '"text"'])
def test_data_that_is_no_object_is_the_guests_fault(data: str) -> None:
    with pytest.raises(GuestFault):
        tail().take(Frame("stdout", data, "e.1"))


# Texts with every kind of line end and separator: Python's splitlines() cuts at U+2028 and U+0085, SSE does not.
TEXTS = st.text(alphabet=st.sampled_from("ab\n\r\u2028\u0085é😀:\t "), max_size=20)


class CutStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of one answer: so many bytes, in pieces, then an end or a lost connection."""

    def __init__(self, content: bytes, piece: int, *, breaks: bool) -> None:
        self._pieces = [content[i : i + piece] for i in range(0, len(content), piece)]
        self._breaks = breaks

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        if self._breaks:
            raise httpx.ReadError("connection reset")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


class CutServer:
    """Answers with the journal from the cursor asked for, and cuts each answer as told."""

    def __init__(self, journal: Journal, cuts: list[tuple[str, int, int]]) -> None:
        self._journal = journal
        self._cuts = list(cuts)
        self.connections = 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.connections += 1
        cursor = self._journal.parse(request.url.params.get("cursor"))
        content = b"".join(map(frame_of, self._all_from(cursor)))
        kind, at, piece = self._cuts.pop(0) if self._cuts else ("whole", 0, 100)
        if kind == "refuse":
            raise httpx.ConnectError("connection refused")
        if kind == "unreachable":
            return httpx.Response(503, json=SandboxUnreachable("no guest").to_body().model_dump())
        if kind == "failure":
            body = SandboxUnreachable("the guest went away").to_body().model_dump_json()
            head = content[: content.rfind(b"\n\n", 0, at % (len(content) + 1)) + 2]
            content = head + f": heartbeat\n\nevent: failure\ndata: {body}\n\n".encode()
        elif kind != "whole":
            content = content[: at % (len(content) + 1)]
        stream = CutStream(content, piece, breaks=kind == "break")
        return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, stream=stream)

    def _all_from(self, cursor: object) -> Iterator[object]:
        while items := self._journal.read(cursor):  # type: ignore[arg-type]
            yield from items
            cursor = items[-1].cursor


CUT = st.tuples(
    st.sampled_from(["break", "end", "refuse", "unreachable", "failure"]),
    st.integers(min_value=0, max_value=4000),
    st.integers(min_value=1, max_value=64),
)


def journal_of(texts: list[str], max_records: int) -> Journal:
    import json

    journal = Journal("e", max_bytes=100_000, max_records=max_records)
    for text in texts:
        journal.append("stdout", json.dumps({"text": text}, ensure_ascii=False).encode())
    journal.append("finished", b"{}")
    return journal


def expected(journal: Journal) -> list[tuple[str, str]]:
    return [
        ("gap" if isinstance(item, Gap) else item.kind, str(item.cursor))
        for item in CutServer(journal, [])._all_from(journal.parse(None))
    ]


CONFIG = Config("http://127.0.0.1:1", "k", is_loopback=True)


@settings(max_examples=150)
@given(st.lists(TEXTS, max_size=12), st.lists(CUT, max_size=8), st.integers(min_value=3, max_value=20))
def test_no_cut_repeats_or_loses_an_event(texts: list[str], cuts: list[tuple[str, int, int]], max_records: int) -> None:
    journal = journal_of(texts, max_records)
    link = Link(CONFIG, QUICK, httpx.MockTransport(CutServer(journal, cuts).answer))
    link._reached = True  # an outage, not a wrong address
    events = list(link.follow(tail()))
    assert [(event.type, event.cursor) for event in events] == expected(journal)
    kept = [event.data["text"] for event in events if event.type == "stdout"]
    assert kept == texts[len(texts) - len(kept) :]
    link.close()


@settings(max_examples=50)
@given(st.lists(TEXTS, max_size=12), st.lists(CUT, max_size=8))
def test_no_cut_repeats_or_loses_an_event_async(texts: list[str], cuts: list[tuple[str, int, int]]) -> None:
    journal = journal_of(texts, 100)

    async def answer(request: httpx.Request) -> httpx.Response:
        return server.answer(request)

    async def collect() -> list[tuple[str, str]]:
        link = AsyncLink(CONFIG, QUICK, httpx.MockTransport(answer))
        link._reached = True
        found = [(event.type, event.cursor) async for event in link.follow(tail())]
        await link.close()
        return found

    server = CutServer(journal, cuts)
    assert asyncio.run(collect()) == expected(journal)


def test_an_answer_that_is_no_event_stream_is_said() -> None:
    def html(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, html="<html>")

    link = Link(CONFIG, Patience(0), httpx.MockTransport(html))
    with pytest.raises(ConnectionFailed, match="text/event-stream"):
        list(link.follow(tail(patience=Patience(window_s=0.1, first_delay_s=1e-6))))
