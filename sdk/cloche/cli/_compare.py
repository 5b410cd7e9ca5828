"""``cloche compare``: what differs between two sandboxes or snapshots. `lines_of` is pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from cloche._client import Client
from cloche._sandbox import Sandbox
from cloche.cli import _options
from cloche.cli._failures import CODE_FAILED, say
from cloche.cli._print import print_json
from cloche.cli._terminal_text import plain
from cloche.errors import NotFound
from cloche.models import Comparison, VariableDifference, VariableValue

SIGNS: Final = {"added": "+", "changed": "~", "removed": "-"}
COLOURS: Final = {"+": "green", "~": "yellow", "-": "red", "@": "cyan"}
"""Of lines, by their first character; as diff and git have them."""


@click.command()
@click.argument("before", shell_complete=_options.complete_sandbox)
@click.argument("after", shell_complete=_options.complete_sandbox)
@click.option("--diff", "diffs", is_flag=True, help="What changed within text files, too.")
@click.option("--root", metavar="DIR", help="Compare files below this directory. [default: /workspace]")
@_options.as_json
@click.pass_context
def compare(ctx: click.Context, before: str, after: str, diffs: bool, root: str | None, as_json: bool) -> int:
    """Say what differs from BEFORE to AFTER: files, and variables of Python contexts.

    Each is a sandbox or a snapshot, by id or name. Exit code: 0 nothing differs, 1 something does.
    """
    client = _options.client_of(ctx)
    ids = [_id_of(client, reference) for reference in (before, after)]
    found = client.compare(*ids, root=root, diffs=diffs or None)
    if as_json:
        print_json(found)
    else:
        for line in lines_of(found):
            click.secho(line, fg=COLOURS.get(line[:1]))
    if found.truncated:
        say("there is more: not everything that differs is listed")
    return CODE_FAILED if found.files or found.variables else 0


def _id_of(client: Client, reference: str) -> str:
    """A sandbox comes first where both have the name."""
    try:
        return Sandbox.connect(reference, client=client).id
    except NotFound:
        return client.snapshots.get(reference).id


def lines_of(found: Comparison) -> Iterator[str]:
    """One for each file and variable, and the lines of the diffs; controls in them are shown, not obeyed."""
    for file in found.files:
        yield plain(f"{SIGNS[file.change]} {file.path}")
        if file.diff is not None:
            yield from ("\t".join(map(plain, line.split("\t"))) for line in file.diff.splitlines())
    for variable in found.variables:
        yield plain(f"{SIGNS[variable.change]} {variable.context_id}: {_values(variable)}")


def _values(variable: VariableDifference) -> str:
    values = " -> ".join(_value(value) for value in (variable.before, variable.after) if value is not None)
    return f"{variable.name} = {values}"


def _value(value: VariableValue) -> str:
    return f"{value.summary} ({value.type})"
