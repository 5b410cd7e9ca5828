"""Routes of files. Those that answer in JSON are here; the ones that stream are in `file_bodies`."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Final

from pydantic import Field, JsonValue
from tornado import web

from cloche.errors import ClocheError, InvalidRequest
from cloche.journal import Journal
from cloche.journal_feed import JournalFeed
from cloche.models import (
    ChangeMode,
    Cloned,
    CopyFile,
    FileInfo,
    FilePage,
    FileSearch,
    GitClone,
    GlobMatches,
    GlobPattern,
    MakeDirectory,
    MoveFile,
    Removed,
    RemoveFile,
    SearchMatches,
)
from cloche.path_text import from_text, to_text
from cloche_guest.files.service import CHANGE_S, LOOK_S, FileService
from cloche_guest.files.workers import Json
from cloche_guest.handlers.file_bodies import (
    ContentHandler,
    FileHandler,
    HashesHandler,
    PathQuery,
    TreeHandler,
    mode_bits,
)
from cloche_guest.http import NoQuery, wants
from cloche_guest.streams import send_sse

DEFAULT_LIST: Final = 1000
MAX_LIST: Final = 10_000


class StatQuery(PathQuery):
    follow: bool = False


class ListQuery(PathQuery):
    depth: int = Field(default=1, ge=1, le=1000)
    limit: int = Field(default=DEFAULT_LIST, ge=1, le=MAX_LIST)
    page: Annotated[str, Field(min_length=1, max_length=16_384)] | None = None


class GlobQuery(PathQuery):
    pattern: GlobPattern
    exclude: list[GlobPattern] = Field(default=[], max_length=64)
    limit: int = Field(default=DEFAULT_LIST, ge=1, le=MAX_LIST)


class StatHandler(FileHandler):
    """``/v1/files/stat``"""

    async def get(self) -> None:
        query = self.read_query(StatQuery)
        self.answer(FileInfo.model_validate(await self.files.do("stat", query.user, query.path, follow=query.follow)))


class ListHandler(FileHandler):
    """``/v1/files/list``"""

    async def get(self) -> None:
        query = self.read_query(ListQuery)
        order: Json = {"depth": query.depth, "limit": query.limit, "after": _after(query.page)}
        found = await self.files.do("list", query.user, query.path, **order)
        following = found["next"]
        page = FilePage.model_validate({"items": found["items"]})
        self.answer(page.model_copy(update={"next_page": None if following is None else to_text(following)}))


def _after(page: str | None) -> str | None:
    """The token is the path of the last entry; clients take it for opaque."""
    if page is None:
        return None
    try:
        return from_text(page)
    except ValueError as error:
        problem: JsonValue = {"field": "page", "problem": "not the next_page of an answer"}
        raise InvalidRequest("page is not the next_page of an answer", details={"errors": [problem]}) from error


class GlobHandler(FileHandler):
    """``/v1/files/glob``"""

    async def get(self) -> None:
        query = self.read_query(GlobQuery)
        order: Json = {"pattern": query.pattern, "exclude": query.exclude, "limit": query.limit}
        self.answer(GlobMatches.model_validate(await self.files.do("glob", query.user, query.path, CHANGE_S, **order)))


class SearchHandler(FileHandler):
    """``/v1/files/search``"""

    async def post(self) -> None:
        self.read_query(NoQuery)
        body = self.read_body(FileSearch)
        order = body.model_dump(exclude={"user", "path"})
        found = await self.files.do("search", body.user, body.path, body.timeout_s + LOOK_S, **order)
        self.answer(SearchMatches.model_validate(found))


class MakeDirectoryHandler(FileHandler):
    """``/v1/files/mkdir``"""

    async def post(self) -> None:
        self.read_query(NoQuery)
        body = self.read_body(MakeDirectory)
        order: Json = {"parents": body.parents, "exist_ok": body.exist_ok, "mode": mode_bits(body.mode)}
        self.answer(FileInfo.model_validate(await self.files.do("mkdir", body.user, body.path, **order)), 201)


class MoveHandler(FileHandler):
    """``/v1/files/move``"""

    async def post(self) -> None:
        self.read_query(NoQuery)
        body = self.read_body(MoveFile)
        order: Json = {"destination": body.destination, "overwrite": body.overwrite}
        self.answer(FileInfo.model_validate(await self.files.do("move", body.user, body.path, CHANGE_S, **order)))


class CopyHandler(FileHandler):
    """``/v1/files/copy``"""

    async def post(self) -> None:
        self.read_query(NoQuery)
        body = self.read_body(CopyFile)
        order: Json = {"destination": body.destination, "recursive": body.recursive, "overwrite": body.overwrite}
        self.answer(FileInfo.model_validate(await self.files.do("copy", body.user, body.path, CHANGE_S, **order)), 201)


class RemoveHandler(FileHandler):
    """``/v1/files/remove``"""

    async def post(self) -> None:
        self.read_query(NoQuery)
        body = self.read_body(RemoveFile)
        order: Json = {"recursive": body.recursive, "missing_ok": body.missing_ok}
        self.answer(Removed.model_validate(await self.files.do("remove", body.user, body.path, CHANGE_S, **order)))


class ChangeModeHandler(FileHandler):
    """``/v1/files/chmod``"""

    async def post(self) -> None:
        self.read_query(NoQuery)
        body = self.read_body(ChangeMode)
        order: Json = {"mode": mode_bits(body.mode), "recursive": body.recursive}
        self.answer(FileInfo.model_validate(await self.files.do("chmod", body.user, body.path, CHANGE_S, **order)))


class CloneHandler(FileHandler):
    """``/v1/files/clone``: progress as events when they are asked for. A clone ends with the client that waits for it."""

    async def post(self) -> None:
        self.read_query(NoQuery)
        body = self.read_body(GitClone)
        if not wants(self.request.headers, "text/event-stream"):
            async for is_progress, value in self._steps(body):
                if not is_progress:
                    self.answer(Cloned.model_validate(value), 201)
            return
        feed = JournalFeed(Journal(secrets.token_hex(8), max_bytes=1024 * 1024))
        work = asyncio.create_task(self._tell(body, feed), name="git clone")
        try:
            await send_sse(self, feed, feed.journal.start, text_records="json")
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _steps(self, body: GitClone) -> AsyncIterator[tuple[bool, Json]]:
        order = {**body.model_dump(exclude={"user", "path"}), "env": self.files.environment()}
        async with self.files.begun("clone", body.user, body.path, **order) as operation:
            async for step in operation.mixed():
                yield step

    async def _tell(self, body: GitClone, feed: JournalFeed) -> None:
        try:
            async for is_progress, value in self._steps(body):
                data = value if is_progress else Cloned.model_validate(value).model_dump(mode="json")
                feed.append("progress" if is_progress else "finished", json.dumps(data).encode())
        except ClocheError as error:
            feed.append("failure", error.to_body(self.request_id).model_dump_json().encode())
        finally:
            feed.close()


def file_routes(files: FileService) -> Sequence[tuple[Any, ...]]:
    """All of them."""
    on_files = {"files": files}
    table: dict[str, type[web.RequestHandler]] = {
        "content": ContentHandler,
        "tree": TreeHandler,
        "hashes": HashesHandler,
        "stat": StatHandler,
        "list": ListHandler,
        "glob": GlobHandler,
        "search": SearchHandler,
        "mkdir": MakeDirectoryHandler,
        "move": MoveHandler,
        "copy": CopyHandler,
        "remove": RemoveHandler,
        "chmod": ChangeModeHandler,
        "clone": CloneHandler,
    }
    return [(f"/v1/files/{name}", handler, on_files) for name, handler in table.items()]
