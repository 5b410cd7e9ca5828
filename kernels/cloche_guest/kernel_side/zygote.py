"""The zygote: a process with the imports of a kernel done, which becomes a kernel by forking.

Rules
-----
* One thread, no ZMQ context, no event loop and no IPython shell in here: none of them survives a fork. With a second
  thread every fork is refused.
* Messages are packets on one socket, JSON each: orders of the guest, answers, and exits of kernels. A kernel that has
  exited stays a zombie until the guest has noted it, so its number names nobody else until then.
* The kernel begins at the outermost frame of the program (`serve` returns in it), so its end runs what ends a program.
* What pip changes after the imports makes this process stale: a kernel would have old modules in memory and new ones on
  the disk. Every order looks at that first.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._limits import be_killed_before_the_guest, die_with_the_guest
from ._packages import STALE, package_directories, package_times
from ._process_environment import Shown, replace_environment
from ._seeding import seed_generators

PACKET_BYTES = 256 * 1024
"""Above the largest packet of the guest: Linux' default for a socket's buffer is 208 KiB."""

_HARMLESS_THREADS = frozenset(("jemalloc_bg_thd",))
"""jemalloc prepares itself for forks."""


@dataclass(frozen=True)
class Order:
    """What the forked process is to become: arguments of `app.main`."""

    connection_file: str
    options: str
    shown: Shown


class Refused(Exception):
    """This fork cannot be made; the words say why."""


def serve(descriptor: int) -> Order:
    """Returns in a forked kernel only; the zygote ends with its guest."""
    die_with_the_guest()
    be_killed_before_the_guest()
    return _Zygote(socket.socket(fileno=descriptor)).serve()


class _Zygote:
    def __init__(self, guest: socket.socket) -> None:
        self._guest = guest
        self._shown = Shown()
        self._kernels: set[int] = set()
        self._reported: set[int] = set()
        self._wake, waker = os.pipe()
        self._waker = waker
        for end in (self._wake, waker):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self._packages = package_times(package_directories())

    def serve(self) -> Order:
        poll = select.poll()
        poll.register(self._guest, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._wake:
                    self._report_exits()
                elif (order := self._take_message()) is not None:
                    return order

    def _take_message(self) -> Order | None:
        data, descriptors, _, _ = socket.recv_fds(self._guest, PACKET_BYTES, 4)
        if not data:
            os._exit(0)  # the guest has ended
        message = json.loads(data)
        match message["do"]:
            case "fork":
                return self._fork(message, descriptors)
            case "preload":
                self._send({"answer": message["id"], **self._preload(message["modules"])})
            case "reap":
                self._reap(message["pid"])
        return None

    def _preload(self, modules: Sequence[str]) -> dict[str, Any]:
        """Import; what cannot be imported is left to whoever wants it."""
        if self._has_other_packages():
            return {"refused": STALE}
        failed = [name for name in modules if not _can_import(name)]
        _fork_for_nothing()
        gc.collect()
        gc.freeze()  # a collection in a kernel would copy every page that holds an object (measured: 19 instead of 4 MB)
        self._packages = package_times(package_directories())  # imports may make directories for byte code
        return {"failed": failed}

    def _has_other_packages(self) -> bool:
        return self._packages != package_times(package_directories())

    def _fork(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> Order | None:
        answer: dict[str, Any] = {"answer": message["id"]}
        try:
            pid = self._fork_in(message)
        except OSError as error:
            answer |= {"errno": error.errno, "strerror": error.strerror, "filename": error.filename}
        except Refused as error:
            answer |= {"refused": str(error)}
        else:
            if pid == 0:
                return self._become_kernel(message, descriptors)
            self._kernels.add(pid)
            answer |= {"pid": pid}
        for descriptor in descriptors:
            os.close(descriptor)
        self._send(answer)
        return None

    def _fork_in(self, message: Mapping[str, Any]) -> int:
        """In the directory that the kernel is to have, so that a bad one is an error here."""
        if self._has_other_packages():
            raise Refused(STALE)
        if threads := _strange_threads():
            raise Refused(f"threads are running: {', '.join(threads)}")
        os.chdir(message["cwd"])
        pid = os.fork()
        if pid:
            os.chdir("/")
        return pid

    def _become_kernel(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> Order:
        """All that exec would have done."""
        ready, log, life = descriptors
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for target in (1, 2):
            os.dup2(log, target)
        os.close(log)
        self._guest.close()
        os.close(self._wake)
        os.close(self._waker)
        replace_environment(message["env"])
        tempfile.tempdir = None
        seed_generators(os.urandom(32))
        options = {**message["options"], "ready_fd": ready, "life_fd": life, "packages": self._packages}
        order = Order(message["connection_file"], json.dumps(options), self._shown)
        self._shown.write(message["shown"], message["env"])
        sys.argv[1:] = [order.connection_file, order.options]
        return order

    def _report_exits(self) -> None:
        while _read_some(self._wake):
            pass
        for pid in self._kernels - self._reported:
            result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if result is not None:
                self._reported.add(pid)
                by_signal = result.si_code != os.CLD_EXITED
                self._send({"exited": pid, "by_signal": by_signal, "status": result.si_status})

    def _reap(self, pid: int) -> None:
        if pid in self._reported:
            os.waitpid(pid, 0)
            self._kernels.discard(pid)
            self._reported.discard(pid)

    def _send(self, message: Mapping[str, Any]) -> None:
        self._guest.sendall(json.dumps(message).encode())


def _can_import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except Exception:
        return False
    return True


def _strange_threads() -> list[str]:
    """Names of threads that would be missing in a fork, and may hold locks there."""
    others = [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]
    names = [(task / "comm").read_text().strip() for task in others]
    return [name for name in names if name not in _HARMLESS_THREADS]


def _fork_for_nothing() -> None:
    """OpenBLAS starts threads when it is imported, and ends them before a fork; those of a kernel start when it needs them.
    After this any thread that is left is another library's."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _read_some(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except BlockingIOError:
        return b""
