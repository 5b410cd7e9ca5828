"""Files of this machine, as source and target of what is transferred."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, Self, TypeAlias

from cloche.trees import CHUNK

LocalFile: TypeAlias = "str | os.PathLike[str] | BinaryIO"


def blocks_of(source: LocalFile) -> Iterator[bytes]:
    """The content of a file by path or file object, in parts."""
    with ExitStack() as stack:
        file = source
        if isinstance(file, str | os.PathLike):
            file = stack.enter_context(open(file, "rb"))
        while block := file.read(CHUNK):
            yield block


class FileSink:
    """Where a download goes: a file object, or a new file beside ``target`` that takes its place when it is whole.

    ``private``: that file is for this user's eyes only.
    """

    def __init__(self, target: LocalFile, *, private: bool = False) -> None:
        self.size = 0
        self._target: Path | None = None
        if isinstance(target, str | os.PathLike):
            self._target = Path(target)
            self._temporary = self._target.with_name(f".{secrets.token_hex(8)}.part")
            made = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
            self._file: BinaryIO = os.fdopen(made, "wb")
        else:
            self._file = target

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    def keep(self) -> None:
        """All is there. On the disk first: a power failure leaves the whole of it under its name, or nothing."""
        if self._target is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._temporary, self._target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._target is not None:
            self._file.close()
            with suppress(FileNotFoundError):
                self._temporary.unlink()
