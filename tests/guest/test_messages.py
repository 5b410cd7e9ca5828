"""The wire format and what messages mean: pure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jupyter_client.session import Session

from cloche_guest.contexts._router import (
    MAX_RECORD_BYTES,
    TRUNCATED_MIME,
    Asked,
    Failed,
    Idle,
    Replied,
    Shown,
    Started,
    Text,
    encode_shown,
    read_error,
    read_message,
)
from cloche_guest.contexts._wire import DELIMITER, BadMessage, Message, Signer

SIGNER = Signer(b"key", "session")


def message(kind: str, content: dict[str, Any]) -> Message:
    return Message(kind, "1", "0", content, {})


def test_jupyter_client_understands_what_we_pack() -> None:
    frames = SIGNER.pack("execute_request", "id-1", {"code": "é"}, {"cloche": {}})
    session = Session(key=b"key")
    _, parts = session.feed_identities(frames)
    read = session.deserialize(parts)
    assert (read["msg_type"], read["msg_id"]) == ("execute_request", "id-1")
    assert (read["content"], read["metadata"]) == ({"code": "é"}, {"cloche": {}})


def test_we_understand_what_jupyter_client_packs() -> None:
    session = Session(key=b"key")
    parent = session.msg("execute_request")
    sent = session.msg("stream", {"name": "stdout", "text": "hi"}, parent=parent)
    read = SIGNER.unpack([b"topic", *session.serialize(sent)])
    assert (read.kind, read.parent_id, read.content["text"]) == ("stream", parent["header"]["msg_id"], "hi")


def test_a_wrong_signature_is_refused() -> None:
    frames = SIGNER.pack("x", "1", {}, {})
    with pytest.raises(BadMessage, match="signature"):
        Signer(b"other", "s").unpack(frames)


def test_not_a_number_becomes_a_string_since_json_has_none() -> None:
    frames = SIGNER.pack("x", "1", {"value": float("nan"), "other": float("-inf")}, {})
    assert SIGNER.unpack(frames).content == {"value": "NaN", "other": "-Infinity"}


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_frames_are_a_message_or_a_bad_one(frames: list[bytes]) -> None:
    for candidate in (frames, [DELIMITER, *frames]):
        with pytest.raises(BadMessage):
            SIGNER.unpack(candidate)


@pytest.mark.parametrize(
    ("kind", "content", "facts"),
    [
        ("stream", {"name": "stderr", "text": "x"}, [Text("stderr", "x")]),
        ("status", {"execution_state": "idle"}, [Idle()]),
        ("status", {"execution_state": "busy"}, []),
        ("execute_input", {"execution_count": 3, "code": ""}, [Started(3)]),
        ("input_request", {"prompt": "? ", "password": True}, [Asked("? ", True)]),
        ("execute_reply", {"status": "ok", "execution_count": 2, "payload": []}, [Replied("ok", 2, None)]),
        ("execute_reply", {"status": "aborted"}, [Replied("aborted", None, None)]),
        ("clear_output", {"wait": True}, [Shown("clear_output", {"wait": True})]),
        ("comm_open", {"comm_id": "x"}, []),
        ("unknown", {}, []),
    ],
)
def test_what_messages_mean(kind: str, content: dict[str, Any], facts: list[object]) -> None:
    assert read_message(message(kind, content)) == facts


def test_displays_carry_their_display_id() -> None:
    content = {"data": {"text/plain": "x"}, "metadata": {}, "transient": {"display_id": "d"}}
    [shown] = read_message(message("update_display_data", content))
    assert isinstance(shown, Shown)
    assert (shown.kind, shown.display_id) == ("update_display", "d")


def test_an_error_in_the_reply_is_kept() -> None:
    """Some kernels tell a syntax error only there."""
    [reply] = read_message(message("execute_reply", {"status": "error", "ename": "E", "evalue": "v", "traceback": []}))
    assert isinstance(reply, Replied)
    assert reply.error is not None
    assert (reply.error.name, reply.error.value) == ("E", "v")


def test_errors_are_bounded_and_have_no_colours() -> None:
    error = read_error({"ename": "E", "evalue": "\x1b[31mred\x1b[0m" + "x" * 100_000, "traceback": ["line"] * 1000})
    assert error.value.startswith("redx")
    assert len(error.value) < 70_000
    assert len(error.traceback) == 201
    assert "800 entries left out" in error.traceback[100]


def test_a_display_that_is_too_large_becomes_a_note() -> None:
    data = {"data": {"text/html": "x" * MAX_RECORD_BYTES, "text/plain": "y"}, "metadata": {"a": 1}, "display_id": "d"}
    note = json.loads(encode_shown(data))  # type: ignore[arg-type]
    assert note["display_id"] == "d"
    assert note["data"][TRUNCATED_MIME]["types"]["text/html"] > MAX_RECORD_BYTES
    small = {"data": {"text/plain": "y"}}
    assert json.loads(encode_shown(small)) == small  # type: ignore[arg-type]


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)
KINDS = (
    "stream status execute_input execute_result display_data update_display_data clear_output error execute_reply "
    "input_request"
)
NAMES = [
    "name",
    "text",
    "data",
    "metadata",
    "transient",
    "execution_count",
    "ename",
    "evalue",
    "traceback",
    "payload",
    "prompt",
    "status",
]


@settings(max_examples=300)
@given(st.sampled_from(KINDS.split()), st.dictionaries(st.sampled_from(NAMES), json_values))
def test_no_content_a_kernel_can_send_breaks_the_reader(kind: str, content: dict[str, Any]) -> None:
    for fact in read_message(message(kind, content)):
        if isinstance(fact, Shown):
            json.loads(encode_shown(fact.data))
        assert isinstance(fact, Text | Shown | Started | Failed | Asked | Idle | Replied)
