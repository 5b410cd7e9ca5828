"""Routes whose body, or answer, is a stream of a worker: content, trees, hashes."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final

from pydantic import Field, JsonValue
from tornado import iostream
from tornado.http1connection import HTTP1Connection

from cloche.errors import ClocheError, InternalError, InvalidRequest
from cloche.models import FileInfo, FilePath, FileUser, Mode, Model, TreeStored
from cloche_guest.files.service import CHANGE_S, LOOK_S, FileService, complete
from cloche_guest.files.workers import Json, Operation
from cloche_guest.http import Handler

MAX_UPLOAD_BYTES: Final = 2**50
"""Of one body; Tornado wants a number. The disk is the bound."""

MAX_HASHES: Final = 200_000

_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_TAG: Final = re.compile(r'(?:W/)?("[^"]*")|\*')


class PathQuery(Model):
    path: FilePath
    user: FileUser = "user"


class HashesQuery(PathQuery):
    limit: int = Field(default=MAX_HASHES, ge=1, le=MAX_HASHES)


class WriteQuery(PathQuery):
    mode: Mode | None = None
    parents: bool = False
    atomic: bool = True


class AppendQuery(PathQuery):
    mode: Mode | None = None
    parents: bool = False


class TreeQuery(PathQuery):
    parents: bool = False


class FileHandler(Handler):
    """Base of all of them. When the client goes away, the operation is given up: nobody waits for its answer."""

    _task: asyncio.Task[Any] | None = None

    def initialize(self, files: FileService) -> None:
        self.files = files

    def prepare(self) -> Awaitable[None] | None:
        self._task = asyncio.current_task()
        return super().prepare()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        if self._task is not None:
            self._task.cancel()


class UploadHandler(FileHandler):
    """Base of those whose body goes to the worker as it comes. An operation that fails before all of the body is here is
    answered at once, so that the server need not send the rest."""

    _operation: Operation | None = None
    _refusal: ClocheError | None = None
    _said = False
    _where: PathQuery

    async def start_upload(self) -> Operation | None:
        """The operation, ready for data; None: this method has no such body."""
        raise NotImplementedError

    async def prepare(self) -> None:
        if self.request.method not in self._allowed() or self.request.method == "GET":
            super().prepare()
            return
        connection = self.request.connection
        assert isinstance(connection, HTTP1Connection)
        connection.set_max_body_size(MAX_UPLOAD_BYTES)
        try:
            self._operation = await self.start_upload()
            assert self._operation is not None
            await self._operation.answer(LOOK_S)
        except ClocheError as error:
            await self._refuse(error)

    async def data_received(self, chunk: bytes) -> None:
        if self._operation is None or self._refusal is not None:
            return
        if not await self._operation.send(chunk):
            await self._collect_refusal()

    async def _collect_refusal(self) -> None:
        assert self._operation is not None
        try:
            await self._operation.answer(LOOK_S)
            raise InternalError("the worker finished before all of the body was there")
        except ClocheError as error:
            await self._refuse(error)

    async def _refuse(self, error: ClocheError) -> None:
        self._refusal = complete(error, self._where.path, self._where.user) if hasattr(self, "_where") else error
        if self._operation is not None:
            self._operation.close()
        body = self._refusal.to_body(self.request_id).model_dump_json().encode()
        self.set_status(self._refusal.status)
        self.set_header("Content-Length", str(len(body)))
        self.write(body)
        with contextlib.suppress(iostream.StreamClosedError):
            await self.flush()
        self._said = True

    async def finish_upload(self) -> Json | None:
        """The worker's result; None when the refusal was answered."""
        if self._said:
            self.finish()
            return None
        assert self._operation is not None
        try:
            await self._operation.end()
            return await self._operation.answer(CHANGE_S)
        except ClocheError as error:
            raise complete(error, self._where.path, self._where.user) from None
        finally:
            self._operation.close()

    def on_connection_close(self) -> None:
        """Nobody is there any more: what was not finished is undone by the worker."""
        if self._operation is not None:
            self._operation.close()
        super().on_connection_close()


