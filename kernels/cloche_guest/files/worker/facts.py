"""What lstat says, as JSON."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from typing import Any, Final

from cloche.path_text import to_text

_TYPES: Final = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "block_device",
    stat.S_IFCHR: "char_device",
}


def etag_of(facts: os.stat_result) -> str:
    """Changes with content and facts: the change time cannot be set by programs, and a replaced file has another inode."""
    return f'"{facts.st_ino:x}-{facts.st_size:x}-{facts.st_mtime_ns:x}-{facts.st_ctime_ns:x}"'


def kind_of(facts: os.stat_result) -> str:
    """As `FileInfo.type` has it."""
    return _TYPES.get(stat.S_IFMT(facts.st_mode), "file")


def describe(path: str, facts: os.stat_result, link_target: str | None = None) -> dict[str, Any]:
    """The fields of `FileInfo`."""
    regular = stat.S_ISREG(facts.st_mode)
    return {
        "path": to_text(path),
        "name": to_text(path.rstrip("/").rpartition("/")[2] or "/"),
        "type": kind_of(facts),
        "size": facts.st_size,
        "mode": f"{stat.S_IMODE(facts.st_mode):04o}",
        "uid": facts.st_uid,
        "gid": facts.st_gid,
        "links": facts.st_nlink,
        "modified_at": _moment(facts.st_mtime),
        "link_target": None if link_target is None else to_text(link_target),
        "etag": etag_of(facts) if regular else None,
    }


def _moment(seconds: float) -> str:
    """Programs may set any time; what no calendar has is shown as the nearest that one has."""
    return datetime.fromtimestamp(min(max(seconds, -62_135_596_800.0), 253_402_300_799.0), UTC).isoformat()


def describe_entry(directory: int, name: str, path: str) -> dict[str, Any]:
    """`describe` for a name in an open directory."""
    facts = os.lstat(name, dir_fd=directory)
    target = os.readlink(name, dir_fd=directory) if stat.S_ISLNK(facts.st_mode) else None
    return describe(path, facts, target)


def describe_path(path: str, *, follow: bool = False) -> dict[str, Any]:
    """`describe` for a path."""
    facts = os.stat(path, follow_symlinks=follow)
    target = os.readlink(path) if stat.S_ISLNK(facts.st_mode) else None
    return describe(path, facts, target)
