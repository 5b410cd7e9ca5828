"""What ipykernel would import and nearly no kernel needs: see the two modules. Runs before anything of ipykernel is there."""

from __future__ import annotations

from ._debugger import postpone_debugpy
from ._late_package import postpone_jupyter_client


def postpone() -> None:
    """In this order: the debugger's module imports the other."""
    postpone_jupyter_client()
    postpone_debugpy()
