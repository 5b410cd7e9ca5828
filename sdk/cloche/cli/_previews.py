"""``cloche ports`` and ``cloche preview``: what listens in a sandbox, and links to it."""

from __future__ import annotations

import click

from cloche._sandbox import Sandbox
from cloche.cli import _options
from cloche.cli._failures import say
from cloche.cli._print import print_json, print_table

port_argument = click.argument("port", type=click.IntRange(1, 65_535), metavar="PORT")


@click.command()
@_options.sandbox_argument
@_options.as_json
@click.pass_context
def ports(ctx: click.Context, sandbox: str, as_json: bool) -> None:
    """List the TCP ports that programs in SANDBOX listen on."""
    found = Sandbox.connect(sandbox, client=_options.client_of(ctx)).ports()
    if as_json:
        print_json(found)
        return
    rows = [
        (
            str(port.port),
            " ".join(port.addresses),
            str(port.process.pid) if port.process else "",
            port.process.command.partition("\n")[0][:120] if port.process else "",
        )
        for port in found
    ]
    print_table(("PORT", "ADDRESSES", "PID", "COMMAND"), rows)


@click.command()
@_options.sandbox_argument
@port_argument
@click.option("--public", is_flag=True, help="Let everybody in who can reach the server.")
@click.option("--revoke", is_flag=True, help="End every link so far; gives no new one.")
@_options.as_json
@click.pass_context
def preview(ctx: click.Context, /, *, sandbox: str, port: int, public: bool, revoke: bool, as_json: bool) -> None:
    """Print a link to PORT of SANDBOX. It lets in whoever has it, for a day."""
    if public and revoke:
        raise click.UsageError("--public and --revoke do not go together: a public preview has no links to end")
    place = Sandbox.connect(sandbox, client=_options.client_of(ctx))
    if revoke:
        _revoke(place, port)
        return
    made = place.preview(port, public=public)
    if made.info.warning is not None:
        say(f"warning: {made.info.warning}")
    if as_json:
        print_json({**made.info.model_dump(mode="json"), "token_url": made.token_url})
    else:
        click.echo(made.token_url)


def _revoke(sandbox: Sandbox, port: int) -> None:
    made = next((each for each in sandbox.previews() if each.port == port), None)
    if made is None:
        say(f"port {port} has no preview: there was nothing to end")
        return
    made.revoke()
    still = "; it is public, so everybody gets in without one" if made.public else ""
    say(f"all links to port {port} ended{still}")
