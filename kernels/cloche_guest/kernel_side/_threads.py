"""Threads keep the cell that started them.

ipykernel attributes the output of a thread it does not know to whatever cell runs at that moment. Here a thread
inherits the parent of the code that started it, and so does work handed to a `ThreadPoolExecutor`, whose threads
outlive cells. Only the parent is inherited, not the whole context: user code must not see other values of its own
context variables.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def follow_cells(kernel: Any) -> None:
    """Install for the life of the kernel."""
    _patch_thread(kernel)
    _patch_executor(kernel)


def _patch_thread(kernel: Any) -> None:
    start, bootstrap = threading.Thread.start, threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def start_with_parent(thread: threading.Thread) -> None:
        thread._cloche_parent = _parent_of(kernel)  # type: ignore[attr-defined]
        start(thread)

    def bootstrap_with_parent(thread: threading.Thread) -> None:
        parent = getattr(thread, "_cloche_parent", None)
        context = getattr(thread, "_context", None)  # Python 3.14 runs a thread in a context of its own
        if parent is not None:
            (context.run if context is not None else _call)(_adopt, kernel, parent)
        bootstrap(thread)

    threading.Thread.start = start_with_parent  # type: ignore[assignment,method-assign]
    threading.Thread._bootstrap_inner = bootstrap_with_parent  # type: ignore[attr-defined]


def _patch_executor(kernel: Any) -> None:
    submit = ThreadPoolExecutor.submit

    def submit_with_parent(executor: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        parent = _parent_of(kernel)
        return submit(executor, _Work(kernel, parent, fn) if parent is not None else fn, *args, **kwargs)

    ThreadPoolExecutor.submit = submit_with_parent  # type: ignore[method-assign]


class _Work:
    """A callable that runs with the parent of the cell that submitted it."""

    def __init__(self, kernel: Any, parent: tuple[Any, Any], fn: Callable[..., Any]) -> None:
        self._kernel, self._parent, self._fn = kernel, parent, fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tokens = _adopt(self._kernel, self._parent)
        try:
            return self._fn(*args, **kwargs)
        finally:
            self._kernel.shell.reset_thread_parent(tokens)


def _parent_of(kernel: Any) -> tuple[Any, Any] | None:
    """Message and ZMQ identity of the cell this code belongs to; None before the first."""
    parent = kernel.shell.get_parent()
    if not parent:
        return None
    return parent, kernel._get_shell_context_var(kernel._shell_parent_ident)


def _adopt(kernel: Any, parent: tuple[Any, Any]) -> Any:
    message, identity = parent
    kernel._shell_parent.set(message)
    kernel._shell_parent_ident.set(identity)
    return kernel.shell.set_thread_parent(message)


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)
