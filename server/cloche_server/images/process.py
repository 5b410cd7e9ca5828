"""Runs a builder program: its output goes to a reporter line by line, its last lines into the error."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cloche_server.images.errors import ImageBuildFailed

Report = Callable[[str], None]
"""Takes one line of progress, without its line end."""

_KEPT_LINES: Final = 30
"""Enough for apt's or pip's whole complaint, little enough to read."""
_TIED_TO_US: Final = (
    *("setpriv", "--pdeathsig", "KILL", "--"),
    *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"),
)
"""A process namespace that dies with us, however we end. Without it the commands of a killed build's RUN step go on.
Its mounts are its own, too, and vanish with it."""


def run(
    argv: Sequence[str],
    what: str,
    report: Report,
    *,
    env: Mapping[str, str] | None = None,
    keep_open: Sequence[int] = (),
) -> None:
    """Runs ``argv`` to its end. Raises `ImageBuildFailed`, which says ``what`` failed, unless it exits with 0.

    The program and all that it started end when this process does, however that ends, and hold ``keep_open`` till then.
    """
    kept: deque[str] = deque(maxlen=_KEPT_LINES)
    process = subprocess.Popen(
        [*_TIED_TO_US, *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(env or {})},
        pass_fds=keep_open,
        text=True,
        errors="replace",
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            kept.append(line.rstrip())
            report(kept[-1])
        status = process.wait()
    finally:
        _end(process)
    if status != 0:
        raise ImageBuildFailed(
            f"{what} failed: {argv[0]} exited with {status}\n" + "\n".join(kept), details={"output": list(kept)}
        )


def capture(argv: Sequence[str], what: str, *, timeout_s: float = 60.0) -> str:
    """The standard output of a short command. Raises `ImageBuildFailed` when it fails or takes longer."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=True
        )
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr).strip().splitlines()[-_KEPT_LINES:]
        raise ImageBuildFailed(f"{what} failed: " + "\n".join(lines), details={"output": [*lines]}) from error
    except subprocess.TimeoutExpired as error:
        raise ImageBuildFailed(f"{what} did not end within {timeout_s:.0f} s") from error
    return done.stdout


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        # KILL, not TERM: `unshare` ignores TERM, and a build has nothing to save. The next build clears up.
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
