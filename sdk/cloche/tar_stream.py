"""Tar streams: bytes to members and back. Pure: no files, no sockets; standard library only, the guest's worker needs it.

Why not `tarfile` alone: it reads extended headers of any size into memory, keeps every member, and its extraction filters
were bypassed more than once (CVE-2025-4517 and others). Its encoding and decoding of one header are used.

Reads ustar, GNU and pax; writes GNU, whose names may hold any byte. Files, directories and links only: devices, FIFOs and
sparse files are refused. Where members may go is decided by `cloche.trees`.
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)

MAX_EXTENDED_BYTES: Final = 1024 * 1024
"""Of one pax or GNU header. Names have at most 4095 bytes; the rest is for other programs' extended attributes."""

Kind = Literal["file", "directory", "symlink", "hardlink"]

_KINDS: Final[dict[bytes, Kind]] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.CONTTYPE: "file",
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "symlink",
    tarfile.LNKTYPE: "hardlink",
}
_TYPES: Final = {"file": tarfile.REGTYPE, "directory": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE}
_PAX, _GLOBAL, _LONG_NAME, _LONG_LINK = b"x", b"g", b"L", b"K"


class TarError(ValueError):
    """The stream is broken or has something that is refused."""

    def __init__(self, problem: str, member: str = "") -> None:
        super().__init__(f"{member}: {problem}" if member else problem)
        self.problem = problem
        self.member = member


@dataclass(frozen=True, slots=True)
class Member:
    """One member; its data, if any, follows as `bytes`. Names have surrogate escapes."""

    name: str
    kind: Kind
    size: int = 0
    mode: int = 0o644
    mtime: float = 0
    link: str = ""


class MemberEnd:
    """All data of the member was given out."""


Item: TypeAlias = Member | bytes | MemberEnd


def encode_header(member: Member) -> bytes:
    """The header of a file, directory or symlink."""
    info = tarfile.TarInfo(member.name)
    info.type = _TYPES[member.kind]
    info.size, info.mode, info.mtime = member.size, member.mode, int(member.mtime)
    info.linkname = member.link
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> bytes:
    """What follows the data of a member."""
    return bytes(-size % BLOCK)


class TarParser:
    """Feed it bytes; it gives members, their data and their ends. Holds one block and one extended header at most."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._data_left = 0
        self._padding_left = 0
        self._in_member = False
        self._extended: tuple[bytes, int] | None = None
        self._override: dict[str, bytes] = {}
        self._zero_blocks = 0
        self._begun = False

    @property
    def finished(self) -> bool:
        """The end mark was read."""
        return self._zero_blocks >= 2

    def feed(self, data: bytes) -> list[Item]:
        """
        Raises:
            TarError
        """
        items: list[Item] = []
        view = memoryview(data)
        while True:
            if self._data_left and view:
                piece = bytes(view[: self._data_left])
                view = view[len(piece) :]
                self._data_left -= len(piece)
                items.append(piece)
            if self._data_left:
                break
            if self._in_member:
                self._in_member = False
                items.append(MemberEnd())
            if self._padding_left and view:
                skipped = min(self._padding_left, len(view))
                view = view[skipped:]
                self._padding_left -= skipped
            if self._padding_left or self.finished or not view:
                break
            wanted = (self._extended[1] if self._extended else BLOCK) - len(self._pending)
            self._pending += view[:wanted]
            view = view[wanted:]
            if self._extended is None and len(self._pending) == BLOCK:
                self._block(bytes(self._pending), items)
                self._pending.clear()
            if self._extended is not None and len(self._pending) >= self._extended[1]:
                self._end_extended(bytes(self._pending))
                self._pending.clear()
        return items

    def close(self) -> None:
        """The stream has ended.

        Raises:
            TarError: in the middle, or it was no tar stream at all.
        """
        if self._data_left or self._extended or self._pending or self._override:
            raise TarError("the stream ends in the middle of a member")
        if not self._begun and not self._zero_blocks:
            raise TarError("the stream is empty")

    def _block(self, block: bytes, items: list[Item]) -> None:
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            if not block.strip(b"\0"):
                self._zero_blocks += 1
                return
            raise TarError(f"not a tar header: {error}") from None
        except (ValueError, OverflowError) as error:
            raise TarError(f"not a tar header: {error}") from None
        self._begun = True
        self._zero_blocks = 0
        if info.size < 0:
            raise TarError("a negative size", info.name)
        if info.type in (_PAX, _GLOBAL, _LONG_NAME, _LONG_LINK):
            if info.size > MAX_EXTENDED_BYTES:
                raise TarError(f"an extended header of {info.size} bytes; {MAX_EXTENDED_BYTES} are allowed")
            self._extended = (info.type, info.size)
            return
        member = self._member(info)
        items.append(member)
        self._data_left = member.size
        self._padding_left = -member.size % BLOCK
        self._in_member = True

    def _end_extended(self, data: bytes) -> None:
        assert self._extended is not None
        kind, size = self._extended
        self._extended = None
        self._padding_left = -size % BLOCK
        if kind == _LONG_NAME:
            self._override["path"] = data.partition(b"\0")[0]
        elif kind == _LONG_LINK:
            self._override["linkpath"] = data.partition(b"\0")[0]
        elif kind == _PAX:
            self._override |= _pax_records(data)

    def _member(self, info: tarfile.TarInfo) -> Member:
        override, self._override = self._override, {}
        name = _decoded(override["path"]) if "path" in override else info.name
        kind = _KINDS.get(info.type)
        if kind is None or any(key.startswith("GNU.sparse.") for key in override):
            raise TarError("only files, directories and links are taken; not devices, FIFOs and sparse files", name)
        link = _decoded(override["linkpath"]) if "linkpath" in override else info.linkname
        if "\0" in name or "\0" in link:
            raise TarError("a NUL in a name", name.replace("\0", "\\0"))
        size = _number(override.get("size"), info.size, name) if kind == "file" else 0
        mtime = _time(override.get("mtime"), float(info.mtime), name)
        return Member(name, kind, int(size), info.mode & 0o7777, mtime, link)


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _number(raw: bytes | None, default: int, name: str) -> int:
    if raw is None:
        return default
    if not raw.isdigit() or len(raw) > 18:
        raise TarError("a size that is no number", name)
    return int(raw)


def _time(raw: bytes | None, default: float, name: str) -> float:
    try:
        value = default if raw is None else float(raw)
    except ValueError:
        raise TarError("a time that is no number", name) from None
    return value if abs(value) < 2**40 else 0.0


def _pax_records(data: bytes) -> dict[str, bytes]:
    records: dict[str, bytes] = {}
    while data:
        digits, space, _ = data.partition(b" ")
        if not space or not digits.isdigit() or len(digits) > 8:
            raise TarError("a pax record without a length")
        length = int(digits)
        record, data = data[len(digits) + 1 : length], data[length:]
        key, equals, value = record.partition(b"=")
        if not equals or not record.endswith(b"\n"):
            raise TarError("a broken pax record")
        records[key.decode("utf-8", "replace")] = value[:-1]
    return records
