"""The runtime alone: what `runsc` itself takes to save a sandbox and to make another of it, without server and driver.

The same binary, flags, image, configuration and processes as in a sandbox of Cloche: the guest is there (on a loopback
port, since nobody answers an uplink) with a kernel that ran the same code. Its kernel writes a byte into a pipe every
millisecond, so the first byte of a restored one is a word from the live kernel. No cgroup, and the host's own disk.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cloche.models import Resources
from cloche_server.drivers import SandboxSpec
from cloche_server.drivers._launch_orders import Stage
from cloche_server.drivers._layout import SandboxPaths
from cloche_server.drivers._oci_spec import build_config
from cloche_server.drivers._runtimes import Gvisor
from cloche_server.ids import new_sandbox_id

CLONE_NEWNS: Final = 0x20000
BOUND_S: Final = 30.0
PORT: Final = 9000
PYTHON: Final = "/opt/cloche/bin/python"

PID_1: Final = f"mkfifo -m 666 /tmp/ticks; {PYTHON} -OO -m cloche_guest 2>/dev/null & exec cat /tmp/ticks"

TICKS: Final = """
def write_ticks():
    import time
    with open("/tmp/ticks", "wb", buffering=0) as ticks:
        while True:
            ticks.write(b".")
            time.sleep(0.001)
import threading
threading.Thread(target=write_ticks, daemon=True).start()
"""

RUN: Final = f"""
import sys, time, urllib.request
url = "http://127.0.0.1:{PORT}/v1/contexts/default/runs"
order = urllib.request.Request(url, sys.argv[1].encode(), {{"Content-Type": "application/json"}})
for _ in range(200):
    try:
        urllib.request.urlopen(order)
        break
    except urllib.error.HTTPError as error:
        sys.exit(error.read().decode())
    except OSError:  # it does not listen yet
        time.sleep(0.05)
"""


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds. ``save``: the command that saves, to its end. ``create``: all of a sandbox but its processes. ``restore``: to
    the first byte from the live kernel."""

    save: float
    create: float
    restore: float


class BareRunsc:
    """One sandbox that was started by hand, to be forked by hand. Needs root; its mounts are this process' own."""

    def __init__(self, rootfs: Path, code: str) -> None:
        binary = Gvisor().find()
        if binary is None:
            raise FileNotFoundError("runsc is not installed")
        self._binary, self._rootfs, self._code = binary, rootfs, code
        self._home = Path(tempfile.mkdtemp(prefix="cloche-bench-"))
        self._stage = Stage(str(self._home))
        self._alive: list[_Bare] = []

    def __enter__(self) -> Self:
        try:
            self._mount()
            self._source = self._new()
            self._source.begin(self._stage)
            body = json.dumps({"code": self._code + TICKS})
            self._source.command("exec", self._source.spec.sandbox_id, PYTHON, "-c", RUN, body)
            self._source.first_byte()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for one in self._alive:
            one.end()
        subprocess.run(["umount", "-l", self._stage.root], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self._home, ignore_errors=True)

    def fork(self) -> Took:
        """Save it, it goes on; make another of that, and end it."""
        saved, source, child = self._home / "saved", self._source, self._new()
        image = f"--image-path={saved}"
        times = [time.perf_counter()]
        source.drain()
        source.command("checkpoint", "--leave-running", "--compression=none", image, source.spec.sandbox_id)
        times.append(time.perf_counter())
        child.begin(self._stage, checkpoint=saved)
        times.append(time.perf_counter())
        child.command("restore", "--detach", image, child.spec.sandbox_id)
        child.first_byte()
        times.append(time.perf_counter())
        child.end()
        self._alive.remove(child)
        shutil.rmtree(saved)
        return Took(*(after - before for before, after in itertools.pairwise(times)))

    def _mount(self) -> None:
        """As the launcher does for gVisor: a layer over the image that is read only."""
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) < 0:
            raise OSError(ctypes.get_errno(), "unshare: needs root")
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        for name in ("points", "root", "disk", "uplink"):
            (self._home / name).mkdir()
        options = f"ro,lowerdir={self._home}/points:{self._rootfs}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, self._stage.root], check=True)

    def _new(self) -> _Bare:
        bare = _Bare(self._home, self._rootfs, self._stage, self._binary)
        self._alive.append(bare)
        return bare


class _Bare:
    """One sandbox of the runtime."""

    def __init__(self, home: Path, rootfs: Path, stage: Stage, binary: Path) -> None:
        env = {"CLOCHE_GUEST_LISTEN": f"127.0.0.1:{PORT}", "PATH": "/opt/venv/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        self.spec = SandboxSpec(
            new_sandbox_id(), "bench", rootfs, Resources(), home / "uplink", env, ("/bin/sh", "-c", PID_1)
        )
        self.paths = SandboxPaths(home / self.spec.sandbox_id, Path("/nowhere"))
        self._binary = binary
        self._ticks, self._sink = os.pipe()
        for directory in (self.paths.bundle, self.paths.runtime):
            directory.mkdir(parents=True)
        isolation = replace(Gvisor().isolation_for(self.spec, stage, None, ""), cgroup_path=None)
        (self.paths.bundle / "config.json").write_text(json.dumps(build_config(self.spec, stage, isolation)))

    def begin(self, stage: Stage, checkpoint: Path | None = None) -> None:
        """With a checkpoint: all of it but its processes."""
        self.run(Gvisor().argv(self._binary, self.paths, stage, replace(self.spec, checkpoint=checkpoint)))

    def run(self, argv: Sequence[str]) -> None:
        """Whatever the sandbox says goes into the pipe of ticks."""
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self._sink) as command:
            pidfd = os.pidfd_open(command.pid)  # waiting with a bound in `subprocess` looks every 50 ms
            if not select.select([pidfd], [], [], BOUND_S)[0]:
                command.kill()
            os.close(pidfd)
        if command.returncode:
            raise subprocess.CalledProcessError(command.returncode, argv)

    def command(self, *words: str) -> None:
        self.run((str(self._binary), "--network=none", f"--root={self.paths.runtime}", *words))

    def first_byte(self) -> None:
        if not select.select([self._ticks], [], [], BOUND_S)[0]:
            raise TimeoutError(f"the kernel said nothing in {BOUND_S:g} s")

    def drain(self) -> None:
        """So that the kernel inside never waits for us."""
        os.set_blocking(self._ticks, False)
        with suppress(BlockingIOError):
            while os.read(self._ticks, 65_536):
                pass

    def end(self) -> None:
        with suppress(subprocess.SubprocessError):
            self.command("delete", "--force", self.spec.sandbox_id)
        os.close(self._ticks)
        os.close(self._sink)
