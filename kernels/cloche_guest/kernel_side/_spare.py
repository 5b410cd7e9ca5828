"""A kernel that was made ahead, and becomes that of a context by one order.

Until then it has seen nothing of the context: the order brings directory and environment, and with it come new random
numbers. It refuses when a kernel that begins now would begin differently: after pip, or when the user has code or settings
that run when a kernel starts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from IPython.core.application import ENV_CONFIG_DIRS, SYSTEM_CONFIG_DIRS
from IPython.paths import get_ipython_dir

from ._packages import STALE, package_times
from ._process_environment import Shown, replace_environment
from ._seeding import seed_generators, stir_openssl

OWN_SETTINGS = "the user has settings or code that count when a kernel starts"


class Spare:
    """`packages`: as the zygote saw them when it made its imports. `shown`: what Linux shows of this process."""

    def __init__(self, kernel: Any, packages: Mapping[str, int], shown: Shown) -> None:
        self._kernel = kernel
        self._packages = packages
        self._shown = shown

    def install(self) -> None:
        """Register the order: one is obeyed."""
        self._kernel.shell_handlers["cloche_order_request"] = self._on_request

    async def _on_request(self, stream: Any, identity: Any, parent: dict[str, Any]) -> None:
        content = {"status": "ok", **self._answer(parent["content"])}
        self._kernel.session.send(stream, "cloche_order_reply", content, parent, identity)

    def _answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        if self._packages != package_times(self._packages):
            return {"refused": STALE}
        if has_own_settings():
            return {"refused": OWN_SETTINGS}
        try:
            os.chdir(order["cwd"])
        except OSError as error:
            return {"cwd": error.strerror}
        del self._kernel.shell_handlers["cloche_order_request"]
        self._obey(order)
        return {}

    def _obey(self, order: Mapping[str, Any]) -> None:
        self._shown.write(order["shown"], order["env"])
        replace_environment(order["env"])
        tempfile.tempdir = None
        seed_generators(os.urandom(32))
        stir_openssl()
        shell = self._kernel.shell
        shell.init_environment()
        shell.starting_dir = os.getcwd()
        shell.history_manager.dir_hist[:] = [Path.cwd()]


def has_own_settings() -> bool:
    """Of IPython, of the user or the machine: they would have run in another directory, at another time."""
    profile = Path(get_ipython_dir()) / "profile_default"
    places = [profile, profile / "startup", *map(Path, (*ENV_CONFIG_DIRS, *SYSTEM_CONFIG_DIRS))]
    return any(name.endswith((".py", ".ipy", ".json")) for place in places for name in _names(place))


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
