"""Failures: one line for people and an exit code for programs, never a traceback for what is not a defect.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the code that ran failed (`cloche run`) |
| 2 | wrong usage |
| 3 | the service could not do it: not reachable, refused, not found, ... |
| 130 | left by Ctrl-C |
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

import click

from cloche.cli._lazy import OutputClosed
from cloche.cli._terminal_text import plain
from cloche.errors import ClocheError, InvalidRequest

CODE_FAILED: Final = 1
USAGE: Final = 2
SERVICE: Final = 3
INTERRUPTED: Final = 130
"""128 + SIGINT, as shells have it."""


def run_command(command: click.Command, arguments: list[str] | None = None) -> int:
    """Run ``command`` and return its exit code."""
    try:
        answer = command.main(arguments, prog_name="cloche", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except ClocheError as error:
        say(line_of(error))
        return USAGE if isinstance(error, InvalidRequest) else SERVICE
    except (OutputClosed, BrokenPipeError):
        return _output_closed()
    except OSError as error:
        say(plain(str(error)))
        return SERVICE
    return answer if isinstance(answer, int) else 0


def each(names: Sequence[str], act: Callable[[str], str]) -> int:
    """``act`` on every name, and print the line it returns; one that fails is said and does not keep the others from it.

    Returns the exit code. A single name's error is raised, so that it has the exit code of its kind.
    """
    failed = False
    for name in names:
        try:
            click.echo(act(name))
        except ClocheError as error:
            if len(names) == 1:
                raise
            say(line_of(error))
            failed = True
    return SERVICE if failed else 0


def line_of(error: ClocheError) -> str:
    """``error`` as one line; its words may come from a sandbox."""
    request = f" [request {plain(error.request_id)}]" if error.request_id else ""
    return f"{error.code}: {plain(str(error))}{request}"


def say(line: str) -> None:
    """One line to standard error, which may be closed, too."""
    try:
        click.echo(f"cloche: {line}", err=True)
    except OSError:
        return


def _output_closed() -> int:
    # What is still buffered would raise again when Python flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    say("standard output was closed before everything was written")
    return SERVICE
