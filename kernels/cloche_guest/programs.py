"""Which program a process or a terminal runs."""

from __future__ import annotations

import os
from typing import Final

from cloche.models.programs import Program

SHELLS: Final = ("/bin/bash", "/bin/sh")


def argv_of(program: Program, default: str = SHELLS[-1]) -> list[str]:
    """The command line. ``default``: what runs when neither argv nor shell is given."""
    if program.argv is not None:
        return program.argv
    return [default] if program.shell is None else [first_shell(), "-c", program.shell]


def first_shell(preferred: str = "") -> str:
    """That one, or else the first that is there."""
    return next((path for path in (preferred, *SHELLS) if _is_program(path)), SHELLS[-1])


def _is_program(path: str) -> bool:
    """Of a directory, too, it is said that it may be executed."""
    return os.path.isfile(path) and os.access(path, os.X_OK)
