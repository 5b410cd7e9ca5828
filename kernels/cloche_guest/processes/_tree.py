"""Signals to a whole tree: the group at once, then whatever has left it."""

from __future__ import annotations

import contextlib
import os
import signal

from cloche_guest.children import Child
from cloche_guest.contexts import _leftovers


class Tree:
    """A root and all it has started, found by session, descent and the mark in the environment."""

    def __init__(self, child: Child, mark: str) -> None:
        self._child = child
        self._mark = mark

    def group_is_empty(self) -> bool:
        """No member of the root's group is left. Only meaningful after the root has exited.

        The number cannot name another group while this one has members: Linux does not reuse it until then.
        """
        try:
            os.killpg(self._child.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False

    def send(self, number: int) -> int:
        """Signal every process of the tree once; how many were found."""
        others = self._members()
        count = len(others)
        if not self._child.exited.done():
            others = {pid for pid in others if _group_of(pid) != self._child.pid}
            self._child.signal_group(number)
            count += 1
        for pid in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        return count

    def kill(self) -> None:
        """SIGKILL, again and again until nothing is found: a process may fork between the look and the kill."""
        known = self._members()
        self._child.signal_group(signal.SIGKILL)
        _leftovers.kill_members(self._child.pid, self._mark, known)

    def root_is_there(self) -> bool:
        """The root's number is taken, by a zombie at least."""
        try:
            os.kill(self._child.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def _members(self) -> set[int]:
        return _leftovers.members(_leftovers.read_processes(), self._child.pid, self._mark)


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def signal_number(name: str | int) -> int:
    """``TERM``, ``SIGTERM`` or 15 as 15; ``SIGRTMIN+3``, too.

    Raises:
        ValueError: there is no such signal.
    """
    if isinstance(name, int):
        return name
    base, _, offset = name.removeprefix("SIG").partition("+")
    try:
        number = signal.Signals[f"SIG{base}"].value + (int(offset) if offset else 0)
    except (KeyError, ValueError):
        raise ValueError(f"there is no signal {name}") from None
    if not 1 <= number <= signal.SIGRTMAX or (offset and base != "RTMIN"):
        raise ValueError(f"there is no signal {name}")
    return number
