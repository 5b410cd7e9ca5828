"""The module ``cloche_sandbox`` that code in a kernel can import: what it may want to know of the sandbox it is in."""

from __future__ import annotations

import os
import sys
import traceback
import types
from collections.abc import Callable
from typing import TypeVar

Callback = TypeVar("Callback", bound=Callable[[str, str], object])

NAME = "cloche_sandbox"

_callbacks: dict[object, Callable[[str, str], object]] = {}
_listeners: list[Callable[[], object]] = []


def on_restore(callback: Callback) -> Callback:
    """Call ``callback(reason, sandbox_id)`` whenever this kernel wakes up in another sandbox, or at another time.

    ``reason``: ``fork`` (a copy of a running sandbox, or one made from a snapshot), ``restore`` (rolled back to a
    snapshot), ``resume`` (woken after a suspend), ``claim`` (taken out of a pool). It is called in the main thread, before
    the next cell; at once when no cell runs. What it raises is printed. A function that is defined again under its name
    replaces the earlier one. May be used as a decorator.
    """
    name = getattr(callback, "__qualname__", "<")
    _callbacks[callback if "<" in name else (callback.__module__, name)] = callback
    for listener in _listeners:
        listener()
    return callback


def sandbox_id() -> str:
    """Of the sandbox this code is in now."""
    return os.environ.get("CLOCHE_SANDBOX_ID", "")


def tell_of_callbacks(listener: Callable[[], object]) -> None:
    """Call it whenever there is a new one, in the thread that made it."""
    _listeners[:] = [listener]


def has_callbacks() -> bool:
    """Whether `call_back` would do anything."""
    return bool(_callbacks)


def call_back(reason: str, sandbox_id: str) -> None:
    """For the kernel."""
    for callback in list(_callbacks.values()):
        try:
            callback(reason, sandbox_id)
        except BaseException:  # SystemExit in a hook must not end the kernel
            traceback.print_exc()


def install() -> None:
    """Make it importable, without a file that is."""
    module = types.ModuleType(NAME, __doc__)
    module.__dict__.update(on_restore=on_restore, sandbox_id=sandbox_id, __all__=["on_restore", "sandbox_id"])
    sys.modules[NAME] = module
