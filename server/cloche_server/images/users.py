"""Which sandboxes read from an image, as the kernel sees it: mounts on this machine whose lower layer is the tree.

A backstop for the command line, which works without a server. The server knows stopped sandboxes, too, and passes its
own function to `ImageStore.remove`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cloche_server.images.store import ImageStore, InUse


def sandboxes_over(store: ImageStore, mounts: Path = Path("/proc/self/mountinfo")) -> InUse:
    """An `InUse` that names mount points. Sees only mounts in the mount namespace that ``mounts`` is of."""

    def users(digest: str) -> Sequence[str]:
        tree = str(store.root / digest.removeprefix("sha256:"))
        return [line.split()[4] for line in mounts.read_text().splitlines() if tree in line]

    return users
