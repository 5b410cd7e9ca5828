"""What a message of the kernel means for the run it belongs to. Pure: a message in, facts out.

Sizes are bounded here: a kernel may send anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import JsonValue

from cloche.models import RunError
from cloche_guest.contexts._wire import Message

MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
"""Largest display or result; half of the budget for kept records, so that it never pushes out everything else."""

TRUNCATED_MIME: Final = "application/vnd.cloche.truncated+json"
_ERROR_CHARS: Final = 64 * 1024
_TRACEBACK_LINES: Final = 200
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")

JsonObject = dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Text:
    """Stream output."""

    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A display, result or update, or an order to clear: an event as clients see it."""

    kind: str
    data: JsonObject

    @property
    def display_id(self) -> str | None:
        display_id = self.data.get("display_id")
        return display_id if isinstance(display_id, str) else None

    def object(self, field: str) -> JsonObject:
        """``data`` or ``metadata``."""
        value = self.data.get(field)
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class Started:
    """The code begins to run."""

    execution_count: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The code raised."""

    error: RunError


@dataclass(frozen=True, slots=True)
class Asked:
    """The code waits in input() or getpass()."""

    prompt: str
    password: bool


@dataclass(frozen=True, slots=True)
class Idle:
    """The kernel has done everything the request asked for."""


@dataclass(frozen=True, slots=True)
class Replied:
    """The answer to the request. `error` for failures that were only told here."""

    status: str
    execution_count: int | None
    error: RunError | None


Fact = Text | Shown | Started | Failed | Asked | Idle | Replied


def read_message(message: Message) -> list[Fact]:
    """The facts, in order; empty for what no client is told (busy, comm messages, ...)."""
    reader = _READERS.get(message.kind)
    return reader(message.content) if reader is not None else []


def encode(data: JsonObject) -> bytes:
    """The bytes of an event in a journal: JSON without line breaks, so that SSE can send them as they are."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def encode_shown(data: JsonObject) -> bytes:
    """As `encode`; too large content is replaced by a note that says what was there."""
    encoded = encode(data)
    if len(encoded) <= MAX_RECORD_BYTES:
        return encoded
    return encode({**data, "data": _note(data.get("data"), len(encoded)), "metadata": {}})


def _note(bundle: JsonValue, size: int) -> JsonObject:
    types: JsonObject = {}
    if isinstance(bundle, dict):
        types = {mime[:128]: len(encode({"": content})) for mime, content in list(bundle.items())[:50]}
    note: JsonObject = {"bytes": size, "limit_bytes": MAX_RECORD_BYTES, "types": types}
    return {TRUNCATED_MIME: note, "text/plain": f"<output of {size} bytes dropped: the limit is {MAX_RECORD_BYTES}>"}


def read_error(content: dict[str, Any]) -> RunError:
    """An error as the kernel describes it, without colours and bounded."""
    lines = content.get("traceback")
    texts = [str(line) for line in lines] if isinstance(lines, list) else []
    if len(texts) > _TRACEBACK_LINES:
        half = _TRACEBACK_LINES // 2
        texts = [*texts[:half], f"... {len(texts) - 2 * half} entries left out ...", *texts[-half:]]
    return RunError(
        name=str(content.get("ename", "Error"))[:1024],
        value=_cut(_ANSI.sub("", str(content.get("evalue", "")))),
        traceback=[_cut(_ANSI.sub("", text)) for text in texts],
    )


def _cut(text: str) -> str:
    if len(text) <= _ERROR_CHARS:
        return text
    return f"{text[:_ERROR_CHARS]}... ({len(text) - _ERROR_CHARS} characters left out)"


def _stream(content: dict[str, Any]) -> list[Fact]:
    return [Text("stderr" if content.get("name") == "stderr" else "stdout", str(content.get("text", "")))]


def _status(content: dict[str, Any]) -> list[Fact]:
    return [Idle()] if content.get("execution_state") == "idle" else []


def _input(content: dict[str, Any]) -> list[Fact]:
    return [Started(_count(content) or 0)]


def _shown(kind: str, content: dict[str, Any]) -> Shown:
    transient = content.get("transient")
    display_id = transient.get("display_id") if isinstance(transient, dict) else None
    return Shown(
        kind,
        {
            "data": content["data"] if isinstance(content.get("data"), dict) else {},
            "metadata": content["metadata"] if isinstance(content.get("metadata"), dict) else {},
            "display_id": display_id if isinstance(display_id, str) else None,
            "execution_count": _count(content) if kind == "result" else None,
        },
    )


def _clear(content: dict[str, Any]) -> list[Fact]:
    return [Shown("clear_output", {"wait": bool(content.get("wait"))})]


def _reply(content: dict[str, Any]) -> list[Fact]:
    status = str(content.get("status", "error"))
    payloads = content.get("payload")
    pages = [_page(payload) for payload in payloads if isinstance(payload, dict)] if isinstance(payloads, list) else []
    error = read_error(content) if status == "error" else None
    return [*[page for page in pages if page is not None], Replied(status, _count(content), error)]


def _page(payload: dict[str, Any]) -> Shown | None:
    """``len?`` answers by a payload in the reply: a notebook shows it in a pager, here it is a display."""
    if payload.get("source") != "page" or not isinstance(payload.get("data"), dict):
        return None
    return _shown("display", {"data": {mime: _plain(text) for mime, text in payload["data"].items()}})


def _plain(content: JsonValue) -> JsonValue:
    return _ANSI.sub("", content) if isinstance(content, str) else content


def _count(content: dict[str, Any]) -> int | None:
    count = content.get("execution_count")
    return count if isinstance(count, int) else None


_READERS: Final[dict[str, Callable[[dict[str, Any]], list[Fact]]]] = {
    "stream": _stream,
    "status": _status,
    "execute_input": _input,
    "execute_result": lambda content: [_shown("result", content)],
    "display_data": lambda content: [_shown("display", content)],
    "update_display_data": lambda content: [_shown("update_display", content)],
    "clear_output": _clear,
    "error": lambda content: [Failed(read_error(content))],
    "execute_reply": _reply,
    "input_request": lambda content: [Asked(str(content.get("prompt", ""))[:65536], bool(content.get("password")))],
}
