"""Does a driver work on this machine? Start a real sandbox of three files, hear from it, remove it.

The root file system is the host's own shell and ``sleep`` with the libraries they need: no image has to be there.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import string
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from cloche.errors import ClocheError
from cloche_server.child_process import kill_and_drain
from cloche_server.drivers._base import Probe, SandboxSpec, SelfTest
from cloche_server.drivers._runtimes import Runtime

WORD: Final = "cloche-self-test"
PROGRAMS: Final = ("/bin/sh", "/bin/sleep")
HOST_TOOLS: Final = {"mkfs.ext4": "e2fsprogs", "cp": "coreutils", "setpriv": "util-linux"}
"""What the launcher runs, and the Debian package that has it."""

IDMAPPED_OVERLAY: Final = (5, 19)
"""The first Linux that takes an id-mapped mount below an overlay, for what is read and for what is written."""

VERSION_BOUND_S: Final = 5.0


class _Startable(Protocol):
    async def start(self, spec: SandboxSpec, probe: Probe | None = None) -> None: ...
    async def destroy(self, sandbox_id: str) -> None: ...
    async def console(self, sandbox_id: str) -> str: ...


@dataclass(frozen=True, slots=True)
class _TinyResources:
    cpus: float = 1.0
    memory_mb: int = 256
    max_processes: int = 64
    disk_mb: int = 64


async def run_self_test(driver: _Startable, runtime: Runtime, run_dir: Path) -> SelfTest:
    """Never raises for a machine on which the driver cannot work; says why and what to do."""
    failed = SelfTest(runtime.name, runtime.isolation, works=False)
    if (problem := _missing(runtime)) is not None:
        return _because(failed, *problem, version=None)
    version = await version_of(runtime)
    begun = time.monotonic()
    try:
        await _start_tiny(driver, run_dir)
    except (ClocheError, OSError, LookupError) as error:
        return _because(failed, str(error), f"see docs/drivers.md, {runtime.name}: what it needs", version)
    elapsed = time.monotonic() - begun
    return SelfTest(runtime.name, runtime.isolation, True, version, runtime.capabilities, start_seconds=elapsed)


def _because(failed: SelfTest, why_not: str, how_to_fix: str, version: str | None) -> SelfTest:
    return SelfTest(failed.driver, failed.isolation, False, version, why_not=why_not, how_to_fix=how_to_fix)


def _missing(runtime: Runtime) -> tuple[str, str] | None:
    """What stands in the way before anything is tried: (why not, how to fix)."""
    if os.geteuid() != 0:
        return "the server does not run as root", "run it as root; sandboxes get user ids of their own"
    if runtime.find() is None:
        return "its runtime is not installed", runtime.how_to_get
    if (release := os.uname().release) and runtime.shares_kernel and kernel_version(release) < IDMAPPED_OVERLAY:
        needed = ".".join(map(str, IDMAPPED_OVERLAY))
        return f"Linux {release} has no overlay over id-mapped mounts", f"Linux {needed} or later, or driver gvisor"
    for tool, package in HOST_TOOLS.items():
        if shutil.which(tool, path="/usr/sbin:/usr/bin:/sbin:/bin") is None:
            return f"{tool} is not installed", f"apt-get install {package}"
    return None


def kernel_version(release: str) -> tuple[int, int]:
    """The first two numbers of ``uname -r``; (0, 0) for one without."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


async def _start_tiny(driver: _Startable, run_dir: Path) -> None:
    sandbox_id = "selftest" + "".join(secrets.choice(string.ascii_lowercase) for _ in range(12))
    with tempfile.TemporaryDirectory(prefix="self-test-", dir=_made(run_dir)) as scratch:
        rootfs, uplink = Path(scratch, "rootfs"), Path(scratch, "uplink")
        programs = {program: await _libraries(program) for program in PROGRAMS}
        await asyncio.to_thread(_build_tree, rootfs, uplink, programs)
        argv = ("/bin/sh", "-c", f"echo {WORD}; exec /bin/sleep 60")
        spec = SandboxSpec(sandbox_id, "self-test", rootfs, _TinyResources(), uplink, guest_argv=argv)
        try:
            await driver.start(spec, lambda: _heard(driver, sandbox_id))
        finally:
            await driver.destroy(sandbox_id)


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


async def _heard(driver: _Startable, sandbox_id: str) -> None:
    while WORD not in await driver.console(sandbox_id):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def _build_tree(rootfs: Path, uplink: Path, programs: Mapping[str, Sequence[str]]) -> None:
    uplink.mkdir()
    for program, libraries in programs.items():
        for file in (program, *libraries):
            target = rootfs / file.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    for name in ("proc", "sys", "dev", "tmp", "run/cloche"):
        (rootfs / name).mkdir(parents=True)
    for directory in (rootfs, *(path for path in rootfs.rglob("*") if path.is_dir())):
        directory.chmod(0o755)


async def _libraries(program: str) -> list[str]:
    """Absolute paths in what ``ldd`` prints, the loader among them."""
    output = await _output("ldd", program)
    return [word for word in output.split() if word.startswith("/")]


async def version_of(runtime: Runtime) -> str | None:
    """The first line of ``--version``; None when the binary says nothing in time."""
    try:
        return (await _output(str(runtime.find()), "--version")).splitlines()[0].split("version ")[-1]
    except (OSError, TimeoutError, IndexError):
        return None


async def _output(*argv: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(VERSION_BOUND_S):
            return (await process.communicate())[0].decode(errors="replace")
    finally:
        await kill_and_drain(process)
