"""Watchers: callbacks of one run, and what each event means to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from cloche.models import Event

OnEvent: TypeAlias = Callable[[Event], object]
OnText: TypeAlias = Callable[[str], object]
OnInput: TypeAlias = Callable[[str, bool], str | Awaitable[str]]
"""Called with the prompt and whether it asks for a password; answers one line, without its newline."""


@dataclass(frozen=True, slots=True)
class Watchers:
    """Who wants to hear of a run while it goes on."""

    on_event: OnEvent | None = None
    on_stdout: OnText | None = None
    on_stderr: OnText | None = None
    input: OnInput | None = None

    @property
    def any(self) -> bool:
        """Whether events are needed at all: without a watcher one waiting call does it."""
        return any((self.on_event, self.on_stdout, self.on_stderr, self.input))

    def text_callback(self, event: Event) -> OnText | None:
        """Who gets the text of ``event``."""
        return {"stdout": self.on_stdout, "stderr": self.on_stderr}.get(event.type)


def text_of(event: Event) -> str:
    """The text of a stdout or stderr event."""
    text = event.data.get("text", "")
    return text if isinstance(text, str) else ""


def prompt_of(event: Event) -> tuple[str, bool]:
    """``(prompt, password)`` of an input_request."""
    prompt = event.data.get("prompt", "")
    return (prompt if isinstance(prompt, str) else "", event.data.get("password") is True)
