"""``cloche shell`` and ``cloche terminals``."""

from __future__ import annotations

import asyncio
import shutil
import sys
from typing import Final
from urllib.parse import urlencode

import click

from cloche import _calls
from cloche._client import Client
from cloche._flow import send
from cloche._sandbox import Sandbox
from cloche._terminals import Terminal, _where
from cloche.cli import _options
from cloche.cli._creating import create_sandbox
from cloche.cli._failures import each
from cloche.cli._print import day_and_time, print_json, print_table
from cloche.cli._terminal_text import plain
from cloche.errors import NotFound
from cloche.models.browser import BrowserLoginCreate
from cloche.models.terminals import TerminalExit

_PROGRAM: Final = "cloche.shell.program"


class _BehindDashes(click.Command):
    """What is behind ``--`` is the program, also where no SANDBOX is before it: click alone would take its first word
    for one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[_PROGRAM] = args[place + 1 :]
            args = args[:place]
        return super().parse_args(ctx, args)


@click.command(cls=_BehindDashes)
@click.argument("sandbox", required=False, metavar="[SANDBOX]", shell_complete=_options.complete_sandbox)
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]", type=click.UNPROCESSED)
@click.option("--terminal", "terminal_id", metavar="ID", help="Attach to this one instead of starting one.")
@click.option("--image", help="For a new sandbox: name or digest.")
@click.option("--driver", type=click.Choice(["gvisor", "runc"]), help="For a new sandbox.")
@click.option("--keep", is_flag=True, help="Keep the new sandbox.")
@click.option("--cwd", help="Working directory in the sandbox. [default: /workspace]")
@_options.env
@click.option("--wake", is_flag=True, help="Wake the sandbox by itself when it is put to rest meanwhile.")
@click.option("--browser", is_flag=True, help="Print a link that opens it in a browser, once.")
@click.pass_context
def shell(
    ctx: click.Context,
    /,
    *,
    sandbox: str | None,
    command: tuple[str, ...],
    terminal_id: str | None,
    image: str | None,
    driver: str | None,
    keep: bool,
    cwd: str | None,
    env: tuple[tuple[str, str], ...],
    wake: bool,
    browser: bool,
) -> int:
    """Open a shell (or COMMAND) in SANDBOX, or in a new one that is deleted afterwards.

    Ctrl-] leaves, and everything goes on: `cloche shell SANDBOX --terminal ID` comes back. A lost connection is mended.
    The exit code is the program's.
    """
    if sandbox is not None and (image or driver or keep):
        raise click.UsageError("--image, --driver and --keep are for new sandboxes")
    if wake and browser:
        raise click.UsageError("--wake is for a shell here, and --browser opens one elsewhere")
    if not browser and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("a shell needs a terminal; use `cloche run` in scripts, or --browser")
    client = _options.client_of(ctx)
    place = Sandbox.connect(sandbox, client=client) if sandbox else create_sandbox(client, image, driver=driver)
    stays = sandbox is not None or keep or browser
    try:
        terminal = _terminal(place, terminal_id, (*command, *ctx.meta.get(_PROGRAM, ())), cwd, _options.as_dict(env))
        if browser:
            click.echo(client.url + _login_path(client, place.id, terminal.id))
            return 0
        ended = asyncio.run(_use(place, terminal, wake=wake))
        if ended is None:
            stays = True
            click.echo(f"left; come back with: cloche shell {place.id} --terminal {terminal.id}", err=True)
            return 0
        return ended.code if ended.code is not None else 128 + (ended.signal or 0)
    finally:
        if not stays:
            place.delete()


def _terminal(
    place: Sandbox, terminal_id: str | None, command: tuple[str, ...], cwd: str | None, env: dict[str, str] | None
) -> Terminal:
    if terminal_id is not None:
        return place.terminals.get(terminal_id)
    size = shutil.get_terminal_size()
    cols, rows = max(2, size.columns), max(1, size.lines)
    return place.terminals.create(command=list(command) or None, cwd=cwd, env=env, cols=cols, rows=rows)


async def _use(place: Sandbox, terminal: Terminal, *, wake: bool) -> TerminalExit | None:
    from cloche.cli._own_terminal import OwnTerminal  # noqa: PLC0415 - termios is not everywhere
    from cloche.cli._shell_session import ShellSession  # noqa: PLC0415

    where = _where(terminal._link, terminal._path, None, None)
    own = OwnTerminal(sys.stdin.fileno(), sys.stdout.fileno())

    async def rouse() -> object:
        return await asyncio.to_thread(place.resume)

    return await ShellSession(where, own, rouse, by_itself=wake).run()


def _login_path(client: Client, sandbox_id: str, terminal_id: str) -> str:
    page = "/ui/terminal?" + urlencode({"sandbox": sandbox_id, "terminal": terminal_id})
    return client._link.drive(send(_calls.create_login(BrowserLoginCreate(next=page)))).path


@click.group()
def terminals() -> None:
    """Terminals of a sandbox."""


@terminals.command("ls")
@_options.sandbox_argument
@_options.as_json
@click.pass_context
def list_terminals(ctx: click.Context, sandbox: str, as_json: bool) -> None:
    """List the terminals of SANDBOX, also those whose program has ended."""
    found = [item.info for item in Sandbox.connect(sandbox, client=_options.client_of(ctx)).terminals.list()]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            info.id,
            plain(info.name or ""),
            info.state if info.exit is None else f"exited {_how(info.exit)}",
            f"{info.cols}x{info.rows}",
            str(info.viewers),
            plain(" ".join(info.argv))[:60],
            day_and_time(info.last_activity_at),
        )
        for info in found
    ]
    print_table(("TERMINAL", "NAME", "STATE", "SIZE", "VIEWERS", "COMMAND", "LAST ACTIVITY"), rows)


@terminals.command("rm")
@_options.sandbox_argument
@click.argument("ids", nargs=-1, required=True, metavar="TERMINAL...")
@click.pass_context
def remove(ctx: click.Context, sandbox: str, ids: tuple[str, ...]) -> int:
    """End terminals (ids or names) with everything they started."""
    place = Sandbox.connect(sandbox, client=_options.client_of(ctx))

    def delete(wanted: str) -> str:
        found = _found(place, wanted)
        found.delete()
        return f"deleted {found.id}"

    return each(ids, delete)


@terminals.command()
@_options.sandbox_argument
@click.argument("terminal", metavar="TERMINAL")
@click.option("--for", "ttl_s", type=click.IntRange(min=1), default=3600, show_default=True, metavar="SECONDS")
@click.pass_context
def share(ctx: click.Context, sandbox: str, terminal: str, ttl_s: int) -> None:
    """Print a link with which anybody can watch TERMINAL, and do nothing else."""
    client = _options.client_of(ctx)
    click.echo(client.url + _found(Sandbox.connect(sandbox, client=client), terminal).share(ttl_s=ttl_s).path)


@terminals.command()
@_options.sandbox_argument
@click.argument("terminal", metavar="TERMINAL")
@_options.as_json
@click.pass_context
def shares(ctx: click.Context, sandbox: str, terminal: str, as_json: bool) -> None:
    """List the links for watching TERMINAL that are good. Their tokens are not kept."""
    found = _found(Sandbox.connect(sandbox, client=_options.client_of(ctx)), terminal).shares()
    if as_json:
        print_json(found)
        return
    rows = [(one.id, str(one.watchers), day_and_time(one.created_at), day_and_time(one.expires_at)) for one in found]
    print_table(("LINK", "WATCHERS", "MADE", "ENDS"), rows)


@terminals.command()
@_options.sandbox_argument
@click.argument("terminal", metavar="TERMINAL")
@click.argument("ids", nargs=-1, required=True, metavar="LINK...")
@click.pass_context
def unshare(ctx: click.Context, sandbox: str, terminal: str, ids: tuple[str, ...]) -> int:
    """Revoke links for watching TERMINAL (ids as `shares` lists them); who watches by one is cut off."""
    found = _found(Sandbox.connect(sandbox, client=_options.client_of(ctx)), terminal)

    def revoke(wanted: str) -> str:
        found.revoke_share(wanted)
        return f"revoked {wanted}"

    return each(ids, revoke)


def _found(place: Sandbox, id_or_name: str) -> Terminal:
    for terminal in place.terminals.list():
        if id_or_name in (terminal.id, terminal.info.name):
            return terminal
    raise NotFound(f"the sandbox {place.id} has no terminal {id_or_name}")


def _how(exit_: TerminalExit) -> str:
    return f"({exit_.code})" if exit_.code is not None else f"(signal {exit_.signal})"
