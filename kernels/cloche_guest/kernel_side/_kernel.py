"""The kernel class: what is done around the code of every run."""

# Most of ipykernel has no annotations.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jupyter_client.session import extract_header

from ._asking import AskingKernel
from ._capture import Capture
from ._debugger import LateDebugger
from ._environment import Environment
from ._inspection import Inspector
from ._modules import Modules
from ._output import streams
from ._rebirth import Rebirth
from ._shell import KernelShell
from ._threads import follow_cells
from ._warm_up import without_trace


class ClocheKernel(AskingKernel):
    """ipykernel with precise attribution of output, an environment per run and questions while busy.

    Options of one run come in the metadata of its execute_request, under ``cloche``: ``{"env": {name: value}}``; with
    ``{"warm_up": True}`` it leaves no trace; ``{"identity": ...}`` is taken on before it (see `Rebirth`).
    """

    shell_class = KernelShell
    debugger_class = LateDebugger

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._capture = _start_capture()
        self.is_executing = False
        self._environment = Environment()
        self._rebirth = Rebirth(self, self._environment)
        self._rebirth.install()
        self._modules = Modules()
        Inspector(self, {"cloche_modules_request": self._modules.answer}).install()
        follow_cells(self)

    def has_started(self, life: int | None) -> None:
        """Everything that a kernel imports by itself is imported now. `life`: see `Capture.end_with`."""
        self._modules.remember()
        if life is not None and self._capture is not None:
            self._capture.end_with(life)

    async def do_execute(self, code: str, silent: bool, *args: Any, cell_meta: Any = None, **kwargs: Any) -> Any:
        options = (cell_meta or {}).get("cloche", {})
        if options.get("warm_up"):
            self._rehearse(options)
            with without_trace(self.shell):
                reply = await super().do_execute(code, silent, *args, cell_meta=cell_meta, **kwargs)
            if self._capture is not None:
                self._capture.drain()
            return reply
        if "identity" in options:
            self._rebirth.take_on(options["identity"])
        self._rebirth.run_hooks()
        if self._capture is not None:
            self._capture.begin(extract_header(self.get_parent("shell")))
        self.is_executing = True
        try:
            with self._environment.of_run(options.get("env", {})):
                reply = await super().do_execute(code, silent, *args, cell_meta=cell_meta, **kwargs)
        finally:
            self.is_executing = False
        if self._capture is not None:
            self._capture.drain()
        self._rebirth.run_hooks()
        return reply

    def _rehearse(self, options: Mapping[str, Any]) -> None:
        """What is done before a cell, with nothing changed by it."""
        if "identity" in options:
            self._rebirth.rehearse(options["identity"])
        if self._capture is not None:
            self._capture.begin_again()

    @contextmanager
    def _cancel_on_sigint(self, future: asyncio.Future[Any]) -> Iterator[None]:
        """Cancel an async cell on SIGINT, at once.

        Stock ipykernel uses ``IOLoop.add_callback`` in the signal handler, which does not wake the selector: a cell in
        ``await asyncio.sleep(30)`` is cancelled when the 30 s are over (ipython/ipykernel#881).
        """
        loop = asyncio.get_running_loop()

        def cancel(*_: object) -> None:
            loop.call_soon_threadsafe(future.cancel)

        before = signal.signal(signal.SIGINT, cancel)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _start_capture() -> Capture | None:
    both = streams()
    if both is None:
        return None
    capture = Capture(*both)
    capture.start()
    return capture
