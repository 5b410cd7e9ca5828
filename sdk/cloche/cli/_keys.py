"""``cloche keys``: who may use the server. Needs an admin key."""

from __future__ import annotations

import click

from cloche.cli import _options
from cloche.cli._print import day_and_time, print_json, print_table
from cloche.models import Role


@click.group()
def keys() -> None:
    """API keys."""


@keys.command()
@click.argument("owner")
@click.option("--role", type=click.Choice([str(role) for role in Role]), default=str(Role.MEMBER), show_default=True)
@click.option("--label", default="", help="What the key is for.")
@_options.as_json
@click.pass_context
def create(ctx: click.Context, owner: str, role: str, label: str, as_json: bool) -> None:
    """Make a key for OWNER and print its secret: it is shown this one time."""
    key = _options.client_of(ctx).keys.create(owner, role=role, label=label)
    if as_json:
        print_json(key)
        return
    click.echo(key.secret)
    click.echo(f"{key.id}: {key.role} key of {key.owner}; keep the secret, it is not shown again", err=True)


@keys.command("ls")
@_options.as_json
@click.pass_context
def list_keys(ctx: click.Context, as_json: bool) -> None:
    """List the keys, without their secrets."""
    found = _options.client_of(ctx).keys.list()
    if as_json:
        print_json(found)
        return
    rows = [
        (key.id, key.owner, key.role, day_and_time(key.created_at), day_and_time(key.revoked_at), key.label)
        for key in found
    ]
    print_table(("ID", "OWNER", "ROLE", "CREATED", "REVOKED", "LABEL"), rows)


@keys.command()
@click.argument("key_ids", nargs=-1, required=True, metavar="KEY_ID...")
@click.pass_context
def revoke(ctx: click.Context, key_ids: tuple[str, ...]) -> None:
    """End keys at once."""
    client = _options.client_of(ctx)
    for key_id in key_ids:
        client.keys.revoke(key_id)
        click.echo(f"revoked {key_id}")
