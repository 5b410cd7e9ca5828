"""``cloche events``: the journal of a sandbox."""

from __future__ import annotations

import json

import click

from cloche._sandbox import Sandbox
from cloche.cli import _options
from cloche.cli._terminal_text import plain
from cloche.models import Event


@click.command()
@_options.sandbox_argument
@click.option("--cursor", help="Go on behind the event with this cursor (--json shows them).")
@_options.as_json
@click.pass_context
def events(ctx: click.Context, sandbox: str, cursor: str | None, as_json: bool) -> None:
    """Print what happened and happens in SANDBOX, a line an event, until Ctrl-C. It is neither woken nor kept awake.

    With --json each line is one event.
    """
    place = Sandbox.connect(sandbox, client=_options.client_of(ctx))
    for event in place.events(cursor):
        click.echo(event.model_dump_json() if as_json else line_of(event))


def line_of(event: Event) -> str:
    """``process_exited  code=1 name="web"``; what is null is left out. Words of the sandbox cannot control the terminal."""
    said = [f"{plain(name)}={_value_of(value)}" for name, value in event.data.items() if value is not None]
    return "  ".join([plain(event.type), *([" ".join(said)] if said else [])])


def _value_of(value: object) -> str:
    return (
        plain(value)
        if isinstance(value, str) and value.isidentifier()
        else plain(json.dumps(value, ensure_ascii=False))
    )
