"""The debugger of a kernel, loaded by the first request to it.

debugpy is 140 modules: 8 MB and 30 ms of every kernel (measured), which few ever debug. ipykernel imports it when a kernel
is made; here the kernel is made with a debugger that is still to come.
"""

# Most of ipykernel has no annotations.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
from typing import Any


def postpone_debugpy() -> None:
    """Load `ipykernel.debugger` without debugpy. Whether there is one is still told truly."""
    if importlib.util.find_spec("debugpy") is None:
        return
    sys.modules["debugpy"] = None  # type: ignore[assignment]  # Python's own way to say: cannot be imported
    try:
        kernel_class: Any = importlib.import_module("ipykernel.ipkernel").IPythonKernel
        module: Any = importlib.import_module("ipykernel.debugger")
    finally:
        del sys.modules["debugpy"]
    # Without the attribute it is an old ipykernel, whose class cannot be chosen: its kernel has no debugger.
    module._is_debugpy_available = hasattr(kernel_class, "debugger_class")


class LateDebugger:
    """Stands for ipykernel's ``Debugger`` and becomes one when it is asked for something. Belongs to the control thread."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments
        self._debugger: Any = None
        self._is_loaded = asyncio.Event()

    async def process_request(self, message: dict[str, Any]) -> Any:
        return await self._load().process_request(message)

    async def handle_stopped_event(self) -> None:
        """ipykernel waits in here all the time; that is no request."""
        await self._is_loaded.wait()
        await self._debugger.handle_stopped_event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._load(), name)

    def _load(self) -> Any:
        if self._debugger is None:
            module = importlib.reload(importlib.import_module("ipykernel.debugger"))
            self._debugger = module.Debugger(*self._arguments)
            self._is_loaded.set()
        return self._debugger
