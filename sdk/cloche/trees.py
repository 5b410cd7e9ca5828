"""Trees of files from and to tar streams: `packed` and `Unpacker`. Blocking; standard library only.

Used inside sandboxes and by the SDK, where the stream comes from a sandbox and must not be trusted. Every step goes
through directory descriptors and follows no link: names are taken apart, absolute ones and ``..`` are refused, and each
directory on the way is opened with O_NOFOLLOW. So neither a link among the members nor one that somebody swaps in
meanwhile leads anywhere else.

What a stream carries: files, directories, symlinks, permission bits without setuid, setgid and sticky, times of files.
Hard links become files of their own, owners are those of whoever unpacks, holes of sparse files are filled.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from cloche.tar_stream import END, Item, Member, MemberEnd, TarError, TarParser, encode_header, padding

CHUNK: Final = 256 * 1024
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class TreeCounts:
    """What went through."""

    files: int = 0
    directories: int = 0
    links: int = 0
    bytes: int = 0


def packed(root: str) -> Iterator[bytes]:
    """The tree below the directory `root` as a tar stream, names relative to it. Devices, FIFOs and sockets are left out.

    Raises:
        OSError: something cannot be read; the stream is incomplete then.
    """
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mode = stat.S_IMODE(os.fstat(fd).st_mode) & 0o777
        yield from _gathered(_pieces(fd, mode))
    finally:
        os.close(fd)


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Headers are small: they go out together with what follows them."""
    pending = bytearray()
    for piece in pieces:
        pending += piece
        if len(pending) >= CHUNK:
            yield bytes(pending)
            pending.clear()
    if pending:
        yield bytes(pending)


def _pieces(root: int, mode: int) -> Iterator[bytes]:
    """Depth first with a stack of its own: trees may be deeper than Python recurses."""
    yield encode_header(Member("./", "directory", mode=mode))
    stack: list[tuple[int, str, Iterator[str]]] = [(os.dup(root), "", iter(sorted(os.listdir(root))))]
    try:
        while stack:
            fd, prefix, names = stack[-1]
            name = next(names, None)
            if name is None:
                os.close(stack.pop()[0])
                continue
            below = yield from _entry(fd, name, prefix + name)
            if below is not None:
                stack.append((below, f"{prefix}{name}/", iter(sorted(os.listdir(below)))))
    finally:
        for fd, _, _ in stack:
            os.close(fd)
    yield END


def _entry(directory: int, name: str, path: str) -> Generator[bytes, None, int | None]:
    """Returns the descriptor of a directory that is to be packed next."""
    try:
        facts = os.lstat(name, dir_fd=directory)
        if stat.S_ISLNK(facts.st_mode):
            link = os.readlink(name, dir_fd=directory)
            yield encode_header(Member(path, "symlink", mode=0o777, mtime=facts.st_mtime, link=link))
        elif stat.S_ISDIR(facts.st_mode):
            below = os.open(name, _DIRECTORY, dir_fd=directory)
            yield encode_header(Member(path, "directory", mode=facts.st_mode & 0o777, mtime=facts.st_mtime))
            return below
        elif stat.S_ISREG(facts.st_mode):
            yield from _file(directory, name, path)
    except FileNotFoundError:
        pass  # gone since the directory was read: as if it had never been there
    return None


def _file(directory: int, name: str, path: str) -> Iterator[bytes]:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=directory), "rb", buffering=0) as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            return
        yield encode_header(Member(path, "file", facts.st_size, facts.st_mode & 0o777, facts.st_mtime))
        left = facts.st_size
        while left:
            # A file that shrinks meanwhile is filled up, as tar does: the header has promised the size.
            data = file.read(min(CHUNK, left)) or bytes(min(CHUNK, left))
            yield data
            left -= len(data)
        yield padding(facts.st_size)


