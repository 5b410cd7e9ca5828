"""The files of one sandbox. `Files` blocks, `AsyncFiles` awaits. What is done is done inside, by the sandbox' own user."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self, TypeAlias

from pydantic import JsonValue

from cloche import _file_calls as _calls
from cloche import models
from cloche._answers import built, data_of
from cloche._file_calls import FilePathLike, query_of, text_of
from cloche._flow import Flow, Follow, Tell, Transfer, awaiting, blocking, send, send_patiently, transfer
from cloche._link import AsyncLink, Link
from cloche._local_files import FileSink, LocalFile, blocks_of
from cloche._patience import Patience
from cloche._tail import Tail
from cloche.errors import BadArchive
from cloche.models import (
    ChangeMode,
    Cloned,
    CloneProgress,
    CopyFile,
    Event,
    FileEntry,
    FileInfo,
    FileSearch,
    GitClone,
    MakeDirectory,
    MoveFile,
    RemoveFile,
    SearchMatches,
    TreeStored,
    WatchCreate,
)
from cloche.path_text import from_text
from cloche.tar_stream import TarError
from cloche.trees import Unpacker, packed

OnProgress: TypeAlias = Callable[[CloneProgress], object]


@dataclass(frozen=True, slots=True)
class TreeDownload:
    """What came. ``skipped``: links that would have led out of the directory; they were not made."""

    files: int
    directories: int
    links: int
    bytes: int
    skipped: Sequence[str]


@dataclass(frozen=True, slots=True)
class FileChange:
    """One event of a watch; see `cloche.models.watches` for the kinds. Paths are relative to the directory watched."""

    kind: str
    cursor: str
    path: str | None = None
    destination: str | None = None
    is_directory: bool = False
    replaced: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """What happened behind a cursor: ``unchanged``, ``changed`` or ``resync``. Go on from ``cursor``."""

    status: str
    changes: Sequence[FileChange]
    cursor: str
    more: bool
    reason: str | None = None


class FileFlows:
    """What can be done with files, as flows. ``user``: "user" (the default) or "root"."""

    def __init__(self, sandbox_id: str, patience: Patience) -> None:
        self.id = sandbox_id
        self._patience = patience

    def _read(
        self, path: FilePathLike, *, start: int = 0, length: int | None = None, user: str | None = None
    ) -> Flow[bytes]:
        """The content, or ``length`` bytes of it from ``start``. For large files use ``download``."""
        if length == 0:
            return b""
        last = "" if length is None else str(start + length - 1)
        headers = {"Range": f"bytes={start}-{last}"} if start or length is not None else {}
        return (yield from send_patiently(_calls.read(self.id, query_of(path, user), headers), self._patience))

    def _read_text(self, path: FilePathLike, *, encoding: str = "utf-8", user: str | None = None) -> Flow[str]:
        """The content as text."""
        return (yield from self._read(path, user=user)).decode(encoding)

    def _write(
        self,
        path: FilePathLike,
        data: bytes | str | BinaryIO,
        *,
        mode: str | None = None,
        parents: bool = False,
        atomic: bool = True,
        if_match: str | None = None,
        if_none_match: str | None = None,
        user: str | None = None,
    ) -> Flow[FileInfo]:
        """Write a file: bytes, text as UTF-8, or what a binary file object gives.

        :param atomic: readers see the old content or the new, and a full disk harms nothing. False: into the file itself.
        :param if_match: an etag; write only over that content. ``if_none_match="*"``: only where no file is.
        :raises PreconditionFailed: the condition does not hold.
        """
        query = query_of(path, user, mode=mode, parents=_flag(parents), atomic=_flag(atomic))
        conditions = {"If-Match": if_match, "If-None-Match": if_none_match}
        given = {name: value for name, value in conditions.items() if value is not None}
        if isinstance(data, bytes | str):
            body = data.encode() if isinstance(data, str) else data
            return (yield from send_patiently(_calls.write(self.id, query, body, given), self._patience))
        return (yield from transfer(Transfer(_calls.write(self.id, query, None, given), partial(blocks_of, data))))

    def _append(
        self,
        path: FilePathLike,
        data: bytes | str,
        *,
        mode: str | None = None,
        parents: bool = False,
        user: str | None = None,
    ) -> Flow[FileInfo]:
        """Add to the end of a file, which is made if need be."""
        query = query_of(path, user, mode=mode, parents=_flag(parents))
        return (yield from send(_calls.append(self.id, query, data.encode() if isinstance(data, str) else data)))

    def _stat(self, path: FilePathLike, *, follow: bool = False, user: str | None = None) -> Flow[FileInfo]:
        """What lstat says; with ``follow`` what stat says."""
        call = _calls.stat(self.id, query_of(path, user, follow=_flag(follow)))
        return (yield from send_patiently(call, self._patience))

    def _list(
        self, path: FilePathLike = "/workspace", *, depth: int = 1, user: str | None = None
    ) -> Flow[list[FileEntry]]:
        """What is in a directory, down to ``depth``. Links are not followed."""
        entries: list[FileEntry] = []
        page: str | None = None
        while True:
            query = query_of(path, user, depth=str(depth), limit="5000", page=page)
            found = yield from send_patiently(_calls.list_page(self.id, query), self._patience)
            entries += found.items
            page = found.next_page
            if page is None:
                return entries

    def _glob(
        self, pattern: str, path: FilePathLike = "/workspace", *, exclude: Sequence[str] = (), user: str | None = None
    ) -> Flow[list[str]]:
        """Paths below ``path`` that fit ``pattern``, 10,000 at most. What is excluded is not looked into."""
        query = query_of(path, user, pattern=text_of(pattern), limit="10000")
        query += tuple(("exclude", text_of(one)) for one in exclude)
        return list((yield from send_patiently(_calls.glob(self.id, query), self._patience)).paths)

    def _search(
        self,
        pattern: str,
        path: FilePathLike = "/workspace",
        *,
        regex: bool = False,
        ignore_case: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        hidden: bool = True,
        max_matches: int = 200,
        timeout_s: float = 20,
        user: str | None = None,
    ) -> Flow[SearchMatches]:
        """Lines with ``pattern``, which is plain text unless ``regex``."""
        body = built(
            FileSearch,
            path=text_of(path),
            pattern=pattern,
            regex=regex,
            ignore_case=ignore_case,
            include=[text_of(one) for one in include],
            exclude=[text_of(one) for one in exclude],
            hidden=hidden,
            max_matches=max_matches,
            timeout_s=timeout_s,
            user=user,
        )
        return (yield from send_patiently(_calls.search(self.id, body), self._patience))

    def _mkdir(
        self,
        path: FilePathLike,
        *,
        parents: bool = False,
        exist_ok: bool = False,
        mode: str | None = None,
        user: str | None = None,
    ) -> Flow[FileInfo]:
        """Make a directory."""
        body = built(MakeDirectory, path=text_of(path), parents=parents, exist_ok=exist_ok, mode=mode, user=user)
        return (yield from send(_calls.change(self.id, "mkdir", body)))

    def _move(
        self, path: FilePathLike, destination: FilePathLike, *, overwrite: bool = False, user: str | None = None
    ) -> Flow[FileInfo]:
        """Move or rename."""
        body = built(MoveFile, path=text_of(path), destination=text_of(destination), overwrite=overwrite, user=user)
        return (yield from send(_calls.change(self.id, "move", body)))

    def _copy(
        self,
        path: FilePathLike,
        destination: FilePathLike,
        *,
        recursive: bool = False,
        overwrite: bool = False,
        user: str | None = None,
    ) -> Flow[FileInfo]:
        """Copy a file or, with ``recursive``, a tree. Links are copied as links."""
        body = built(
            CopyFile,
            path=text_of(path),
            destination=text_of(destination),
            recursive=recursive,
            overwrite=overwrite,
            user=user,
        )
        return (yield from send(_calls.change(self.id, "copy", body)))

    def _remove(
        self, path: FilePathLike, *, recursive: bool = False, missing_ok: bool = False, user: str | None = None
    ) -> Flow[int]:
        """Remove; how many entries are gone. A directory that is not empty needs ``recursive``."""
        body = built(RemoveFile, path=text_of(path), recursive=recursive, missing_ok=missing_ok, user=user)
        return (yield from send(_calls.remove(self.id, body))).removed

    def _chmod(
        self, path: FilePathLike, mode: str, *, recursive: bool = False, user: str | None = None
    ) -> Flow[FileInfo]:
        """Change permission bits, in octal as in ``"755"``."""
        body = built(ChangeMode, path=text_of(path), mode=mode, recursive=recursive, user=user)
        return (yield from send(_calls.change(self.id, "chmod", body)))

    def _clone(
        self,
        url: str,
        path: FilePathLike,
        *,
        depth: int | None = None,
        branch: str | None = None,
        timeout_s: float = 600,
        on_progress: OnProgress | None = None,
        user: str | None = None,
    ) -> Flow[Cloned]:
        """``git clone`` inside the sandbox.

        :param on_progress: called with a `cloche.models.CloneProgress` for each step, while it goes on.
        :raises GitFailed: ``details["reason"]`` says why; nothing is left of it.
        """
        body = built(GitClone, url=url, path=text_of(path), depth=depth, branch=branch, timeout_s=timeout_s, user=user)
        if on_progress is None:
            return (yield from send(_calls.clone(self.id, body)))
        return (yield from self._watch_clone(body, on_progress))

    def _watch_clone(self, body: GitClone, on_progress: OnProgress) -> Flow[Cloned]:
        found: list[Cloned] = []

        def take(event: Event) -> Flow[None]:
            if event.type == "progress":
                yield Tell(on_progress, data_of(event, CloneProgress))
            elif event.type == "finished":
                found.append(data_of(event, Cloned))

        yield Follow(_calls.clone_stream(self.id, body), take)
        return found[0]

    def _upload(
        self, source: LocalFile, path: FilePathLike, *, parents: bool = False, user: str | None = None
    ) -> Flow[FileInfo]:
        """Send a file of this machine, of any size. ``source``: its path, or a binary file object."""
        query = query_of(path, user, parents=_flag(parents))
        call = _calls.write(self.id, query, None, {})
        return (yield from transfer(Transfer(call, partial(blocks_of, source))))

    def _download(self, path: FilePathLike, target: LocalFile, *, user: str | None = None) -> Flow[int]:
        """Fetch a file of any size; the number of bytes. A path as ``target`` gets the file when it is whole."""
        with ExitStack() as stack:
            sink = stack.enter_context(FileSink(target))
            call = _calls.read(self.id, query_of(path, user), {})
            yield from transfer(Transfer(call, sink=sink.write))
            sink.keep()
            return sink.size

    def _upload_tree(
        self, source: str | os.PathLike[str], path: FilePathLike, *, parents: bool = False, user: str | None = None
    ) -> Flow[TreeStored]:
        """Send a directory of this machine with all below it into the directory ``path``, which is made if need be."""
        call = _calls.upload_tree(self.id, query_of(path, user, parents=_flag(parents)))
        return (yield from transfer(Transfer(call, partial(packed, os.fspath(source)))))

    def _download_tree(
        self, path: FilePathLike, target: str | os.PathLike[str], *, user: str | None = None
    ) -> Flow[TreeDownload]:
        """Fetch a directory with all below it into the directory ``target``, which is made if need be.

        What a sandbox sends is not trusted: no name leads out of ``target``, and links that would are not made.
        """
        Path(target).mkdir(parents=True, exist_ok=True)
        with Unpacker(os.fspath(target), links="inside") as unpacker:
            try:
                yield from transfer(Transfer(_calls.download_tree(self.id, query_of(path, user)), sink=unpacker.feed))
                unpacker.finish()
            except TarError as error:
                details: dict[str, JsonValue] = {"member": error.member, "problem": error.problem}
                raise BadArchive(f"the sandbox sent a tar stream that is refused: {error}", details=details) from error
            counts = unpacker.counts
            return TreeDownload(counts.files, counts.directories, counts.links, counts.bytes, tuple(unpacker.skipped))

    def _start_watch(self, body: WatchCreate) -> Flow[models.Watch]:
        return (yield from send(_calls.create_watch(self.id, body)))


def _flag(value: bool) -> str | None:
    return str(value).lower()


def change_of(event: Event) -> FileChange:
    """An event with names as Python has them."""
    data = event.data
    return FileChange(
        kind=event.type,
        cursor=event.cursor,
        path=_name(data.get("path")),
        destination=_name(data.get("destination")),
        is_directory=data.get("is_directory") is True,
        replaced=data.get("replaced") is True,
        reason=reason if isinstance(reason := data.get("reason"), str) else None,
    )


def _name(value: JsonValue) -> str | None:
    if not isinstance(value, str):
        return None
    try:
        return from_text(value)
    except ValueError:
        return value


class WatchFlows:
    """One watch, as flows."""

    def __init__(self, sandbox_id: str, info: models.Watch, patience: Patience) -> None:
        self.info = info
        self._path = _calls.watch_path(sandbox_id, info.id)
        self._patience = patience

    @property
    def id(self) -> str:
        """``watch-`` and 12 characters."""
        return self.info.id

    def _tail(self, cursor: str | None) -> Tail:
        return Tail(f"{self._path}/events", cursor=cursor, last_type="stopped", patience=self._patience)

    def _changes_since(self, cursor: str) -> Flow[ChangeSet]:
        """What happened behind ``cursor``, without waiting."""
        found = yield from send_patiently(_calls.changes(self._path, cursor), self._patience)
        events = [change_of(event) for event in found.events]
        return ChangeSet(found.status, events, found.cursor, found.more, found.reason)

    def _close(self) -> Flow[None]:
        """End the watch."""
        yield from send(_calls.delete_watch(self._path))


class FileWatch(WatchFlows):
    """A watch that goes on: iterate over it for `FileChange`s, from its beginning. Leaving it as a context manager ends it."""

    def __init__(self, link: Link, sandbox_id: str, info: models.Watch) -> None:
        super().__init__(sandbox_id, info, link.patience)
        self._link = link

    def __iter__(self) -> Iterator[FileChange]:
        return self.follow()

    def follow(self, cursor: str | None = None) -> Iterator[FileChange]:
        """What happens, from behind ``cursor`` on (None: from the oldest event kept), over as many connections as it takes."""
        for event in self._link.follow(self._tail(cursor)):
            yield change_of(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    changes_since = blocking(WatchFlows._changes_since)
    close = blocking(WatchFlows._close)


class AsyncFileWatch(WatchFlows):
    """A watch that goes on: iterate over it for `FileChange`s, from its beginning. Leaving it as a context manager ends it."""

    def __init__(self, link: AsyncLink, sandbox_id: str, info: models.Watch) -> None:
        super().__init__(sandbox_id, info, link.patience)
        self._link = link

    def __aiter__(self) -> AsyncGenerator[FileChange, None]:
        return self.follow()

    async def follow(self, cursor: str | None = None) -> AsyncGenerator[FileChange, None]:
        """What happens, from behind ``cursor`` on (None: from the oldest event kept), over as many connections as it takes."""
        async for event in self._link.follow(self._tail(cursor)):
            yield change_of(event)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    changes_since = awaiting(WatchFlows._changes_since)
    close = awaiting(WatchFlows._close)


def watch_body(
    path: FilePathLike,
    user: str | None,
    recursive: bool,
    include: Sequence[str],
    exclude: Sequence[str],
    coalesce_ms: int,
    idle_timeout_s: float,
) -> WatchCreate:
    """The body of a create."""
    return built(
        WatchCreate,
        path=text_of(path),
        user=user,
        recursive=recursive,
        include=[text_of(one) for one in include],
        exclude=[text_of(one) for one in exclude],
        coalesce_ms=coalesce_ms,
        idle_timeout_s=idle_timeout_s,
    )


WATCH_IDLE_S: Final = 600.0


class Files(FileFlows):
    """The files of one sandbox."""

    def __init__(self, link: Link, sandbox_id: str) -> None:
        super().__init__(sandbox_id, link.patience)
        self._link = link

    def watch(
        self,
        path: FilePathLike = "/workspace",
        *,
        recursive: bool = True,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        coalesce_ms: int = 50,
        idle_timeout_s: float = WATCH_IDLE_S,
        user: str | None = None,
    ) -> FileWatch:
        """Watch a directory; everything that happens after the return is told. Options as in `cloche.models.WatchCreate`."""
        body = watch_body(path, user, recursive, include, exclude, coalesce_ms, idle_timeout_s)
        return FileWatch(self._link, self.id, self._link.drive(self._start_watch(body)))

    read = blocking(FileFlows._read)
    read_text = blocking(FileFlows._read_text)
    write = blocking(FileFlows._write)
    append = blocking(FileFlows._append)
    stat = blocking(FileFlows._stat)
    list = blocking(FileFlows._list)
    glob = blocking(FileFlows._glob)
    search = blocking(FileFlows._search)
    mkdir = blocking(FileFlows._mkdir)
    move = blocking(FileFlows._move)
    copy = blocking(FileFlows._copy)
    remove = blocking(FileFlows._remove)
    chmod = blocking(FileFlows._chmod)
    clone = blocking(FileFlows._clone)
    upload = blocking(FileFlows._upload)
    download = blocking(FileFlows._download)
    upload_tree = blocking(FileFlows._upload_tree)
    download_tree = blocking(FileFlows._download_tree)


class AsyncFiles(FileFlows):
    """The files of one sandbox."""

    def __init__(self, link: AsyncLink, sandbox_id: str) -> None:
        super().__init__(sandbox_id, link.patience)
        self._link = link

    async def watch(
        self,
        path: FilePathLike = "/workspace",
        *,
        recursive: bool = True,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        coalesce_ms: int = 50,
        idle_timeout_s: float = WATCH_IDLE_S,
        user: str | None = None,
    ) -> AsyncFileWatch:
        """Watch a directory; everything that happens after the return is told. Options as in `cloche.models.WatchCreate`."""
        body = watch_body(path, user, recursive, include, exclude, coalesce_ms, idle_timeout_s)
        return AsyncFileWatch(self._link, self.id, await self._link.drive(self._start_watch(body)))

    read = awaiting(FileFlows._read)
    read_text = awaiting(FileFlows._read_text)
    write = awaiting(FileFlows._write)
    append = awaiting(FileFlows._append)
    stat = awaiting(FileFlows._stat)
    list = awaiting(FileFlows._list)
    glob = awaiting(FileFlows._glob)
    search = awaiting(FileFlows._search)
    mkdir = awaiting(FileFlows._mkdir)
    move = awaiting(FileFlows._move)
    copy = awaiting(FileFlows._copy)
    remove = awaiting(FileFlows._remove)
    chmod = awaiting(FileFlows._chmod)
    clone = awaiting(FileFlows._clone)
    upload = awaiting(FileFlows._upload)
    download = awaiting(FileFlows._download)
    upload_tree = awaiting(FileFlows._upload_tree)
    download_tree = awaiting(FileFlows._download_tree)
