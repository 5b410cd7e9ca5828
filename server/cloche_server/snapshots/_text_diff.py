"""Unified diffs of two small texts by ``diff``: in a process of its own, because texts can be made that take any program
minutes, and it can be ended."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 256 * 1024
"""Of each text, and of the diff."""

BOUND_S: Final = 5.0


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


def unified_diff(before: bytes, after: bytes, label: str) -> str | None:
    """None for what is no text, is too long, or takes too long. ``label`` is shown for the path. Blocks up to `BOUND_S`."""
    if max(len(before), len(after)) > MAX_BYTES or not (is_text(before) and is_text(after)):
        return None
    shown = "".join(c if c.isprintable() else "?" for c in label)
    with tempfile.TemporaryDirectory(prefix="cloche-diff-") as directory:
        old, new = Path(directory, "before"), Path(directory, "after")
        old.write_bytes(before)
        new.write_bytes(after)
        argv = ["diff", "-u", "--label", f"a/{shown}", "--label", f"b/{shown}", str(old), str(new)]
        return _output(argv)


def _output(argv: list[str]) -> str | None:
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            argv, capture_output=True, stdin=subprocess.DEVNULL, env=env, timeout=BOUND_S, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    good = done.returncode in (0, 1) and len(done.stdout) <= MAX_BYTES
    return done.stdout.decode(errors="replace") if good else None
