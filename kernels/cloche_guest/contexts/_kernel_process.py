"""The process of one kernel: start it, signal it, end it with everything it started.

The directory with its sockets and connection file belongs to the kernel's user alone (0700); the HMAC key in that file
keeps out whatever else that user runs without looking for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cloche.errors import ClocheError, InvalidRequest
from cloche.models import ContextLimits, Failure
from cloche_guest.children import Account
from cloche_guest.contexts import _leftovers
from cloche_guest.contexts._channels import PORTS
from cloche_guest.contexts._failure import explain_exit, explain_start, read_oom_kills
from cloche_guest.contexts._launcher import KERNEL_ENV, Launch, Launched
from cloche_guest.contexts._log_tail import LogTail
from cloche_guest.contexts._zygote import CannotFork

START_TIMEOUT_S = 30.0
"""A kernel starts in 0.25 s on an idle machine and in some 2 s in gVisor with all cores busy."""

CONNECTION_FILE = "connection.json"

_MAX_SOCKET_PATH = 107
"""Linux: sun_path has 108 bytes including the closing NUL."""


class KernelStartFailed(ClocheError):
    """The kernel did not start; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True)
class KernelSpec:
    """How kernels of one context are started."""

    cwd: str
    limits: ContextLimits
    account: Account | None
    runtime_dir: Path
    context_id: str


LaunchKernel = Callable[[Launch, int, int], Awaitable[Launched]]
"""As `Launcher.launch`."""


class KernelProcess:
    """One kernel. Made by `start_kernel_process`, released by `release` after it has ended."""

    def __init__(self, launched: Launched, directory: Path, key: bytes, mark: str, log: LogTail) -> None:
        self._child = launched.child
        self.cold = launched.cold
        """Why it was not forked from a zygote; empty when it was."""
        self.ahead = False
        """It was made before anybody asked for it."""
        self._directory = directory
        self._mark = mark
        self._log = log
        self._oom_kills = read_oom_kills()
        self.key = key

    @property
    def base(self) -> Path:
        """Sockets are at this path, a dash and a number."""
        return self._directory / "k"

    @property
    def connection_file(self) -> Path:
        """The kernel reads it when it starts."""
        return self._directory / CONNECTION_FILE

    @property
    def tree(self) -> tuple[int, str]:
        """Pid and mark, by which all is found that it has started."""
        return self._child.pid, self._mark

    @property
    def exited(self) -> asyncio.Future[object]:
        """Done when the process has ended."""
        return self._child.exited  # type: ignore[return-value]

    @property
    def has_exited(self) -> bool:
        return self._child.exited.done()

    def interrupt(self) -> None:
        """SIGINT to the kernel and the children in its group, as Ctrl-C in a terminal."""
        self._child.signal_group(signal.SIGINT)

    def explain(self) -> Failure:
        """Why it ended by itself; only after it has."""
        kills = read_oom_kills() - self._oom_kills
        return explain_exit(self._child.exited.result(), oom_kills=kills, log_tail=self._log.text())

    def has_started(self) -> None:
        """What it said while it started is no reason for a later end."""
        self._log.forget()

    def begin(self, mark: str) -> None:
        """The life of one that was made ahead."""
        self.ahead = True
        self._mark = mark
        self._oom_kills = read_oom_kills()
        self._log.forget()

    def log_tail(self) -> str:
        return self._log.text()

    async def kill(self) -> None:
        """End it and everything it has started, now."""
        members = _leftovers.members(_leftovers.read_processes(), self._child.pid, self._mark)
        await self._child.kill()
        await _leftovers.end_members(self._child.pid, self._mark, members)

    async def terminate(self, grace_s: float) -> None:
        """TERM, then after the grace time KILL."""
        self._child.signal_group(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._child.exited), grace_s)
        await self.kill()

    def release(self) -> None:
        """Close and remove what belonged to it."""
        self._log.close()
        shutil.rmtree(self._directory, ignore_errors=True)


