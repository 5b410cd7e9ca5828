"""Query parameters of file and watch routes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from cloche.models import FilePath, FileUser, GlobPattern, Mode
from cloche_server.routing._params import CursorText, Query


class OfPath(Query):
    path: FilePath = Field(
        description="absolute, or relative to /workspace; bytes that are not UTF-8 as in docs/protocol.md"
    )
    user: FileUser = Field(default="user", description="as whom it is done")


class StatPath(OfPath):
    follow: bool = Field(default=False, description="of what a link leads to")


class ListPath(OfPath):
    depth: int = Field(default=1, ge=1, le=1000, description="1: only the directory itself")
    limit: int = Field(default=1000, ge=1, le=10_000)
    page: Annotated[str, StringConstraints(min_length=1)] | None = Field(
        default=None, description="`next_page` of the page before"
    )


class GlobPath(OfPath):
    pattern: GlobPattern
    exclude: list[GlobPattern] = Field(default=[], max_length=64, description="repeatable; not looked into")
    limit: int = Field(default=1000, ge=1, le=10_000)


class AppendPath(OfPath):
    mode: Mode | None = Field(default=None, description="permission bits in octal")
    parents: bool = Field(default=False, description="make missing directories")


class WritePath(AppendPath):
    atomic: bool = Field(
        default=True, description="beside it first, then in its place; false: into the file that is there"
    )


class TreePath(OfPath):
    parents: bool = Field(default=False, description="make missing directories")


class Since(Query):
    since: CursorText = Field(min_length=1, description="a cursor of this watch")
    limit: int = Field(default=1000, ge=1, le=1000)
