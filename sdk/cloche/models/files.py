"""Files of a sandbox. Everything is done inside, by a process of the user asked for: ``user`` or ``root``.

Paths are absolute, or relative to /workspace. Their text form is that of `cloche.path_text`; in Python, fields hold names
as `os.listdir` returns them (surrogate escapes for bytes that are not UTF-8).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PlainSerializer, StringConstraints

from cloche.models._base import Model, Timestamp
from cloche.path_text import from_text, to_text

MAX_PATH_BYTES = 4095
"""PATH_MAX without its NUL."""


def _name(text: str) -> str:
    name = from_text(text)
    if len(name.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES:
        raise ValueError(f"longer than {MAX_PATH_BYTES} bytes")
    return name


def _pattern(text: str) -> str:
    if not text.strip("/"):
        raise ValueError("an empty pattern matches nothing")
    return from_text(text)


_AsText = PlainSerializer(to_text, return_type=str, when_used="json")
FilePath = Annotated[str, StringConstraints(min_length=1), AfterValidator(_name), _AsText]
FileName = Annotated[str, AfterValidator(from_text), _AsText]
"""A name, a relative path or the target of a link, as the sandbox says it."""

GlobPattern = Annotated[str, StringConstraints(min_length=1, max_length=1024), AfterValidator(_pattern), _AsText]
"""``*`` and ``?`` do not match ``/``, ``**`` matches any number of directories, ``[a-z]`` and ``[!a-z]`` one character. A pattern
without ``/`` matches names at any depth, one with ``/`` whole relative paths. There are no braces."""

FileUser = Literal["user", "root"]
Mode = Annotated[str, StringConstraints(pattern=r"^[0-7]{3,4}$")]
"""Permission bits in octal, as chmod takes them."""

FileType = Literal["file", "directory", "symlink", "fifo", "socket", "block_device", "char_device"]


class FileInfo(Model):
    """What lstat says. ``etag`` of regular files changes with every change of content or facts."""

    path: FileName
    name: FileName
    type: FileType
    size: int
    mode: Mode
    uid: int
    gid: int
    links: int
    modified_at: Timestamp
    link_target: FileName | None = None
    etag: str | None = None


class FileEntry(FileInfo):
    """One entry of a list. ``error``: what kept its directory from being read; it is listed all the same."""

    error: str | None = None


class FilePage(Model):
    """In the order of their bytes, a directory before what it holds. ``next_page`` is passed as ``page`` to get the rest."""

    items: list[FileEntry]
    next_page: str | None = None


class OnFile(Model):
    """Base: what every change says."""

    path: FilePath
    user: FileUser = "user"


class MakeDirectory(OnFile):
    """``exist_ok``: a directory that is there is no error."""

    parents: bool = False
    exist_ok: bool = False
    mode: Mode | None = Field(default=None, description="of the directory itself; null: 0777 less the umask 022")


class MoveFile(OnFile):
    """Within a file system in one step; across file systems as a copy and a removal. Links are moved, not followed."""

    destination: FilePath
    overwrite: bool = Field(default=False, description="replace a file, a link or an empty directory")


class CopyFile(OnFile):
    """Links are copied as links. Devices, FIFOs and sockets are not copied: `not_regular_file`."""

    destination: FilePath
    recursive: bool = Field(default=False, description="needed for a directory, whose copy must not exist yet")
    overwrite: bool = False


class RemoveFile(OnFile):
    """Links are removed, not followed."""

    recursive: bool = Field(default=False, description="needed for a directory that is not empty")
    missing_ok: bool = False


class ChangeMode(OnFile):
    """A link's target is changed; in a recursive change links are passed over."""

    mode: Mode
    recursive: bool = False


class Removed(Model):
    """How many entries are gone."""

    removed: int


class GlobMatches(Model):
    """Paths relative to the directory searched, in the order of their bytes."""

    paths: list[FileName]
    truncated: bool


class FileSearch(OnFile):
    """A text search with ripgrep, in a directory or one file: whatever .gitignore says, but not in binary files."""

    pattern: str = Field(min_length=1, max_length=4096)
    regex: bool = Field(default=False, description="a regular expression (Rust's syntax) instead of plain text")
    ignore_case: bool = False
    include: list[GlobPattern] = Field(default=[], max_length=64)
    exclude: list[GlobPattern] = Field(default=[], max_length=64)
    hidden: bool = Field(default=True, description="look at names that begin with a dot, too")
    max_matches: int = Field(default=200, ge=1, le=10_000)
    timeout_s: float = Field(default=20.0, gt=0, le=60)


class SearchMatch(Model):
    """One line with at least one match. ``start`` and ``end`` count characters of ``text`` for the first."""

    path: FileName
    line: int
    text: str = Field(description="at most 500 characters around the first match; bytes that are not UTF-8 as U+FFFD")
    start: int
    end: int


class SearchMatches(Model):
    """``truncated``: there is more; ``timed_out``: there may be."""

    matches: list[SearchMatch]
    truncated: bool
    timed_out: bool


class TreeStored(Model):
    """What was unpacked."""

    files: int
    directories: int
    links: int
    bytes: int


class GitClone(OnFile):
    """``path``: the directory to make; it must not exist or be empty. Protocols: https, http, ssh, git, file and local paths."""

    url: str = Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")
    depth: int | None = Field(default=None, ge=1, description="so many commits; null: all")
    branch: str | None = Field(
        default=None, min_length=1, max_length=256, pattern=r"^[^-\x00-\x20\x7f][^\x00-\x20\x7f]*$"
    )
    timeout_s: float = Field(default=600.0, ge=1, le=3600)


class CloneProgress(Model):
    """One step of a clone: the data of a ``progress`` event. ``phase`` is in git's words, "Receiving objects"."""

    phase: str
    percent: int
    done: int
    total: int


class Cloned(Model):
    """``branch`` null: a detached HEAD. ``commit`` null: the repository is empty."""

    path: FileName
    commit: str | None
    branch: str | None
