"""``cloche run``: code in, output out, as if it ran here."""

from __future__ import annotations

import getpass
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import click

from cloche._result import RunResult
from cloche._run_handle import RunHandle
from cloche._sandbox import Sandbox
from cloche._watchers import prompt_of
from cloche.cli import _options
from cloche.cli._contexts import context_of
from cloche.cli._creating import create_sandbox
from cloche.cli._failures import CODE_FAILED
from cloche.cli._print import print_json
from cloche.cli._run_screen import RunScreen
from cloche.cli._terminal_text import plain
from cloche.errors import ClocheError, Conflict
from cloche.models import Event, RunStatus


@click.command()
@click.argument("file", required=False, metavar="[FILE | -]", type=click.Path(allow_dash=True, path_type=Path))
@click.option("--code", "-c", help="The code itself.")
@click.option("--sandbox", "-s", shell_complete=_options.complete_sandbox, help="Id or name; it is kept.")
@click.option("--context", default="default", show_default=True, help="Id or name of a context of the sandbox.")
@click.option("--image", help="Image of the new sandbox.")
@click.option("--driver", type=click.Choice(["gvisor", "runc"]), help="Driver of the new sandbox.")
@click.option("--keep", is_flag=True, help="Keep the new sandbox and print its id.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write images into this directory.")
@click.option("--timeout", "timeout_s", type=float, metavar="SECONDS", help="Interrupt the code after so long.")
@_options.env
@_options.as_json
@click.pass_context
def run(
    ctx: click.Context,
    /,
    *,
    file: Path | None,
    code: str | None,
    sandbox: str | None,
    context: str,
    image: str | None,
    driver: str | None,
    keep: bool,
    out: Path | None,
    timeout_s: float | None,
    env: tuple[tuple[str, str], ...],
    as_json: bool,
) -> int:
    """Run FILE (or standard input, or -c CODE) in a sandbox.

    Without --sandbox in a new one, which is deleted afterwards. Output streams while the code runs. Ctrl-C interrupts
    the code, a second one leaves. Exit code: 0 the code ended well, 1 it did not, 2 wrong usage, 3 the service failed.
    """
    if sandbox is not None and (image or driver or keep):
        raise click.UsageError("--image, --driver and --keep are for new sandboxes, --sandbox names an existing one")
    source, from_stdin = _source(file, code)
    with _place(ctx, sandbox, image, driver, keep=keep) as place:
        can_ask = not from_stdin and not as_json and sys.stdin.isatty()
        handle = context_of(place, context).start_run(
            source, timeout_s=timeout_s, env=_options.as_dict(env), allow_stdin=can_ask
        )
        with _interrupts_to(handle):
            result = handle.wait() if as_json else _shown(handle)
        images = [str(path) for path in result.save_images(out)] if out is not None else []
        if as_json:
            print_json({"sandbox_id": place.id, "run": result.run.model_dump(mode="json"), "images": images})
        else:
            _say_images(result, images)
            _say_ending(result)
        if keep:
            click.echo(f"kept sandbox {place.id}", err=True)
    return 0 if result.ok else CODE_FAILED


def _source(file: Path | None, code: str | None) -> tuple[str, bool]:
    """The code, and whether it came from standard input."""
    if file is not None and code is not None:
        raise click.UsageError("give FILE or -c CODE, not both")
    if code is not None:
        return code, False
    if file is None and sys.stdin.isatty():
        raise click.UsageError("give FILE, - for standard input, or -c CODE")
    if file is None or str(file) == "-":
        return sys.stdin.read(), True
    try:
        return file.read_text(), False
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"cannot read {file}: {error}") from error


@contextmanager
def _place(
    ctx: click.Context, sandbox: str | None, image: str | None, driver: str | None, *, keep: bool
) -> Iterator[Sandbox]:
    """The sandbox to run in; a new one is deleted at the end unless it is kept."""
    client = _options.client_of(ctx)
    if sandbox is not None:
        yield Sandbox.connect(sandbox, client=client)
        return
    made = create_sandbox(client, image, driver=driver)
    if keep:
        yield made
        return
    with made:
        yield made


@contextmanager
def _interrupts_to(handle: RunHandle) -> Iterator[None]:
    """The first Ctrl-C interrupts the run, the next one raises `KeyboardInterrupt`.

    The call is made by a thread: a signal handler may run in the middle of the HTTP client's own locks.
    """

    def on_sigint(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        click.echo("interrupting; Ctrl-C again leaves", err=True)
        threading.Thread(target=interrupt, daemon=True).start()

    def interrupt() -> None:
        with suppress(ClocheError, RuntimeError):  # of a closed client; the events tell
            handle.interrupt()

    before = signal.signal(signal.SIGINT, on_sigint)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _shown(handle: RunHandle) -> RunResult:
    """Print the run's events to its end."""
    screen = RunScreen(sys.stdout, sys.stderr)
    for event in handle.events():
        screen.show(event)
        if event.type == "input_request":
            _answer(handle, event)
    return handle.wait()


def _answer(handle: RunHandle, event: Event) -> None:
    """Read a line for the code; the prompt is on the screen already."""
    line = getpass.getpass("") if prompt_of(event)[1] else sys.stdin.readline().rstrip("\n")
    with suppress(Conflict):  # interrupted meanwhile
        handle.reply(line)


def _say_images(result: RunResult, images: list[str]) -> None:
    for path in images:
        click.echo(f"wrote {path}", err=True)
    count = 0 if images else len(result.images)
    if count:
        click.echo(f"[{count} image{'s' if count > 1 else ''}; --out DIR writes them to files]", err=True)


def _say_ending(result: RunResult) -> None:
    """What the output does not show by itself."""
    run = result.run
    if run.status in (RunStatus.OK, RunStatus.ERROR):
        return
    why = f": {plain(run.failure.message)}" if run.failure else ""
    lost = "; the context has a new kernel, its variables are gone" if run.kernel_restarted else ""
    click.echo(f"cloche: the run ended as {run.status}{why}{lost}", err=True)
