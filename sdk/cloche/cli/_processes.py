"""``cloche exec``, ``ps``, ``kill`` and ``logs``: programs in a sandbox, as if they ran here."""

from __future__ import annotations

import asyncio
import os
import signal as signals
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

import click

from cloche import models
from cloche._client import AsyncClient
from cloche._exec import Command, ending_of
from cloche._process import Process, output_bytes
from cloche._processes import AsyncProcesses, StartOptions
from cloche._sandbox import Sandbox
from cloche.cli import _options
from cloche.cli._failures import SERVICE, say
from cloche.cli._output_stream import OutputStream
from cloche.cli._print import day_and_time, print_json, print_table
from cloche.cli._terminal_text import plain
from cloche.errors import ClocheError, Conflict, NotFound
from cloche.models import ProcessState

TIMED_OUT: Final = 124
"""As ``timeout`` of coreutils has it."""

READ_BYTES: Final = 64 * 1024


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_options.sandbox_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND [ARG]...")
@click.option("--shell", "-c", "as_shell", is_flag=True, help="COMMAND is one line for the shell.")
@click.option("--cwd", metavar="DIR", help="Where it runs.  [default: the workspace]")
@click.option("--root", is_flag=True, help="As root; needs a sandbox with sudo.")
@click.option("--timeout", "timeout_s", type=float, metavar="SECONDS", help="End it after so long: exit code 124.")
@click.option("--detach", "-d", is_flag=True, help="Start it, print its id and leave.")
@click.option("--tty", "-t", "on_tty", is_flag=True, help="On a terminal, which is yours while it runs.")
@_options.env
@click.pass_context
def exec_command(
    ctx: click.Context,
    /,
    *,
    sandbox: str,
    command: tuple[str, ...],
    as_shell: bool,
    cwd: str | None,
    root: bool,
    timeout_s: float | None,
    detach: bool,
    on_tty: bool,
    env: tuple[tuple[str, str], ...],
) -> int:
    """Run COMMAND in SANDBOX: its output streams, its exit code is this command's.

    What is piped in here is its stdin. Ctrl-C goes to it; a second one (with -t: Ctrl-]) leaves it running. Exit codes: its
    own, 128 + n when signal n ended it, 124 when its time was over, 3 when the service failed.
    """
    if command[0] == "--":
        command = command[1:]
    if not command:
        raise click.UsageError("no COMMAND is given")
    if as_shell and len(command) != 1:
        raise click.UsageError("--shell takes the whole line as one argument; quote it")
    if on_tty and (detach or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise click.UsageError("--tty needs a terminal to show it on, and not --detach")
    place = Sandbox.connect(sandbox, client=_options.client_of(ctx))
    has_input = not detach and sys.stdin is not None and not sys.stdin.isatty()
    program: Command = command[0] if as_shell else list(command)
    options: StartOptions = {
        "cwd": cwd,
        "env": _options.as_dict(env),
        "user": "root" if root else None,
        "timeout_s": timeout_s,
        "stdin": "open" if has_input or on_tty else None,
    }
    if on_tty:
        return asyncio.run(_on_own_terminal(ctx.find_root().obj, place.id, program, options))
    process = place.processes.start(program, **options)
    if detach:
        click.echo(process.id)
        return 0
    ended = threading.Event()
    if has_input:
        threading.Thread(target=pass_input, args=(process, sys.stdin.fileno(), ended), daemon=True).start()
    try:
        with _interrupts_to(process):
            _show(process, follow=True, until_exit=True)
    finally:
        ended.set()
    return exit_code_in(process.refresh())


async def _on_own_terminal(url: str | None, sandbox_id: str, program: Command, options: StartOptions) -> int:
    """Start it with a terminal that is shown here; its exit code, or 0 when the user has left it running."""
    from cloche.cli._exec_session import ExecSession  # noqa: PLC0415 - termios is not everywhere
    from cloche.cli._own_terminal import OwnTerminal, window_size  # noqa: PLC0415

    size = window_size()
    async with AsyncClient(url) as client:
        processes = AsyncProcesses(client._link, sandbox_id)
        options["tty"] = models.Tty(cols=size.cols, rows=size.rows)
        process = await processes.start(program, **options)
        if await ExecSession(process, OwnTerminal(sys.stdin.fileno(), sys.stdout.fileno())).run():
            return exit_code_in(await process.refresh())
    say(f"left; {process.id} goes on. See its output with: cloche logs -f {sandbox_id} {process.id}")
    return 0


@click.command()
@_options.sandbox_argument
@click.option("--all", "-a", "show_all", is_flag=True, help="Those that have finished, too.")
@_options.as_json
@click.pass_context
def ps(ctx: click.Context, /, *, sandbox: str, show_all: bool, as_json: bool) -> None:
    """List the processes of SANDBOX."""
    place = Sandbox.connect(sandbox, client=_options.client_of(ctx))
    found = [process.info for process in place.processes.list()]
    if not show_all:
        found = [info for info in found if info.state in (ProcessState.RUNNING, ProcessState.LINGERING)]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            info.id,
            info.name or "",
            info.state.value,
            str(info.pid),
            day_and_time(info.created_at),
            ending_of(info) if info.exit is not None else "",
            " ".join(info.argv)[:80],
        )
        for info in found
    ]
    print_table(("PROCESS", "NAME", "STATE", "PID", "STARTED", "ENDED", "COMMAND"), rows)


