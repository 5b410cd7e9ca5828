"""Packages of a kernel's own that are imported late come from where the kernel came from.

When they are used, the working directory is in ``sys.path``, before them, and code may have changed ``sys.path``: completion
would run a file ``jedi.py`` of the user, and whatever is wrong with that file would be wrong with completion.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Final

OWN: Final = frozenset(
    (
        *("jedi", "parso"),  # completion
        "debugpy",
        *("stack_data", "executing", "asttokens", "pure_eval"),  # tracebacks
        *("pexpect", "ptyprocess"),  # ``!command``
        "matplotlib_inline",
    )
)
"""What IPython and ipykernel import by themselves, but not at the start. All of the standard library is before the working
directory in ``sys.path``, and the rest is loaded before that is in it."""


class OwnPackages:
    """A finder of ``sys.meta_path``. ``path``: to look in for these, whatever ``sys.path`` is then."""

    def __init__(self, path: Sequence[str]) -> None:
        self._path = list(path)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None, which leaves it to the others, for all other names, and for what is not there."""
        return PathFinder.find_spec(name, self._path, target) if name in OWN else None


def hold_own_packages() -> None:
    """From now on. The working directory must not be in ``sys.path`` yet."""
    sys.meta_path.insert(0, OwnPackages(sys.path))