class ContentHandler(UploadHandler):
    """``/v1/files/content``"""

    async def get(self) -> None:
        query = self.read_query(PathQuery)
        order: Json = {"range": self._range(), "if_none_match": _tags(self.request.headers.get("If-None-Match"))}
        async with self.files.begun("read", query.user, query.path, **order) as operation:
            found = await operation.answer(LOOK_S)
            self.set_header("ETag", found["etag"])
            if found["unchanged"]:
                self.set_status(304)
                self.clear_header("Content-Type")
                self.finish()
                return
            self._describe(found)
            await _pass_on(self, operation.data())

    def _describe(self, found: Json) -> None:
        self.set_header("Content-Type", "application/octet-stream")
        if found["length"] is not None:
            self.set_header("Content-Length", str(found["length"]))
        if found["partial"]:
            self.set_status(206)
            last = found["start"] + found["length"] - 1
            self.set_header("Content-Range", f"bytes {found['start']}-{last}/{found['total']}")

    def _range(self) -> list[int | None] | None:
        """One range; what is none, or several, is ignored, as HTTP has it."""
        match = _RANGE.fullmatch(self.request.headers.get("Range", "").replace(" ", ""))
        if match is None or not (match[1] or match[2]):
            return None
        first, last = (int(text) if text else None for text in match.groups())
        return None if first is not None and last is not None and last < first else [first, last]

    async def put(self) -> None:
        await self._answer_written()

    async def post(self) -> None:
        await self._answer_written()

    async def start_upload(self) -> Operation | None:
        tags: Json = {
            "if_match": _tags(self.request.headers.get("If-Match")),
            "if_none_match": _tags(self.request.headers.get("If-None-Match")),
        }
        if self.request.method == "POST":
            append = self._where = self.read_query(AppendQuery)
            how: Json = {"atomic": False, "append": True, "mode": mode_bits(append.mode), "parents": append.parents}
        else:
            write = self._where = self.read_query(WriteQuery)
            how = {"atomic": write.atomic, "append": False, "mode": mode_bits(write.mode), "parents": write.parents}
        if not how["atomic"] and any(tags.values()):
            problem: JsonValue = {"field": "If-Match", "problem": "conditions need an atomic write"}
            raise InvalidRequest(
                "If-Match and If-None-Match need an atomic write: nothing else can be checked and done in one step",
                details={"errors": [problem]},
            )
        return await self.files.start("write", self._where.user, self._where.path, **how, **tags)

    async def _answer_written(self) -> None:
        result = await self.finish_upload()
        if result is not None:
            info = FileInfo.model_validate(result["info"])
            if info.etag is not None:
                self.set_header("ETag", info.etag)
            self.answer(info, 201 if result["created"] else 200)


class HashesHandler(FileHandler):
    """``/v1/files/hashes``: for the server, which compares sandboxes; clients have no such route."""

    async def get(self) -> None:
        query = self.read_query(HashesQuery)
        async with self.files.begun("hashes", query.user, query.path, limit=query.limit) as operation:
            await operation.answer(LOOK_S)
            self.set_header("Content-Type", "application/x-ndjson")
            await _pass_on(self, operation.data())


class TreeHandler(UploadHandler):
    """``/v1/files/tree``"""

    async def get(self) -> None:
        query = self.read_query(PathQuery)
        async with self.files.begun("download_tree", query.user, query.path) as operation:
            await operation.answer(LOOK_S)
            self.set_header("Content-Type", "application/x-tar")
            await _pass_on(self, operation.data())

    async def put(self) -> None:
        result = await self.finish_upload()
        if result is not None:
            self.answer(TreeStored.model_validate(result))

    async def start_upload(self) -> Operation | None:
        query = self._where = self.read_query(TreeQuery)
        return await self.files.start("upload_tree", query.user, query.path, parents=query.parents)


async def _pass_on(handler: Handler, parts: AsyncIterator[bytes]) -> None:
    """A body, as fast as it is read. One that cannot be completed is cut: nothing can follow half a body."""
    try:
        async for part in parts:
            handler.write(part)
            await handler.flush()
    except iostream.StreamClosedError:
        return
    except ClocheError:
        if not handler._headers_written:
            raise
        connection = handler.request.connection
        assert isinstance(connection, HTTP1Connection)
        connection.stream.close()
        return
    handler.finish()


def mode_bits(mode: str | None) -> int | None:
    return None if mode is None else int(mode, 8)


def _tags(header: str | None) -> list[str] | None:
    """The entity tags of a condition; weak ones compare like strong ones, ours are all strong."""
    if header is None:
        return None
    return [match[1] or "*" for match in _TAG.finditer(header)]
