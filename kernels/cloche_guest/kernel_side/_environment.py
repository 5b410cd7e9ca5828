"""The environment of a kernel: changed for one run at a time, and for good when the sandbox becomes another one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager


class Environment:
    """``os.environ``, and the values it gets back when the run that changed them ends."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    @contextmanager
    def of_run(self, env: Mapping[str, str]) -> Iterator[None]:
        """Set variables for one run; afterwards each is as it was before, whatever the run did to it."""
        self._before = {name: os.environ.get(name) for name in env}
        os.environ.update(env)
        try:
            yield
        finally:
            before, self._before = self._before, {}
            for name, value in before.items():
                _put(name, value)

    def change(self, values: Mapping[str, str], unset: Sequence[str]) -> None:
        """For good. Variables that belong to the run that runs now change when it ends."""
        for name, value in {**dict.fromkeys(unset), **values}.items():
            if name in self._before:
                self._before[name] = value
            else:
                _put(name, value)


def _put(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
