"""Which volumes a sandbox may have, and where. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from cloche.errors import InvalidRequest
from cloche.models import VolumeAttachment
from cloche_server.drivers import check_target

MAX_NAME_BYTES: Final = 255
"""Of one part of a path, on every file system of Linux."""

LINKS: Final = ("/var/run", "/var/lock")
"""Links into /run in every image."""


def check_targets(attachments: Sequence[VolumeAttachment]) -> None:
    """`InvalidRequest` for paths where no volume can be, and for two of which one is in the other."""
    for attachment in attachments:
        _check_target(attachment.path)
    paths = sorted(f"{attachment.path}/" for attachment in attachments)
    for outer, inner in pairwise(paths):  # whatever is below ``outer`` comes right behind it
        if inner.startswith(outer):
            raise _refused(inner[:-1], f"{outer[:-1]} is a volume already")


def _check_target(path: str) -> None:
    try:
        check_target(path)
    except ValueError as error:
        raise _refused(path, str(error)) from error
    if not path.isprintable() or any(len(part.encode()) > MAX_NAME_BYTES for part in path.split("/")):
        raise _refused(path, "not a plain absolute path")
    if any(path == link or path.startswith(f"{link}/") for link in LINKS):
        raise _refused(path, "it leads to /run")


def _refused(path: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"no volume can be at {path!r}: {why}",
        hint="choose a directory of its own, as /data, or one below /workspace",
        details={"field": "volumes", "path": path},
    )
