"""Packages whose modules can be imported without the code of their ``__init__``, which runs when a name of it is wanted.

``jupyter_client`` imports all that manages and starts kernels; a kernel needs its sessions only. The rest is 2 MB and 20 ms
of every kernel (measured). Whoever imports it in a cell finds all of it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from types import ModuleType
from typing import Any

_lock = threading.RLock()


class _LatePackage(ModuleType):
    """Its class is that of every module once its code has run."""

    def __getattr__(self, name: str) -> Any:
        with _lock:
            if type(self) is _LatePackage:
                _become(self, ModuleType)
                assert self.__spec__ is not None  # see `postpone`
                assert self.__spec__.loader is not None
                try:
                    self.__spec__.loader.exec_module(self)
                except BaseException:  # an interrupt; the next who wants a name tries again, as with any import
                    _become(self, _LatePackage)
                    raise
        return getattr(self, name)


def _become(module: Any, kind: type[ModuleType]) -> None:
    module.__class__ = kind


def postpone(name: str) -> None:
    """Make `name` such a package; if it is there, and nobody has imported it."""
    spec = importlib.util.find_spec(name) if name not in sys.modules else None
    if spec is None or spec.loader is None:
        return
    package = importlib.util.module_from_spec(spec)
    _become(package, _LatePackage)
    sys.modules[name] = package


def postpone_jupyter_client() -> None:
    """ipykernel takes some names from the package itself, all of which are of `connect`."""
    postpone("jupyter_client")
    package = sys.modules.get("jupyter_client")
    if isinstance(package, _LatePackage):
        connect = importlib.import_module("jupyter_client.connect")
        vars(package).update({name: getattr(connect, name) for name in connect.__all__})
