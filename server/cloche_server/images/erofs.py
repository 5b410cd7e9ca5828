"""An image's tree as one file, an EROFS file system, for gVisor: its user-space kernel maps the file and needs nobody
outside to look at a path. The host's page cache holds it once for all sandboxes, and none of it is saved in a snapshot.

The file is made with the tree and lies beside it. Nothing mounts it on the host.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from cloche_server.images.errors import BuilderMissing
from cloche_server.images.process import Report, run

EROFS_NAME: Final = "root.erofs"

_OPTIONS: Final = (
    "--quiet",  # else a line per file
    "-d1",
    "-Enoinline_data",  # tails in the inode's block: the pinned runsc answers EFAULT when it maps one
    "--preserve-mtime",  # else every .pyc is older than its source, and Python compiles again at each start
)


def check_tool() -> None:
    """`BuilderMissing` before a long build, not after it."""
    if shutil.which("mkfs.erofs") is None:
        raise BuilderMissing("mkfs.erofs is missing: images need it", hint="apt-get install erofs-utils")


def write_erofs(rootfs: Path, report: Report) -> None:
    """Makes `EROFS_NAME` beside ``rootfs``. Measured: 6.5 s for 944 MB. Raises `ImageBuildFailed`."""
    run(
        ["mkfs.erofs", *_OPTIONS, str(rootfs.with_name(EROFS_NAME)), str(rootfs)],
        "packing the tree for gVisor",
        report,
    )
