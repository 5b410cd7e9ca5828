"""The log of a build, read again and again while it grows: what of it is new. Pure.

A long log is a head, a line that says how much is left out, and a tail that moves on. So what is new is found behind the
longest end of what was seen before; when nothing of that is left in it, the reader is told that something is missing.
"""

from __future__ import annotations

from typing import Final

from cloche.models import TemplateLog

ANCHOR_CHARACTERS: Final = 512
"""Of what was seen last: enough to be found in one place only, unless the build repeats itself for so long."""

MISSING: Final = "\n[...]\n"


class BuildLog:
    """How much of a log its reader has seen."""

    def __init__(self) -> None:
        self._seen = ""

    def news(self, log: TemplateLog) -> str:
        """What was not in the log the last time."""
        before, self._seen = self._seen, log.text
        if log.text.startswith(before):
            return log.text[len(before) :]
        found = log.text.rfind(before[-ANCHOR_CHARACTERS:])
        if found >= 0:
            return log.text[found + min(len(before), ANCHOR_CHARACTERS) :]
        return MISSING + log.text[len(log.text) // 2 :]
