"""What every file below a directory is, in one word each: for comparing two trees without carrying them anywhere."""

from __future__ import annotations

import hashlib
import json
import os
import stat

from cloche.path_text import to_text
from cloche_guest.files.frames import CHUNK
from cloche_guest.files.worker.channel import Channel, Json, Refused, open_regular, refusal, speaking_of
from cloche_guest.files.worker.facts import kind_of
from cloche_guest.files.worker.listing import walk


def hashes(channel: Channel, order: Json) -> None:
    """``path``, ``limit``. The result, then lines of JSON: ``[relative path, word]``, in the order of a walk; a last line
    ``null`` says that there are more than ``limit``."""
    path: str = order["path"]
    with speaking_of(path):
        root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            channel.answer({"ready": True})
            _send(channel, root, order["limit"])
        finally:
            os.close(root)
    channel.end()


def _send(channel: Channel, root: int, limit: int) -> None:
    pending = bytearray()
    for count, found in enumerate(walk(channel, root, None)):
        line = (
            None
            if count == limit
            else [to_text(found.path), found.error or _word(channel, found.directory, found.name)]
        )
        if line is None or line[1] is not None:
            pending += json.dumps(line).encode() + b"\n"
        if line is None:
            break
        if len(pending) > CHUNK // 2:
            channel.data(bytes(pending))
            pending.clear()
    if pending:
        channel.data(bytes(pending))


def _word(channel: Channel, directory: int, name: str) -> str | None:
    """SHA-256 of a file, ``-> target`` of a link, the kind of anything else, the code of the error for what cannot be read;
    None: it has gone meanwhile."""
    try:
        facts = os.lstat(name, dir_fd=directory)
        if stat.S_ISLNK(facts.st_mode):
            return f"-> {to_text(os.readlink(name, dir_fd=directory))}"
        return _sha256(channel, directory, name) if stat.S_ISREG(facts.st_mode) else kind_of(facts)
    except Refused as error:
        return error.code
    except OSError as error:
        return None if isinstance(error, FileNotFoundError) else refusal(error, name).code


def _sha256(channel: Channel, directory: int, name: str) -> str:
    fd = open_regular(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
    digest = hashlib.sha256()
    try:
        while data := os.read(fd, CHUNK):
            channel.check()
            digest.update(data)
    finally:
        os.close(fd)
    return digest.hexdigest()
