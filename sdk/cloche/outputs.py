"""From events to outputs: the display list of a run as a notebook would show it. Pure; guest, SDK and UI agree on it.

Rules, as Jupyter front ends have them:

* text of the same stream that follows on each other is one output;
* ``clear_output`` empties the list, with ``wait`` only when the next output comes, and not at all if none comes;
* ``update_display`` replaces data and metadata of **every** output with that display id and is no output itself;
* a gap becomes a `TruncatedOutput` at its place; gaps that follow on each other are added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import JsonValue

from cloche.models.events import Event
from cloche.models.runs import DisplayOutput, ErrorOutput, Output, StreamOutput, TruncatedOutput

Update = tuple[dict[str, JsonValue], dict[str, JsonValue]]
"""Data and metadata a display was changed to by a later run."""


class OutputList:
    """The outputs so far; feed it events one at a time."""

    def __init__(self) -> None:
        self._outputs: list[Output] = []
        self._parts: list[str] = []  # text of the last output, when that is a stream: joined once, not once an event
        self._clear_next = False

    def add(self, event: Event) -> None:
        """Apply one event; kinds that show nothing are ignored."""
        kind, data = event.type, event.data
        if kind in ("stdout", "stderr"):
            self._add_text("stdout" if kind == "stdout" else "stderr", str(data["text"]))
        elif kind in ("display", "result"):
            self._append(DisplayOutput.model_validate({"type": kind, **data}))
        elif kind == "error":
            self._append(ErrorOutput.model_validate({"type": "error", **data}))
        elif kind == "update_display":
            self.update(str(data["display_id"]), (_object(data["data"]), _object(data["metadata"])))
        elif kind == "clear_output":
            self._clear(wait=bool(data["wait"]))
        elif kind == "gap":
            self._add_gap(TruncatedOutput.model_validate(data))

    def update(self, display_id: str, update: Update) -> None:
        """Change every output with that display id."""
        self._join()
        for at, output in enumerate(self._outputs):
            if isinstance(output, DisplayOutput) and output.display_id == display_id:
                self._outputs[at] = output.model_copy(update={"data": update[0], "metadata": update[1]})

    def outputs(self) -> list[Output]:
        """What would be shown now."""
        self._join()
        return list(self._outputs)

    def _add_text(self, kind: Literal["stdout", "stderr"], text: str) -> None:
        self._clear_if_due()
        last = self._outputs[-1] if self._outputs else None
        if isinstance(last, StreamOutput) and last.type == kind:
            self._parts = self._parts or [last.text]
            self._parts.append(text)
        else:
            self._append(StreamOutput(type=kind, text=text))

    def _append(self, output: Output) -> None:
        self._clear_if_due()
        self._join()
        self._outputs.append(output)

    def _add_gap(self, gap: TruncatedOutput) -> None:
        self._join()
        last = self._outputs[-1] if self._outputs else None
        if isinstance(last, TruncatedOutput):
            gap = TruncatedOutput(records=last.records + gap.records, bytes=last.bytes + gap.bytes)
            self._outputs[-1] = gap
        else:
            self._outputs.append(gap)

    def _clear(self, *, wait: bool) -> None:
        self._clear_next = wait
        if not wait:
            self._outputs, self._parts = [], []

    def _clear_if_due(self) -> None:
        if self._clear_next:
            self._clear(wait=False)

    def _join(self) -> None:
        if self._parts:
            last = self._outputs[-1]
            self._outputs[-1] = last.model_copy(update={"text": "".join(self._parts)})
            self._parts = []


def collapse(events: Iterable[Event], updates: Mapping[str, Update] | None = None) -> list[Output]:
    """The outputs of a run. `updates`: what later runs changed its displays to, by display id."""
    collected = OutputList()
    for event in events:
        collected.add(event)
    for display_id, update in (updates or {}).items():
        collected.update(display_id, update)
    return collected.outputs()


def _object(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}
