"""What ipykernel would import and nearly no kernel needs: see the three modules. Runs before anything of ipykernel is there."""

from __future__ import annotations

from ._debugger import postpone_debugpy
from ._late_package import postpone_jupyter_client
from ._own_packages import hold_own_packages


def postpone() -> None:
    """In this order: the debugger's module imports the other."""
    hold_own_packages()
    postpone_jupyter_client()
    postpone_debugpy()
