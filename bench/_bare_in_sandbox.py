"""Drives `_bare` in a sandbox: a cell of a context of its own holds the process and passes orders to it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from cloche import Context, Sandbox

GUEST_PYTHON: Final = "/opt/cloche/bin/python"
USER_PYTHON: Final = "/opt/venv/bin/python"

SAME_SETTINGS: Final = ("--IPythonKernel._execute_sleep=0", "--HistoryManager.enabled=False")
"""What Cloche's own kernels are started with; without them the comparison would flatter Cloche."""

START: Final = """
import json, os, subprocess, sys
environ = {{name: value for name, value in os.environ.items() if not name.startswith("JPY_")}}
bare = subprocess.Popen({argv!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)
bare.stdin.write("")
bare.stdout.readline()
"""

ASK: Final = """
bare.stdin.write("{n}\\n"); bare.stdin.flush()
bare.stdout.readline()
"""


class BareInSandbox:
    """A bare client and its kernel in ``sandbox``."""

    def __init__(self, sandbox: Sandbox, code: str, options: tuple[str, ...]) -> None:
        self._context: Context = sandbox.contexts.create(name="bench")
        program = (Path(__file__).parent / "_bare.py").read_text()
        argv = [GUEST_PYTHON, "-c", program, USER_PYTHON, code, *options]
        started = self._context.run(START.format(argv=argv)).raise_for_error()
        if started.text != repr("ready\n"):
            raise RuntimeError(f"the bare client did not start: {started.text} {started.stderr}")

    def times_s(self, n: int) -> list[float]:
        """The times of ``n`` round trips."""
        text = self._context.run(ASK.format(n=n)).raise_for_error().text
        return [float(seconds) for seconds in ast.literal_eval(ast.literal_eval(text or "''"))]

    def close(self) -> None:
        """End the client and its kernel."""
        self._context.run("bare.stdin.close(); bare.wait(20)")
        self._context.delete()
