"""``cloche cp``, ``cloche files``, ``cloche watch``: files of a sandbox from a shell.

``SANDBOX:PATH`` names a file of a sandbox; a path without a colon before its first slash is one of this machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TextIO

import click

from cloche._sandbox import Sandbox
from cloche.cli._options import as_json, client_of
from cloche.cli._print import day_and_time, print_json, print_table
from cloche.cli._terminal_text import plain
from cloche.errors import IsDirectory

if TYPE_CHECKING:
    from cloche._files import FileChange
    from cloche.models import CloneProgress

_MARKS: Final = {"directory": "d", "symlink": "l", "fifo": "p", "socket": "s", "block_device": "b", "char_device": "c"}


class Place(NamedTuple):
    """``sandbox`` None: on this machine."""

    sandbox: str | None
    path: str


def place_of(text: str) -> Place:
    """Pure."""
    sandbox, colon, path = text.partition(":")
    if not colon or "/" in sandbox or not sandbox:
        return Place(None, text)
    return Place(sandbox, path or "/workspace")


def sandbox_at(ctx: click.Context, text: str) -> tuple[Sandbox, str]:
    """The sandbox and the path that ``text`` names."""
    place = place_of(text)
    if place.sandbox is None:
        raise click.UsageError(f"{text!r} is not SANDBOX:PATH")
    return Sandbox.connect(place.sandbox, client=client_of(ctx)), place.path


user_option = click.option("--user", type=click.Choice(["user", "root"]), help="As whom. [default: user]")


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option("--recursive", "-r", is_flag=True, help="A directory with all below it.")
@user_option
@click.pass_context
def cp(ctx: click.Context, source: str, destination: str, recursive: bool, user: str | None) -> None:
    """Copy files between this machine and a sandbox, either of which is SANDBOX:PATH.

    A file whose destination is a directory goes into it. With -r what is in SRC goes into the directory DST.
    """
    here, there = place_of(source), place_of(destination)
    if (here.sandbox is None) == (there.sandbox is None):
        raise click.UsageError("one of SRC and DST must be SANDBOX:PATH, and only one")
    if here.sandbox is None:
        _send(Sandbox.connect(str(there.sandbox), client=client_of(ctx)), here.path, there.path, recursive, user)
    else:
        _fetch(Sandbox.connect(here.sandbox, client=client_of(ctx)), here.path, there.path, recursive, user)


def _send(sandbox: Sandbox, source: str, path: str, recursive: bool, user: str | None) -> None:
    if recursive:
        sandbox.files.upload_tree(source, path, parents=True, user=user)
        return
    try:
        sandbox.files.upload(source, path, parents=True, user=user)
    except IsDirectory:
        sandbox.files.upload(source, f"{path.rstrip('/')}/{Path(source).name}", user=user)


def _fetch(sandbox: Sandbox, path: str, target: str, recursive: bool, user: str | None) -> None:
    if recursive:
        got = sandbox.files.download_tree(path, target, user=user)
        for name in got.skipped:
            click.echo(f"cloche: {plain(name)}: a link that leads out of the directory was left out", err=True)
        return
    name = path.rstrip("/").rpartition("/")[2]
    sandbox.files.download(path, Path(target) / name if Path(target).is_dir() else target, user=user)


@click.group()
def files() -> None:
    """List, show, clone and remove files of a sandbox."""


@files.command("ls")
@click.argument("place", metavar="SANDBOX:PATH")
@click.option("--depth", default=1, show_default=True, help="How far down.")
@user_option
@as_json
@click.pass_context
def list_files(ctx: click.Context, place: str, depth: int, user: str | None, as_json: bool) -> None:
    """List a directory."""
    sandbox, path = sandbox_at(ctx, place)
    entries = sandbox.files.list(path, depth=depth, user=user)
    if as_json:
        print_json(entries)
        return
    top = sandbox.files.stat(path, follow=True, user=user).path.rstrip("/") + "/"
    rows = [
        (
            _MARKS.get(entry.type, "-") + entry.mode,
            str(entry.uid),
            str(entry.size),
            day_and_time(entry.modified_at),
            _shown(entry.path.removeprefix(top), entry.link_target, entry.error),
        )
        for entry in entries
    ]
    print_table(("MODE", "UID", "SIZE", "MODIFIED", "NAME"), rows)


def _shown(name: str, target: str | None, error: str | None) -> str:
    return name + (f" -> {target}" if target else "") + (f" ({error})" if error else "")


@files.command()
@click.argument("place", metavar="SANDBOX:PATH")
@user_option
@click.pass_context
def cat(ctx: click.Context, place: str, user: str | None) -> None:
    """Write a file to standard output, byte for byte."""
    sandbox, path = sandbox_at(ctx, place)
    sandbox.files.download(path, sys.stdout.buffer, user=user)


@files.command()
@click.argument("url")
@click.argument("place", metavar="SANDBOX:PATH")
@click.option("--depth", type=click.IntRange(min=1), help="Only so many commits.")
@click.option("--branch", help="This one, or a tag, and not the default.")
@user_option
@as_json
@click.pass_context
def clone(
    ctx: click.Context, url: str, place: str, depth: int | None, branch: str | None, user: str | None, as_json: bool
) -> None:
    """Run git clone inside a sandbox, and show its progress."""
    sandbox, path = sandbox_at(ctx, place)
    with CloneScreen(sys.stderr) as screen:
        done = sandbox.files.clone(url, path, depth=depth, branch=branch, user=user, on_progress=screen.show)
    if as_json:
        print_json(done)
        return
    click.echo(plain(f"{done.path}  {done.branch or '(no branch)'}  {done.commit or '(empty)'}"))


class CloneScreen:
    """Progress on one line that changes, or, where nobody looks, a line for each phase at its end."""

    def __init__(self, screen: TextIO) -> None:
        self._screen = screen
        self._changing = screen.isatty()
        self._shown = ""
        self._said = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._write("\n")

    def show(self, progress: CloneProgress) -> None:
        line = plain(f"{progress.phase}: {progress.percent} % ({progress.done}/{progress.total})")[:78]
        if self._changing:
            self._write("\r" + line.ljust(len(self._shown)))
            self._shown = line
        elif progress.done == progress.total and line != self._said:  # git says the end of a phase twice
            self._write(line + "\n")
            self._said = line

    def _write(self, text: str) -> None:
        self._screen.write(text)
        self._screen.flush()


@files.command("rm")
@click.argument("places", metavar="SANDBOX:PATH...", nargs=-1, required=True)
@click.option("--recursive", "-r", is_flag=True, help="Directories with all below them.")
@user_option
@click.pass_context
def remove_files(ctx: click.Context, places: tuple[str, ...], recursive: bool, user: str | None) -> None:
    """Remove files."""
    for place in places:
        sandbox, path = sandbox_at(ctx, place)
        sandbox.files.remove(path, recursive=recursive, user=user)


@click.command()
@click.argument("place", metavar="SANDBOX:PATH")
@click.option("--include", multiple=True, help="Only files that fit this pattern; repeatable.")
@click.option("--exclude", multiple=True, help="Not what fits this pattern; repeatable.")
@click.option("--flat", is_flag=True, help="Only the directory itself.")
@user_option
@click.pass_context
def watch(
    ctx: click.Context, place: str, include: tuple[str, ...], exclude: tuple[str, ...], flat: bool, user: str | None
) -> None:
    """Print what changes in a directory, a line a change, until Ctrl-C."""
    sandbox, path = sandbox_at(ctx, place)
    with sandbox.files.watch(path, recursive=not flat, include=include, exclude=exclude, user=user) as watching:
        click.echo(f"watching {plain(path)}", err=True)
        for change in watching:
            click.echo(line_of(change))


def line_of(change: FileChange) -> str:
    """Names cannot control the terminal, nor pretend to be two lines."""
    parts = [change.kind, plain(change.path or "")]
    if change.destination is not None:
        parts.append("-> " + plain(change.destination))
    if change.reason is not None:
        parts.append(f"({plain(change.reason)})")
    return "  ".join(part for part in parts if part)
