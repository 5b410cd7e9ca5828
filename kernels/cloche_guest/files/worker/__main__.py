"""``python -m cloche_guest.files.worker FD [UID GID GROUPS]``: a socket over which connections come, one for each operation.

A thread does one operation. The number of threads is bounded by the guest, which opens the connections.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import threading
from collections.abc import Callable
from typing import Final

from cloche_guest.files.worker import changes, content, git, hashes, listing, search, trees, watch
from cloche_guest.files.worker.channel import Channel, Hangup, Json, Refused, refusal

OPERATIONS: Final[dict[str, Callable[[Channel, Json], None]]] = {
    "read": content.read,
    "write": content.write,
    "stat": listing.stat_file,
    "list": listing.list_directory,
    "glob": listing.glob,
    "mkdir": changes.mkdir,
    "move": changes.move,
    "copy": changes.copy,
    "remove": changes.remove,
    "chmod": changes.chmod,
    "search": search.search,
    "hashes": hashes.hashes,
    "download_tree": trees.download,
    "upload_tree": trees.upload,
    "clone": git.clone,
    "watch": watch.watch,
}

MAX_DESCRIPTORS: Final = 65_536

WITH_BODY: Final = frozenset({"write", "upload_tree"})


def serve(control: socket.socket) -> None:
    """Until the guest closes its end."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        for fd in descriptors:
            connection = socket.socket(fileno=fd)
            threading.Thread(target=handle, args=(connection,), daemon=True).start()


def handle(connection: socket.socket) -> None:
    """One operation, from its request to its end."""
    with connection:
        channel = Channel(connection)
        try:
            order = channel.request()
            try:
                OPERATIONS[order["op"]](channel, order)
            except Refused as error:
                _refuse(channel, order, error)
            except OSError as error:
                _refuse(channel, order, refusal(error, order.get("path", "")))
        except Hangup:
            return


def _refuse(channel: Channel, order: Json, error: Refused) -> None:
    channel.answer({"error": {"code": error.code, "message": error.message, "details": error.details}})
    if order["op"] in WITH_BODY:
        for _ in channel.body():  # the guest reads our answer when it has time; closing now might cost it the answer
            pass


def become(uid: int, gid: int, groups: list[int]) -> None:
    """For good: without uid 0 no capability is left. The kernel then also lets nobody of the same uid debug this process."""
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def allow_descriptors() -> None:
    """Recursive work holds one or two for each level of a tree; the usual soft limit of 1024 is for programs with select."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, MAX_DESCRIPTORS), hard))


def main() -> None:
    if len(sys.argv) > 2:
        become(int(sys.argv[2]), int(sys.argv[3]), [int(group) for group in sys.argv[4].split(",")])
    allow_descriptors()
    os.umask(content.UMASK)
    os.chdir("/")
    threading.stack_size(512 * 1024)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        serve(control)
    os._exit(0)  # threads may be in the middle of something for which nobody waits any more


if __name__ == "__main__":
    main()
