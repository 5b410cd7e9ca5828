"""``cloche update``: what of a sandbox can be another without its being another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import click
from pydantic import JsonValue

from cloche._sandbox import Sandbox
from cloche.cli import _options
from cloche.cli._lifecycle import endings_of, lifecycle_options, now_utc, policy_of
from cloche.cli._print import print_json

V = TypeVar("V")


@click.command()
@_options.sandbox_argument
@click.option("--name", help="Another name.")
@click.option("--no-name", is_flag=True, help="No name any more.")
@_options.labels
@click.option("--rm-label", "no_labels", multiple=True, metavar="KEY", help="Without this label; repeatable.")
@_options.metadata
@click.option("--rm-metadata", "no_metadata", multiple=True, metavar="KEY", help="Without this one; repeatable.")
@lifecycle_options
@_options.as_json
@click.pass_context
def update(
    ctx: click.Context,
    /,
    *,
    sandbox: str,
    name: str | None,
    no_name: bool,
    labels: tuple[tuple[str, str], ...],
    no_labels: tuple[str, ...],
    metadata: tuple[tuple[str, JsonValue], ...],
    no_metadata: tuple[str, ...],
    as_json: bool,
    **policy: Any,
) -> None:
    """Change name, labels, metadata or lifecycle of SANDBOX; what is not said stays. It is not woken."""
    if name is not None and no_name:
        raise click.UsageError("give --name or --no-name, not both")
    found = Sandbox.connect(sandbox, client=_options.client_of(ctx))
    changes = {
        "name": name,
        "labels": merged(found.info.labels, labels, no_labels),
        "metadata": merged(found.info.metadata, metadata, no_metadata),
        "lifecycle": policy_of(policy, found.info.lifecycle),
    }
    if not no_name and all(value is None for value in changes.values()):
        raise click.UsageError("nothing to change: see cloche update --help")
    info = found.update(no_name=no_name, **changes)  # type: ignore[arg-type]
    if as_json:
        print_json(info)
        return
    coming = ", ".join(endings_of(info, now_utc()))
    click.echo(f"updated {info.id}{f': {coming}' if coming else ''}")


def merged(now: Mapping[str, V], more: Sequence[tuple[str, V]], less: Sequence[str]) -> dict[str, V] | None:
    """``now`` with ``more`` and without ``less``; None when neither says anything. What is not there can be left out, too."""
    if not more and not less:
        return None
    return {key: value for key, value in {**now, **dict(more)}.items() if key not in less}
