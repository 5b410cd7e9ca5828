"""``cloche top``: what the sandboxes do now. The table is pure; `_Screen` is the edge that shows it again and again."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from cloche import models
from cloche._client import Client
from cloche.cli import _options
from cloche.cli._amounts import bytes_of, duration_of
from cloche.cli._failures import line_of
from cloche.cli._print import console, print_json, print_table
from cloche.cli._terminal_text import plain
from cloche.errors import ClocheError

if TYPE_CHECKING:
    from rich.console import RenderableType

COLUMNS: Final = ("SANDBOX", "NAME", "STATE", "CPU %", "MEMORY", "DISK", "PROCESSES", "IDLE")
ONCE_S: Final = 1.0
"""Between the two readings that ``--once`` compares."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything the table needs, as of one moment."""

    sandboxes: Sequence[models.Sandbox]
    usage: Mapping[str, models.Usage]


@dataclass(frozen=True, slots=True)
class Line:
    """One sandbox. ``cpu_percent`` of one core; None while there are not two readings to compare."""

    sandbox: models.Sandbox
    usage: models.Usage
    cpu_percent: float | None
    idle_s: float


def lines_of(seen: Seen, before: Seen | None) -> list[Line]:
    """Busiest first, then the one with the most memory."""
    found = [
        Line(
            sandbox,
            usage,
            _cpu_percent(usage, None if before is None else before.usage.get(sandbox.id)),
            (usage.as_of - sandbox.last_activity_at).total_seconds(),  # both by the server's clock
        )
        for sandbox in seen.sandboxes
        if (usage := seen.usage.get(sandbox.id)) is not None
    ]
    return sorted(found, key=lambda line: (-(line.cpu_percent or 0), -line.usage.memory_bytes, line.sandbox.id))


def _cpu_percent(now: models.Usage, before: models.Usage | None) -> float | None:
    if before is None:
        return None
    passed_s = (now.as_of - before.as_of).total_seconds()
    return None if passed_s <= 0 else max(0.0, (now.cpu_s - before.cpu_s) / passed_s * 100)


def cells_of(line: Line) -> tuple[str, ...]:
    return (
        line.sandbox.id,
        line.sandbox.name or "",
        line.sandbox.state,
        "" if line.cpu_percent is None else f"{line.cpu_percent:.1f}",
        bytes_of(line.usage.memory_bytes),
        bytes_of(line.usage.disk_bytes),
        str(line.usage.processes),
        duration_of(line.idle_s),
    )


@click.command()
@click.option("--once", is_flag=True, help="Print the table once, after a second of looking.")
@click.option(
    "--interval", type=click.FloatRange(min=0.5), default=2.0, show_default=True, help="Seconds between looks."
)
@_options.owner
@_options.as_json
@click.pass_context
def top(ctx: click.Context, once: bool, interval: float, owner: str | None, as_json: bool) -> None:
    """Show what the sandboxes do, again and again; q or Ctrl-C ends. To a file or pipe, and with --json, once."""
    client = _options.client_of(ctx)
    if once or as_json or not (sys.stdout.isatty() and sys.stdin.isatty()):
        first = look(client, owner)
        time.sleep(ONCE_S)
        lines = lines_of(look(client, owner), first)
        _print_json(lines) if as_json else print_table(COLUMNS, [cells_of(line) for line in lines])
        return
    with suppress(KeyboardInterrupt):
        _Screen(client, owner, interval).run()


def look(client: Client, owner: str | None) -> Seen:
    """Two calls; a sandbox that comes or goes in between is left out."""
    usage = {one.sandbox_id: one for one in client.usage(owner=owner)}
    return Seen(client.list_sandboxes(owner=owner), usage)


def _print_json(lines: Sequence[Line]) -> None:
    print_json(
        {
            "sandboxes": [
                {
                    "id": line.sandbox.id,
                    "name": line.sandbox.name,
                    "state": line.sandbox.state,
                    "cpu_percent": None if line.cpu_percent is None else round(line.cpu_percent, 1),
                    "memory_bytes": line.usage.memory_bytes,
                    "disk_bytes": line.usage.disk_bytes,
                    "processes": line.usage.processes,
                    "idle_s": round(line.idle_s, 1),
                }
                for line in lines
            ]
        }
    )


class _Screen:
    """Owns the terminal while it runs. A server that is away is said, and asked again."""

    def __init__(self, client: Client, owner: str | None, interval_s: float) -> None:
        self._client = client
        self._owner = owner
        self._interval_s = interval_s

    def run(self) -> None:
        from rich.live import Live  # noqa: PLC0415 - rich takes 60 ms to import

        screen = console()
        before: Seen | None = None
        with _keys_at_once(sys.stdin.fileno()), Live(console=screen, screen=True, auto_refresh=False) as live:
            while True:
                try:
                    seen = look(self._client, self._owner)
                    shown = _table(lines_of(seen, before), screen.height, self._client.url)
                    before = seen
                except ClocheError as error:
                    shown = _text(line_of(error))
                live.update(shown, refresh=True)
                if _quit_within(sys.stdin.fileno(), self._interval_s):
                    return


def _table(lines: Sequence[Line], height: int, url: str) -> RenderableType:
    """As many lines as fit below the heads."""
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, no_wrap=True)
    room = max(1, height - 4)
    for line in lines[:room]:
        table.add_row(*(Text(plain(cell)) for cell in cells_of(line)))
    more = f", {len(lines) - room} more below" if len(lines) > room else ""
    running = sum(line.sandbox.state is models.SandboxState.RUNNING for line in lines)
    return Group(_text(f"{plain(url)}: {len(lines)} sandboxes, {running} running{more}. q ends"), Text(""), table)


def _text(line: str) -> RenderableType:
    from rich.text import Text  # noqa: PLC0415

    return Text(line)


@contextmanager
def _keys_at_once(descriptor: int) -> Iterator[None]:
    """Each key as it is pressed, unseen; Ctrl-C works as ever."""
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


def _quit_within(descriptor: int, bound_s: float) -> bool:
    """Whether q was pressed, or the keyboard went away; else after ``bound_s``. Other keys look again at once."""
    if not select.select([descriptor], [], [], bound_s)[0]:
        return False
    keys = os.read(descriptor, 1024)
    return not keys or b"q" in keys.lower()
