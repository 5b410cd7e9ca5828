"""Exec: a program run to its end in one call, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from cloche import models
from cloche.errors import ClocheError, InvalidRequest
from cloche.models import CapturedOutput, Data, Tty

Command = str | list[str] | tuple[str, ...]
"""A string is a line for the shell, a list is a program and its arguments."""


class SpecOptions(TypedDict, total=False):
    """How a program is to run; None: the server's default. ``user="root"`` needs a sandbox with sudo."""

    cwd: str | None
    env: Mapping[str, str] | None
    user: str | None
    grace_s: float | None
    tty: Tty | Mapping[str, int] | None


class ExecFailed(ClocheError):
    """The program did not end with exit code 0. ``result`` has its output."""

    def __init__(self, result: ExecResult) -> None:
        last = result.stderr.strip().splitlines()[-1:] or result.stdout.strip().splitlines()[-1:]
        super().__init__(f"the program {result.ending}" + (f": {last[0][:500]}" if last else ""))
        self.result = result


class ExecResult:
    """How a program ended, and its output. ``model`` is what the server sent."""

    def __init__(self, model: models.ExecResult) -> None:
        self.model = model

    def __repr__(self) -> str:
        return f"<ExecResult {self.ending}>"

    @property
    def process_id(self) -> str:
        """Its process, for as long as the sandbox keeps it."""
        return self.model.process.id

    @property
    def exit_code(self) -> int | None:
        """None when a signal ended it, or nobody saw how it ended."""
        return self.model.process.exit.code if self.model.process.exit is not None else None

    @property
    def signal(self) -> str | None:
        """The signal that ended it."""
        return self.model.process.exit.signal if self.model.process.exit is not None else None

    @property
    def timed_out(self) -> bool:
        """It was ended because its time was over."""
        return self.model.process.exit is not None and self.model.process.exit.timed_out

    @property
    def ok(self) -> bool:
        """Exit code 0, in time."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def truncated(self) -> bool:
        """Something of the output is missing: its middle, see `omitted_bytes` of ``model.stdout`` and ``model.stderr``."""
        return self.model.truncated

    @property
    def stdout(self) -> str:
        """As text; where something is missing a line says how much."""
        return _text_of(self.model.stdout)

    @property
    def stderr(self) -> str:
        """As `stdout`."""
        return _text_of(self.model.stderr)

    @property
    def stdout_bytes(self) -> bytes:
        """What there is, exactly; of a truncated stream head and tail."""
        return _bytes_of(self.model.stdout)

    @property
    def stderr_bytes(self) -> bytes:
        """As `stdout_bytes`."""
        return _bytes_of(self.model.stderr)

    @property
    def duration_s(self) -> float | None:
        """From its start to its exit."""
        return self.model.process.duration_s

    @property
    def ending(self) -> str:
        """In words."""
        return ending_of(self.model.process)

    def raise_for_error(self) -> ExecResult:
        """This result when the program ended well.

        :raises ExecFailed: it did not.
        """
        if not self.ok:
            raise ExecFailed(self)
        return self


def ending_of(process: models.Process) -> str:
    """How it ended, in words."""
    exit_status = process.exit
    if exit_status is None:
        return "was lost" if process.state is models.ProcessState.LOST else "still runs"
    how = f"exited with code {exit_status.code}" if exit_status.signal is None else f"was ended by {exit_status.signal}"
    if exit_status.timed_out:
        return f"{how} because its time was over"
    return f"{how} because the sandbox ran out of memory" if exit_status.out_of_memory else how


def command_fields(command: Command | None) -> dict[str, object]:
    """``argv`` or ``shell``; neither for None."""
    if command is None:
        return {}
    if isinstance(command, str):
        return {"shell": command}
    return {"argv": command}


def input_of(data: str | bytes | None) -> Data | None:
    """Input for a program.

    :raises InvalidRequest: it is over the 4 MiB one call can carry.
    """
    if data is None:
        return None
    raw = data.encode() if isinstance(data, str) else data
    if len(raw) > MAX_INPUT_BYTES:
        raise InvalidRequest(
            f"input of {len(raw)} bytes is over the {MAX_INPUT_BYTES} of an exec",
            hint='start a process with stdin="open" and write to it, or write a file',
            details={"limit_bytes": MAX_INPUT_BYTES},
        )
    return Data.of(raw)


MAX_INPUT_BYTES = 4 * 1024 * 1024
"""In base64, and with the rest of the body, below the server's 8 MiB for a request."""


def _bytes_of(output: CapturedOutput) -> bytes:
    return output.data.to_bytes() + output.tail.to_bytes()


def _text_of(output: CapturedOutput) -> str:
    head, tail = (part.to_bytes().decode("utf-8", "replace") for part in (output.data, output.tail))
    return f"{head}\n[{output.omitted_bytes} bytes omitted]\n{tail}" if output.omitted_bytes else head + tail
