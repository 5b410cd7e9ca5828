"""File operations for handlers: paths, bounds and the details every error has."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from cloche.errors import ClocheError, FileError, NotFound
from cloche.path_text import to_text
from cloche_guest.children import Account, Children
from cloche_guest.files.workers import FileWorkers, Json, Operation

LOOK_S: Final = 30.0
"""For what should take milliseconds; a file system that hangs, or a stopped worker, is not waited for longer."""

CHANGE_S: Final = 600.0
"""For what may touch many files."""


class FileService:
    """One for the guest."""

    def __init__(
        self,
        children: Children,
        environment: Callable[[], dict[str, str]],
        *,
        account: Account | None,
        workspace: str,
        may_be_root: Callable[[], bool],
    ) -> None:
        self._workers = FileWorkers(children, account=account, may_be_root=may_be_root)
        self._environment = environment
        self._workspace = workspace

    def stop(self) -> None:
        """End the workers."""
        self._workers.close()

    def absolute(self, path: str) -> str:
        """Relative paths are those below the workspace."""
        return posixpath.join(self._workspace, path)

    def environment(self) -> dict[str, str]:
        """For programs that operations start."""
        return self._environment()

    async def do(self, op: str, user: str, path: str, bound_s: float = LOOK_S, **order: Any) -> Json:
        """An operation that is one question and one answer."""
        async with self.begun(op, user, path, **order) as operation:
            return await operation.answer(bound_s)

    @asynccontextmanager
    async def begun(
        self, op: str, user: str, path: str, *, counted: bool = True, **order: Any
    ) -> AsyncIterator[Operation]:
        """Any operation. Errors that pass through are completed."""
        with completed(path, user):
            async with await self.start(op, user, path, counted=counted, **order) as operation:
                yield operation

    async def start(self, op: str, user: str, path: str, *, counted: bool = True, **order: Any) -> Operation:
        """For those whose life is not one block. Close it."""
        where = {name: self.absolute(order.pop(name)) for name in ("destination",) if name in order}
        request = {"op": op, "path": self.absolute(path), **order, **where}
        return await self._workers.operation(user, request, counted=counted)


class completed:  # noqa: N801 - used as a function
    """File errors say which path, as it was given, and for whom."""

    def __init__(self, path: str, user: str) -> None:
        self._path = path
        self._user = user

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ClocheError):
            complete(error, self._path, self._user)


def complete(error: ClocheError, path: str, user: str) -> ClocheError:
    """The same error with its details."""
    shown = to_text(path)[:300]
    if isinstance(error, NotFound) and "kind" not in error.details:
        error.details |= {"kind": "file", "id": shown}
    elif isinstance(error, FileError):
        error.details |= {"path": shown, "user": user}
    return error
