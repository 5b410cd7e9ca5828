"""Whole trees as tar streams."""

from __future__ import annotations

import os

from cloche.path_text import to_text
from cloche.tar_stream import TarError
from cloche.trees import Unpacker, packed
from cloche_guest.files.worker.channel import Channel, Json, Refused, printable, refusal, speaking_of


def download(channel: Channel, order: Json) -> None:
    """``path``: a directory. The result, then the stream."""
    path: str = order["path"]
    with speaking_of(path):
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        channel.answer({"ready": True})
        for piece in packed(path):
            channel.data(piece)
    channel.end()


def upload(channel: Channel, order: Json) -> None:
    """``path``, ``parents``: the directory, made if need be; then the stream."""
    path: str = order["path"]
    with speaking_of(path):
        if order["parents"]:
            os.makedirs(path, exist_ok=True)
        elif not os.path.isdir(path):
            os.mkdir(path)
        unpacker = Unpacker(path, links="any")
    with unpacker:
        channel.answer({"ready": True})
        try:
            for data in channel.body():
                unpacker.feed(data)
            unpacker.finish()
        except TarError as error:
            member = to_text(error.member)
            message = f"the tar stream was refused: {printable(str(error))}"
            raise Refused("bad_archive", message, member=member, problem=error.problem) from error
        except OSError as error:
            raise refusal(error, f"{path}/{error.filename}") from error
        counts = unpacker.counts
    channel.answer(
        {"files": counts.files, "directories": counts.directories, "links": counts.links, "bytes": counts.bytes}
    )
