"""Gets the Debian 12 base: from a registry where one answers, else made here with mmdebstrap (about 25 s)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from cloche_server.images.builder import Builder
from cloche_server.images.errors import BuilderMissing
from cloche_server.images.mirror import SUITE, debian_lines
from cloche_server.images.process import Report, run
from cloche_server.images.recipe import DEBIAN_TAG

_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_STANDARD_SOURCES: Final = (
    'grep "^deb " "$1/usr/share/doc/apt/examples/sources.list"'
    ' | sed "s/ main .*/ main/" > "$1/etc/apt/sources.list"; rm -f "$1"/etc/apt/sources.list.d/*'
)
"""mmdebstrap hook: Debian's own example list replaces the mirror of this machine, which the image must not name."""


def ensure_base(builder: Builder, base: str, scratch: Path, report: Report, *, fresh: bool) -> bool:
    """Makes ``base`` (a name for Debian 12) usable; True when what stands for it is mmdebstrap's `DEBIAN_TAG`.

    ``fresh`` gets it anew, with today's security updates. Raises `BuilderMissing` where neither way is open.
    """
    if not fresh:
        if builder.has(DEBIAN_TAG):
            return True
        if builder.has(base):
            return False
    report(f"base: asking a registry for {base}")
    if builder.pull(base, report):
        report(f"base: {base} from the registry")
        return False
    report("base: no registry reachable, so Debian 12 is made here with mmdebstrap (about 25 s)")
    _make_debian(builder, scratch, report)
    return True


def _make_debian(builder: Builder, scratch: Path, report: Report) -> None:
    if shutil.which("mmdebstrap") is None:
        raise BuilderMissing("no registry is reachable and mmdebstrap is missing", hint="apt-get install mmdebstrap")
    tarball = scratch / "debian.tar"
    signed = f"[signed-by={_KEYRING}] " if _KEYRING.exists() else ""
    argv = ["mmdebstrap", "--variant=minbase", "--include=ca-certificates"]
    argv += [f"--customize-hook={_STANDARD_SOURCES}", SUITE, str(tarball), *debian_lines(signed)]
    run(argv, "making the Debian base with mmdebstrap", report, env={"TMPDIR": str(scratch)})
    builder.import_tar(tarball, DEBIAN_TAG, report)
    tarball.unlink()