@click.command()
@_options.sandbox_argument
@click.argument("process")
@click.option("--signal", "-s", default="TERM", show_default=True, help="Name or number.")
@click.option("--after", "kill_after_s", type=float, metavar="SECONDS", help="KILL for what is left after so long.")
@click.pass_context
def kill(ctx: click.Context, /, *, sandbox: str, process: str, signal: str, kill_after_s: float | None) -> None:
    """Signal PROCESS (id or name) of SANDBOX, with all it has started."""
    place = Sandbox.connect(sandbox, client=_options.client_of(ctx))
    number = int(signal) if signal.isdecimal() else signal.upper()
    find_process(place, process).signal(number, kill_after_s=kill_after_s)


@click.command()
@_options.sandbox_argument
@click.argument("process")
@click.option("--follow", "-f", is_flag=True, help="Go on until it ends.")
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), help="Only this one.")
@click.pass_context
def logs(ctx: click.Context, /, *, sandbox: str, process: str, follow: bool, stream: str | None) -> None:
    """Print what PROCESS (id or name) of SANDBOX has put out, as far as it is kept."""
    place = Sandbox.connect(sandbox, client=_options.client_of(ctx))
    _show(find_process(place, process), follow=follow, stream=stream)


def find_process(place: Sandbox, id_or_name: str) -> Process:
    """The process with this id, else the newest one with this name.

    :raises NotFound: there is neither.
    """
    if id_or_name.startswith("proc-"):
        with suppress(NotFound):
            return place.processes.get(id_or_name)
    for process in place.processes.list():
        if process.info.name == id_or_name:
            return process
    raise NotFound(f"there is no process {id_or_name} in {place.id}", details={"kind": "process", "id": id_or_name})


def exit_code_in(info: models.Process) -> int:
    """As a shell would have it."""
    exit_status = info.exit
    if exit_status is None:
        say(f"the process {ending_of(info)}")
        return SERVICE
    if exit_status.timed_out:
        say(f"the process {ending_of(info)}")
        return TIMED_OUT
    if exit_status.signal is not None:
        if exit_status.out_of_memory:
            say(f"the process {ending_of(info)}")
        return 128 + _number_of(exit_status.signal)
    return exit_status.code or 0


def _number_of(name: str) -> int:
    try:
        return int(signals.Signals[name])
    except KeyError:
        return int(name.removeprefix("SIG")) if name.removeprefix("SIG").isdecimal() else 0


def _show(process: Process, *, follow: bool, stream: str | None = None, until_exit: bool = False) -> None:
    """Print the output, from the oldest kept. Not following: up to where it is now."""
    streams = {"stdout": OutputStream(sys.stdout), "stderr": OutputStream(sys.stderr)}
    end = None if follow else process.refresh().cursor
    if end is not None and _seq(end) == 0:
        return
    # Up to a place: all of it is asked for, or the last event would not come when it is of the other stream.
    for event in process.events(stream=stream if end is None else None):
        if event.type in streams and stream in (None, event.type):
            streams[event.type].write(output_bytes(event))
        elif event.type == "gap":
            say(f"[{event.data.get('bytes')} bytes of output are no longer kept]")
        if (until_exit and event.type == "lingering") or (end is not None and _seq(event.cursor) >= _seq(end)):
            break
    for each in streams.values():
        each.close()


def _seq(cursor: str) -> int:
    """The number of records before a cursor, of one journal."""
    part = cursor.split(".")[1]
    return int(part)


def pass_input(process: Process, source: int, ended: threading.Event) -> None:
    """What comes in here goes to the program, at its pace; in a thread, which ends with the command. It reads the descriptor:
    a thread that waits within `sys.stdin` holds a lock that Python wants at its end. Once the program has ``ended``, or was
    left, the client may be closed under a call, and what became of the input is no news."""
    try:
        while data := os.read(source, READ_BYTES):
            process.write(data, timeout_s=24 * 3600)
        process.close_stdin()
    except Conflict:
        return  # it reads no more, or has ended
    except (ClocheError, RuntimeError) as error:  # RuntimeError: httpx' word for a client that is closed
        if not ended.is_set():
            say(plain(f"input was cut short: {error}"))


@contextmanager
def _interrupts_to(process: Process) -> Iterator[None]:
    """The first Ctrl-C goes to the program, the next one raises `KeyboardInterrupt`. By a thread: see `_run`."""

    def on_sigint(_number: int, _frame: FrameType | None) -> None:
        signals.signal(signals.SIGINT, signals.default_int_handler)
        threading.Thread(target=interrupt, daemon=True).start()

    def interrupt() -> None:
        with suppress(ClocheError, RuntimeError):  # of a closed client; the events tell
            process.signal("INT")

    before = signals.signal(signals.SIGINT, on_sigint)
    try:
        yield
    finally:
        signals.signal(signals.SIGINT, before)
