"""Real sandboxes for tests: a host-side uplink, a handle with ``run``, and what the host looks like when nothing is left."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import string
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cloche_server.drivers import OciDriver, SandboxSpec

INSIDE = Path(__file__).with_name("inside.py").read_text()

FULL = bool(os.environ.get("CLOCHE_TEST_FULL"))
"""The long form of what repeats: many moments of a kill instead of some."""


@dataclass(frozen=True)
class Limits:
    """Small, so that bombs are quick."""

    cpus: float = 2.0
    memory_mb: int = 384
    max_processes: int = 96
    disk_mb: int = 96


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    ms: int


class Uplink:
    """The listening end, as the server has it. Made again in the same directory it is a new server's."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.path = directory / "uplink.sock"
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        os.chmod(self.path, 0o600)
        self._listener.listen(8)

    def close(self) -> None:
        """Also ends an `ask` that waits in another thread."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def wait_for_dial(self, timeout_s: float) -> None:
        self._listener.settimeout(timeout_s)
        self._listener.accept()[0].close()

    def accept(self, timeout_s: float = 60) -> tuple[socket.socket, object]:
        """The next dial, held open."""
        self._listener.settimeout(timeout_s)
        return self._listener.accept()

    def ask(self, request: Mapping[str, object], timeout_s: float) -> Outcome:
        """One program run inside. `TimeoutError` when the sandbox does not dial or answer; stale dials are skipped."""
        self._listener.settimeout(timeout_s)
        for _ in range(8):
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(timeout_s + 10)
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile() as stream:
                    if line := stream.readline():
                        return Outcome(**json.loads(line))
        raise TimeoutError("only dead connections")


def new_id() -> str:
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(20))


@dataclass
class Sandbox:
    """A started sandbox with `inside.py` as PID 1."""

    driver: OciDriver
    uplink: Uplink
    id: str = field(default_factory=new_id)

    def run(self, code: str, *, user: bool = False, timeout_s: float = 120) -> Outcome:
        return self.uplink.ask({"code": code, "user": user, "timeout_s": timeout_s}, timeout_s + 10)

    def check(self, code: str, *, user: bool = False, timeout_s: float = 120) -> str:
        """Output of a program that must succeed."""
        outcome = self.run(code, user=user, timeout_s=timeout_s)
        assert outcome.code == 0, outcome
        return outcome.out.strip()


def make_spec(sandbox_id: str, rootfs: Path, uplink: Path, **changes: object) -> SandboxSpec:
    values: dict[str, object] = {
        "sandbox_id": sandbox_id,
        "epoch": "test",
        "rootfs": rootfs,
        "resources": Limits(),
        "uplink_directory": uplink,
        "guest_argv": ("/usr/bin/python3", "-uIc", INSIDE),
    }
    return SandboxSpec(**(values | changes))  # type: ignore[arg-type]


@contextmanager
def running(driver: OciDriver, rootfs: Path, scratch: Path, **changes: object) -> Iterator[Sandbox]:
    """Start one, stop it at the end. For synchronous tests: every call of the driver gets an event loop of its own."""
    uplink = Uplink(scratch)
    sandbox = Sandbox(driver, uplink)
    try:
        asyncio.run(driver.start(make_spec(sandbox.id, rootfs, uplink.directory, **changes)))
        yield sandbox
    finally:
        asyncio.run(driver.destroy(sandbox.id))
        sandbox.uplink.close()


@dataclass(frozen=True)
class Traces:
    """Everything of a sandbox that can be left on a host."""

    mounts: frozenset[str]
    loops: frozenset[str]
    cgroups: frozenset[str]
    files: frozenset[str]
    processes: frozenset[str]


def traces(sandbox_id: str, *roots: Path) -> Traces:
    """What mentions the id: mounts in any namespace, loop devices, cgroups, files, command lines and open processes."""
    return Traces(
        mounts=frozenset(line for line in _all_mounts() if sandbox_id in line),
        loops=frozenset(text for text in _loops() if sandbox_id in text),
        cgroups=frozenset(str(path) for path in Path("/sys/fs/cgroup").glob(f"*/cloche/{sandbox_id}")),
        files=frozenset(str(path) for path in _all_files(roots) if sandbox_id in path.name) | _slots(sandbox_id, roots),
        processes=frozenset(line for line in _command_lines() if sandbox_id in line),
    )


HELD = """
import os, socket
server = socket.socket(socket.AF_UNIX)
server.connect('/run/cloche/uplink.sock')
print('bye', flush=True)
server.recv(1)
os._exit(7)
"""
"""A guest that ends, with 7, when its uplink is closed."""


NOTHING = Traces(*[frozenset()] * 5)


def _slots(sandbox_id: str, roots: tuple[Path, ...]) -> frozenset[str]:
    found = set()
    for link in (path for path in _all_files(roots) if path.parent.name == "ids"):
        with suppress(OSError):  # it is given back at this moment
            if os.readlink(link) == sandbox_id:
                found.add(str(link))
    return frozenset(found)


def _all_files(roots: tuple[Path, ...]) -> Iterator[Path]:
    """And directories. They may be removed meanwhile: pathlib's own search fails then."""
    for root in roots:
        for directory, names, files in os.walk(root):
            yield from (Path(directory, name) for name in (*names, *files))


def _all_mounts() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            yield from path.read_text().splitlines()
        except OSError:
            continue


def _loops() -> Iterator[str]:
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            yield path.read_text()
        except OSError:
            continue


def _command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
