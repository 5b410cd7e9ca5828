"""A run that nobody sees: what the guest itself does for one comes into use, page by page, before it is needed.

It is in no list, no journal and no history, and has no trace in its context: see `kernel_side/_warm_up.py` for the kernel's
part of it.
"""

from __future__ import annotations

from typing import Final

from cloche.models import RunCreate, RunStatus
from cloche_guest.contexts._execution import Execution
from cloche_guest.contexts._router import Shown, read_message
from cloche_guest.contexts._run import RunRecord
from cloche_guest.contexts._runs import new_id
from cloche_guest.contexts._supervision import Watch, decide
from cloche_guest.contexts._wire import Message

BODY: Final = b'{"code": "1"}'
"""It goes the way of every cell, through the display of a result."""


class Rehearsal:
    """From the body of a request to the body of its answer."""

    def __init__(self) -> None:
        self._run = RunRecord(new_id("run-"), "default", RunCreate.model_validate_json(BODY))
        self._execution = Execution(self._run, "", Watch(0.0, self._run.body.timeout_s, 1.0))
        self._run.start(1)

    @property
    def code(self) -> str:
        return self._run.body.code

    def take(self, message: Message) -> None:
        """What the kernel says about it."""
        for fact in read_message(message):
            if isinstance(fact, Shown):
                self._run.add_shown(fact)
            elif self._execution.take(fact, 0.0):
                decide(self._execution.watch, 0.0)

    def finish(self) -> None:
        """It is over."""
        self._run.finish(RunStatus.OK, None, 0.0)
        self._run.to_model().model_dump_json()
