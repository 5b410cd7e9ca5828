"""The guest's end of one zygote: see `kernel_side/zygote.py`."""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import logging
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cloche_guest.children import Child, Children, ExitStatus
from cloche_guest.contexts._log_tail import LogTail

log = logging.getLogger(__name__)

PACKET_BYTES: Final = 128 * 1024
"""Largest order, of 208 KiB that a socket takes by default. A kernel with a larger environment is not forked."""

ANSWER_S: Final = 10.0
"""For a fork, which takes 5 ms (gVisor 50), on a machine that does much else."""

PRELOAD_S: Final = 120.0


class CannotFork(Exception):
    """No kernel was made, and another way must be taken; the words say why."""


class ZygoteUseless(CannotFork):
    """Nor will this zygote ever make one."""


class Zygote:
    """One process. `env` is what it was started with."""

    def __init__(
        self, child: Child, guest: socket.socket, log_tail: LogTail, children: Children, env: Mapping[str, str]
    ) -> None:
        self.env = env
        self.modules: set[str] = set()
        """What it was asked to import."""
        self._child = child
        self._socket = guest
        self._log = log_tail
        self._children = children
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 0
        self._kernels: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(guest, self._read)

    @property
    def is_alive(self) -> bool:
        return not self._child.exited.done() and self._socket.fileno() >= 0

    @property
    def pid(self) -> int:
        return self._child.pid

    async def preload(self, modules: Sequence[str]) -> None:
        """Import these, beyond what is imported already.

        Raises:
            CannotFork
        """
        missing = [name for name in modules if name not in self.modules]
        if missing:
            self.modules.update(missing)
            answer = await self._ask({"do": "preload", "modules": missing}, [], PRELOAD_S)
            if "refused" in answer:
                raise ZygoteUseless(answer["refused"])
            if failed := answer["failed"]:
                log.info("the zygote could not import %s", ", ".join(failed[:20]))

    async def fork(self, order: Mapping[str, Any], descriptors: Sequence[int]) -> Child:
        """Make a kernel.

        Raises:
            CannotFork
            OSError: as `Children.spawn`.
        """
        answer = await self._ask({"do": "fork", **order}, descriptors, ANSWER_S)
        if "child" in answer:
            kernel: Child = answer["child"]
            return kernel
        if "refused" in answer:
            raise ZygoteUseless(answer["refused"])
        raise OSError(answer["errno"], answer["strerror"], answer["filename"])

    async def end(self) -> None:
        """Kernels go on."""
        self._close("it was ended")
        await self._child.kill()
        self._log.close()

    async def _ask(self, message: Mapping[str, Any], descriptors: Sequence[int], bound_s: float) -> dict[str, Any]:
        self._next_id += 1
        number = self._next_id
        packet = json.dumps({**message, "id": number}).encode()
        if len(packet) > PACKET_BYTES:
            raise CannotFork(f"the order has {len(packet)} bytes")
        answer = self._answers[number] = self._loop.create_future()
        try:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            self._socket.sendmsg([packet], rights)
            async with asyncio.timeout(bound_s):
                reply: dict[str, Any] = await answer
                return reply
        except (OSError, TimeoutError) as error:
            raise ZygoteUseless(f"the zygote does not answer: {error!r}") from error
        finally:
            self._answers.pop(number, None)

    def _read(self) -> None:
        while self._socket.fileno() >= 0:
            try:
                packet = self._socket.recv(2 * PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._close(f"it has ended; it said: {self._log.text()[-500:]}")
                return
            try:
                self._take(dict(json.loads(packet)))
            except (ValueError, KeyError, TypeError) as error:
                self._close(f"it says what a zygote does not: {error!r}")

    def _take(self, message: dict[str, Any]) -> None:
        """The zygote belongs to the user, whose code may have changed it: it is believed nothing that it could gain by."""
        if "exited" in message:
            self._has_exited(int(message["exited"]), int(message["status"]), by_signal=bool(message["by_signal"]))
            return
        answer = self._answers.get(message["answer"])
        if "pid" in message:  # adopted before anybody wakes: its exit may be the next packet
            message["child"] = self._adopt(int(message["pid"]))
        if answer is not None and not answer.done():
            answer.set_result(message)
        elif "child" in message:
            message["child"].signal_group(signal.SIGKILL)  # whoever ordered it has gone

    def _adopt(self, pid: int) -> Child:
        if parent_of(pid) != self._child.pid:
            raise ValueError(f"process {pid} is not its child")
        self._kernels.add(pid)
        return self._children.adopt(pid, self._child)

    def _has_exited(self, pid: int, status: int, *, by_signal: bool) -> None:
        if pid not in self._kernels:
            raise ValueError(f"process {pid} was never a kernel")
        self._kernels.discard(pid)
        self._children.note_exit(pid, ExitStatus(signal=status) if by_signal else ExitStatus(code=status))
        with contextlib.suppress(OSError):
            self._socket.send(json.dumps({"do": "reap", "pid": pid}).encode())

    def _close(self, why: str) -> None:
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ZygoteUseless(f"the zygote is gone: {why}"))


def parent_of(pid: int) -> int | None:
    """None: there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
