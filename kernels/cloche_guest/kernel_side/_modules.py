"""What a kernel has imported: a zygote imports the same, so that the next kernel need not."""

from __future__ import annotations

import sys
from typing import Any


class Modules:
    """Of one kernel."""

    def __init__(self) -> None:
        self._own: list[str] = []

    def remember(self) -> None:
        """All that is loaded now belongs to the kernel itself."""
        self._own = [name for name in sys.modules if not name.startswith(("__main__", "cloche_sandbox"))]

    def answer(self, content: dict[str, Any]) -> dict[str, Any]:
        """``own``: of the kernel itself, in the order of their import. ``asked``: which of those the user has imported."""
        return {"own": self._own, "asked": [name for name in content["ask"] if name in sys.modules]}
