"""The vectors that Python and TypeScript share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloche import _terminal_stream as stream_module
from cloche._terminal_stream import ProtocolBroken, StreamEvent, TerminalStream
from cloche.terminal_frames import Frame, FrameError, FrameType, decode_frame, encode_frame

VECTORS = Path(__file__).parents[2] / "vectors" / "terminal"
FRAMES = json.loads((VECTORS / "frames.json").read_text())
SCRIPTS = json.loads((VECTORS / "stream.json").read_text())["scripts"]


@pytest.mark.parametrize("vector", FRAMES["good"], ids=lambda vector: vector["name"])
def test_frames(vector: dict[str, Any]) -> None:
    frame = Frame(FrameType[vector["type"]], vector["offset"], bytes.fromhex(vector["payload"]))
    assert encode_frame(frame.type, frame.offset, frame.payload).hex() == vector["frame"]
    assert decode_frame(bytes.fromhex(vector["frame"])) == frame


@pytest.mark.parametrize("vector", FRAMES["bad"], ids=lambda vector: vector["name"])
def test_bytes_that_are_no_frame(vector: dict[str, Any]) -> None:
    with pytest.raises(FrameError):
        decode_frame(bytes.fromhex(vector["frame"]))


NAMES = {
    "Output": "output",
    "Preamble": "preamble",
    "Reset": "reset",
    "Resumed": "resumed",
    "Resized": "resized",
    "Gap": "gap",
    "RoleChanged": "role",
    "Discarded": "discarded",
    "Ended": "ended",
    "Refused": "refused",
    "Active": "active",
}


def as_json(event: StreamEvent) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(event, name) for name in type(event).__dataclass_fields__}
    if isinstance(event, stream_module.Ended):
        fields = event.exit.model_dump()
    fields = {name: value.hex() if isinstance(value, bytes) else value for name, value in fields.items()}
    return {"event": NAMES[type(event).__name__], **fields}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script["name"])
def test_scripts(script: dict[str, Any]) -> None:
    stream = TerminalStream("client-0001")
    for number, step in enumerate(script["steps"]):
        carry_out(stream, step, f"step {number}: {step}")


def carry_out(stream: TerminalStream, step: dict[str, Any], where: str) -> None:
    now = step.get("at", 0.0)
    match step:
        case {"hello": wanted}:
            assert json.loads(stream.hello()) == wanted, where
        case {"lost": at}:
            stream.lost(at)
        case {"type": data}:
            stream.type(bytes.fromhex(data))
        case {"type_repeated": [data, count]}:
            stream.type(bytes.fromhex(data) * count)
        case {"took": offset}:
            stream.took(offset)
        case {"send": wanted} | {"send_quiet": wanted}:
            sent = stream.to_send(quiet="send_quiet" in step)
            assert [json.loads(m) if isinstance(m, str) else m.hex() for m in sent] == wanted, where
        case {"send_lengths": wanted}:
            assert [len(message) for message in stream.to_send()] == wanted, where
        case {"unacknowledged": wanted}:
            assert stream.unacknowledged_input == wanted, where
        case _:
            message = message_of(step)
            if step.get("broken"):
                with pytest.raises(ProtocolBroken):
                    stream.receive(message, now)
            else:
                assert [as_json(event) for event in stream.receive(message, now)] == step["events"], where


def message_of(step: dict[str, Any]) -> str | bytes:
    if "receive_frame" in step:
        return bytes.fromhex(step["receive_frame"])
    return str(step["receive_text"]) if "receive_text" in step else json.dumps(step["receive"])
