"""Watches: what changes in a directory and below it, as a replayable stream.

| event | data |
|---|---|
| create | path, is_directory |
| modify | path: content changed; several within ``coalesce_ms`` are one |
| attrib | path, is_directory: mode, owner or times changed |
| delete | path, is_directory; of a directory: everything below it is gone, too |
| move | path, destination, is_directory, replaced; of a directory: everything below it moved along |
| overflow | the kernel dropped events; what follows, up to ``rescanned``, is found by comparing with the disk |
| rescanned | the comparison is complete |
| unwatched | path, reason: a directory that cannot be watched; what happens in it is not seen |
| stopped | reason: the watch ended; always the last |
| gap | records, bytes: this reader was too slow or came too late; list the directory anew |

Paths are relative to the directory that is watched.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cloche.models._base import Model, Timestamp, WatchId
from cloche.models.events import Event
from cloche.models.files import FileName, FilePath, FileUser, GlobPattern


class WatchCreate(Model):
    """Body of ``POST .../watches``. Links are not followed. Excluded directories are not looked into."""

    path: FilePath = "/workspace"
    user: FileUser = "user"
    recursive: bool = True
    include: list[GlobPattern] = Field(default=[], max_length=64, description="only these files; empty: all")
    exclude: list[GlobPattern] = Field(default=[], max_length=64, description="not these; wins over include")
    coalesce_ms: int = Field(
        default=50, ge=0, le=10_000, description="at most one `modify` or `attrib` of a file in this time"
    )
    idle_timeout_s: float = Field(default=600, ge=1, le=86_400, description="ends when nobody reads it for so long")


class Watch(Model):
    """One watch. ``cursor`` points behind the newest event."""

    id: WatchId
    path: FileName
    user: FileUser
    recursive: bool
    include: list[GlobPattern]
    exclude: list[GlobPattern]
    coalesce_ms: int
    idle_timeout_s: float
    state: Literal["watching", "stopped"]
    directories: int = Field(description="directories that are watched now")
    created_at: Timestamp
    cursor: str


class Changes(Model):
    """What happened behind a cursor. ``resync``: it cannot be said any more; list the directory, go on from ``cursor``."""

    status: Literal["unchanged", "changed", "resync"]
    reason: str | None = Field(default=None, description="of resync: overflow, gap, stopped or foreign_cursor")
    events: list[Event]
    more: bool = Field(description="there are more behind ``cursor``")
    cursor: str
