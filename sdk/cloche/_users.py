"""Who uses a client that nobody asked for by name: it is closed with the last of them."""

from __future__ import annotations

import threading


class Users:
    """A set of handles. A sandbox made without ``client=`` makes one, which its forks use, too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: set[int] = set()

    def join(self, user: object) -> None:
        """``user`` needs it from now on."""
        with self._lock:
            self._users.add(id(user))

    def leave(self, user: object) -> bool:
        """Whether ``user`` was the last one. True for one user only, and once."""
        with self._lock:
            was_there = id(user) in self._users
            self._users.discard(id(user))
            return was_there and not self._users