async def start_kernel_process(
    spec: KernelSpec, launch: LaunchKernel, env: Mapping[str, str], generation: int
) -> KernelProcess:
    """Start a kernel and return when its sockets are bound.

    Raises:
        InvalidRequest: `cwd` cannot be used.
        KernelStartFailed: it ended or said nothing within START_TIMEOUT_S.
        CannotFork: as `launch`.
    """
    key = secrets.token_hex(32).encode()
    directory = _make_directory(spec, generation, key)
    ready, ready_end = os.pipe()
    log, log_end = os.pipe()
    mark = new_mark(spec, generation)
    order = Launch(
        connection_file=directory / CONNECTION_FILE,
        cwd=spec.cwd,
        env=kernel_env(spec, env, mark),
        options={"limits": spec.limits.model_dump()},
        context_id=spec.context_id,
    )
    try:
        launched = await launch(order, ready_end, log_end)
    except (OSError, CannotFork) as error:
        os.close(ready)
        os.close(log)
        shutil.rmtree(directory, ignore_errors=True)
        raise (_spawn_error(spec, error) if isinstance(error, OSError) else error) from error
    finally:
        os.close(ready_end)
        os.close(log_end)
    process = KernelProcess(launched, directory, key, mark, LogTail(log))
    try:
        await _wait_ready(process, ready)
    except BaseException:
        await process.kill()
        process.release()
        raise
    return process


def new_mark(spec: KernelSpec, generation: int) -> str:
    """By which everything is known that one kernel starts."""
    return f"{spec.context_id}:{generation}:{secrets.token_hex(4)}"


def kernel_env(spec: KernelSpec, env: Mapping[str, str], mark: str) -> dict[str, str]:
    """The whole environment of a kernel."""
    return {**env, **KERNEL_ENV, _leftovers.MARK: mark, "CLOCHE_CONTEXT_ID": spec.context_id}


async def _wait_ready(process: KernelProcess, ready: int) -> None:
    """The launcher writes one byte when the sockets are bound. The end of the pipe without it means that it ended."""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            said = await _read_byte(ready)
            if not said:
                await asyncio.shield(process.exited)
    except TimeoutError:
        raise KernelStartFailed(explain_start(f"no answer in {START_TIMEOUT_S:g} s", process.log_tail())) from None
    finally:
        os.close(ready)
    if not said:
        failure = process.explain()
        raise KernelStartFailed(Failure(**{**failure.model_dump(), "reason": "start_failed"}))


async def _read_byte(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, 1)


def _make_directory(spec: KernelSpec, generation: int, key: bytes) -> Path:
    """Owned by root until it is complete, so that the kernel's user cannot redirect what is written into it."""
    directory = spec.runtime_dir / f"{spec.context_id}-{generation}-{secrets.token_hex(3)}"
    if len(os.fsencode(directory)) + len("/k-1") > _MAX_SOCKET_PATH:
        raise KernelStartFailed(explain_start(f"{directory} is too long for the path of a socket", ""))
    directory.mkdir(mode=0o700)
    file = directory / CONNECTION_FILE
    file.touch(mode=0o600)
    file.write_text(json.dumps(_connection_info(directory / "k", key)))
    if spec.account is not None:
        os.chown(file, spec.account.uid, spec.account.gid)
        os.chown(directory, spec.account.uid, spec.account.gid)
    return directory


def _connection_info(base: Path, key: bytes) -> dict[str, object]:
    ports: dict[str, object] = {f"{channel}_port": port for channel, port in PORTS.items()}
    return ports | {
        "transport": "ipc",
        "ip": str(base),
        "hb_port": 5,
        "signature_scheme": "hmac-sha256",
        "key": key.decode(),
    }


def refused_cwd(cwd: str, why: str) -> InvalidRequest:
    """The caller's mistake."""
    problem = f"{cwd}: {why}"
    return InvalidRequest(
        f"the context's cwd cannot be used: {problem}", details={"errors": [{"field": "cwd", "problem": problem}]}
    )


def _spawn_error(spec: KernelSpec, error: OSError) -> ClocheError:
    if error.filename == spec.cwd:
        return refused_cwd(spec.cwd, str(error.strerror))
    return KernelStartFailed(explain_start(f"{error.filename or sys.argv[0]}: {error.strerror}", ""))
