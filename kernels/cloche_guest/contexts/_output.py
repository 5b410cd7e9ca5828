"""What a kernel shows and prints: into the run it belongs to while that runs, else into the context's journal.

Late output (threads, child processes) never goes into another run; an update of a display reaches every run that
shows it (nteract/nteract#1447).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from cloche.models import RunState
from cloche_guest.contexts._context_journal import ContextJournal
from cloche_guest.contexts._displays import Displays
from cloche_guest.contexts._router import Fact, Shown, Text
from cloche_guest.contexts._run import RunRecord
from cloche_guest.contexts._runs import Runs

MAX_REQUESTS_KNOWN: Final = 1000
"""Requests whose late output can still be told apart: threads of the last thousand runs."""


class Output:
    """Of one context."""

    def __init__(self, runs: Runs, journal: ContextJournal) -> None:
        self._runs = runs
        self._journal = journal
        self._displays = Displays()
        self._requests: OrderedDict[str, str] = OrderedDict()

    def expect(self, message_id: str, run: RunRecord) -> None:
        """What the kernel says about this request belongs to the run."""
        self._requests[message_id] = run.id
        if len(self._requests) > MAX_REQUESTS_KNOWN:
            self._requests.popitem(last=False)

    def show(self, run: RunRecord, shown: Shown) -> None:
        """The run that runs shows something."""
        run.add_shown(shown)
        if shown.display_id is None:
            return
        if shown.kind == "update_display":
            self._update_displays(shown, shown.display_id, except_for=run.id)
        else:
            self._displays.remember(shown.display_id, run.id)

    def take_late(self, message_id: str, fact: Fact) -> None:
        """Something about a request whose run has ended."""
        run_id = self._requests.get(message_id)
        if isinstance(fact, Text):
            self._journal.note_text(run_id, fact)
        elif isinstance(fact, Shown) and fact.kind == "update_display" and fact.display_id is not None:
            self._update_displays(fact, fact.display_id, except_for=None)
        elif isinstance(fact, Shown) and fact.kind == "display":
            self._journal.note_shown("display", run_id, fact)

    def _update_displays(self, shown: Shown, display_id: str, except_for: str | None) -> None:
        """Change the display in every earlier run that shows it, and tell it in the context."""
        for run_id in self._displays.runs_showing(display_id):
            run = self._runs.find_kept(run_id)
            if run is None or run_id == except_for:
                continue
            if run.state is RunState.FINISHED:
                run.update_display(display_id, (shown.object("data"), shown.object("metadata")))
            self._journal.note_shown("update_display", run_id, shown)
