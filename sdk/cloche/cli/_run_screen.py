"""Run screen: the events of a run as lines on standard output and standard error, while they come."""

from __future__ import annotations

from typing import TextIO

from pydantic import JsonValue

from cloche._images import EXTENSIONS
from cloche._watchers import prompt_of, text_of
from cloche.cli._terminal_text import TerminalFilter
from cloche.models import Event


class RunScreen:
    """Where the output of one run goes. Bytes for a file or pipe pass as they are; a terminal is protected."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._streams = {"stdout": _Stream(out), "stderr": _Stream(err)}

    def show(self, event: Event) -> None:
        """Print what ``event`` has for the eye."""
        match event.type:
            case "stdout" | "stderr":
                self._streams[event.type].write(text_of(event))
            case "result" | "display":
                self._show_bundle(event.data.get("data"))
            case "error":
                self._note(_traceback_of(event))
            case "gap":
                self._note(f"[{event.data.get('bytes')} bytes of output were dropped here]")
            case "input_request":
                self._streams["stdout"].write(prompt_of(event)[0])

    def _show_bundle(self, bundle: JsonValue) -> None:
        """A picture is a file in the end (``--out``); its text would say only that it is one."""
        if not isinstance(bundle, dict) or any(mime in bundle for mime in EXTENSIONS):
            return
        text = bundle.get("text/plain")
        if isinstance(text, str):
            self._streams["stdout"].write(text if text.endswith("\n") else f"{text}\n")

    def _note(self, text: str) -> None:
        self._streams["stderr"].write(f"{text}\n")


class _Stream:
    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._filter = TerminalFilter() if file.isatty() else None

    def write(self, text: str) -> None:
        self._file.write(_encodable(self._filter.feed(text) if self._filter else text, self._file))
        self._file.flush()


def _encodable(text: str, file: TextIO) -> str:
    """Characters the file's encoding lacks (half surrogates in UTF-8, say) are replaced instead of raising."""
    encoding = file.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _traceback_of(event: Event) -> str:
    lines = event.data.get("traceback")
    if isinstance(lines, list) and lines:
        return "\n".join(str(line) for line in lines)
    return f"{event.data.get('name')}: {event.data.get('value')}"