class Unpacker:
    """Puts a tar stream into the directory `root`, which exists. Use as a context manager: `feed`, then `finish`.

    Files that are there are replaced, directories are kept; what is where a directory is needed makes it fail.

    ``links="inside"``: a symlink that leads, or may lead, out of `root` is not made, and listed in `skipped`.
    """

    def __init__(self, root: str, *, links: Literal["any", "inside"]) -> None:
        self.counts = TreeCounts()
        self.skipped: list[str] = []
        self._only_inside = links == "inside"
        self._parser = TarParser()
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._parent: tuple[tuple[str, ...], int] = ((), os.dup(self._root))
        self._file: int | None = None
        self._member: Member | None = None
        self._modes: list[tuple[tuple[str, ...], int]] = []

    def __enter__(self) -> Unpacker:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._root, self._parent[1], self._file):
            if fd is not None:
                os.close(fd)
        self._file = None

    def feed(self, data: bytes) -> None:
        """
        Raises:
            TarError: broken or refused; what came before it is there.
            OSError: the file system refused; `filename` is the member's.
        """
        for item in self._parser.feed(data):
            self._take(item)

    def finish(self) -> None:
        """
        Raises:
            TarError: the stream ended too early.
        """
        self._parser.close()
        for parts, mode in reversed(self._modes):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                fd = self._open_directory(parts, make=False)
                try:
                    os.fchmod(fd, mode)
                finally:
                    os.close(fd)

    def _take(self, item: Item) -> None:
        if isinstance(item, bytes):
            self._write(item)
        elif isinstance(item, MemberEnd):
            self._end_member()
        else:
            self._member = item
            with self._naming(item):
                self._begin(item)

    @contextlib.contextmanager
    def _naming(self, member: Member) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = member.name
            raise

    def _begin(self, member: Member) -> None:
        parts = _parts(member.name)
        if not parts:
            if member.kind != "directory":
                raise TarError("a name is needed", member.name)
            return
        if member.kind == "directory":
            os.close(self._open_directory(parts, make=True))
            self._mark_mode(parts, member.mode & 0o777)
            self.counts.directories += 1
            return
        parent, name = self._directory_of(parts), parts[-1]
        self._make_room(parent, name)
        if member.kind == "file":
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(name, flags, 0o600, dir_fd=parent)
        elif member.kind == "symlink":
            self._symlink(member, parts, parent)
        else:
            self._hardlink(member, parent, name)

    def _write(self, data: bytes) -> None:
        assert self._member is not None
        if self._file is None:
            return
        with self._naming(self._member):
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
        self.counts.bytes += len(data)

    def _end_member(self) -> None:
        member, fd = self._member, self._file
        self._file = None
        if fd is None or member is None:
            return
        try:
            os.fchmod(fd, member.mode & 0o777)
            os.utime(fd, ns=(int(member.mtime * 1e9),) * 2)
        finally:
            os.close(fd)
        self.counts.files += 1

    def _symlink(self, member: Member, parts: tuple[str, ...], parent: int) -> None:
        if self._only_inside and not stays_inside(member.link, depth=len(parts) - 1):
            self.skipped.append(member.name)
            return
        os.symlink(member.link, parts[-1], dir_fd=parent)
        self.counts.links += 1

    def _hardlink(self, member: Member, parent: int, name: str) -> None:
        source = _parts(member.link)
        if not source:
            raise TarError("a hard link to nothing", member.name)
        fd = self._open_directory(source[:-1], make=False)
        try:
            if not stat.S_ISREG(os.lstat(source[-1], dir_fd=fd).st_mode):
                raise TarError("a hard link to something else than a file of the archive", member.name)
            os.link(source[-1], name, src_dir_fd=fd, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(fd)
        self.counts.links += 1

    def _make_room(self, parent: int, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)

    def _mark_mode(self, parts: tuple[str, ...], mode: int) -> None:
        """At the end: a directory that may not be written could not be filled."""
        if mode != 0o755:
            self._modes.append((parts, mode))

    def _directory_of(self, parts: tuple[str, ...]) -> int:
        """The parent's descriptor; kept, since members of one directory mostly come together."""
        if self._parent[0] != parts[:-1]:
            fd = self._open_directory(parts[:-1], make=True)
            os.close(self._parent[1])
            self._parent = (parts[:-1], fd)
        return self._parent[1]

    def _open_directory(self, parts: tuple[str, ...], *, make: bool) -> int:
        fd = os.dup(self._root)
        try:
            for part in parts:
                below = _step(fd, part, make=make)
                os.close(fd)
                fd = below
        except BaseException:
            os.close(fd)
            raise
        return fd


def _step(fd: int, part: str, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=fd)
    try:
        return os.open(part, _DIRECTORY, dir_fd=fd)
    except OSError as error:
        if stat.S_ISLNK(os.lstat(part, dir_fd=fd).st_mode):
            raise TarError("a symlink is in the way of a directory", part) from error
        raise


def _parts(name: str) -> tuple[str, ...]:
    if name.startswith("/"):
        raise TarError("an absolute name", name)
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise TarError("'..' in a name", name)
    return parts


def stays_inside(target: str, depth: int) -> bool:
    """Whether a link `depth` directories below the root cannot lead out of it, given that no other link there does.

    ``..`` is only good at the beginning: behind another name, that name may be a link that changes what it means.
    """
    if target.startswith("/") or not target:
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    return ups <= depth and ".." not in parts[ups:]
