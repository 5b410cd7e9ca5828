"""``cloche create``, ``ls``, ``show``, ``rm``."""

from __future__ import annotations

import json
import time
from typing import Any, TypedDict

import click
from pydantic import JsonValue

from cloche import models
from cloche._sandbox import Sandbox
from cloche.cli import _options
from cloche.cli._amounts import limits_of, seconds_of
from cloche.cli._contexts import print_contexts
from cloche.cli._creating import create_sandbox
from cloche.cli._failures import each
from cloche.cli._lifecycle import endings_of, lifecycle_options, now_utc, origin_of, policy_of
from cloche.cli._print import day_and_time, pairs_of, print_facts, print_json, print_table
from cloche.cli._snapshots import complete_snapshot
from cloche.cli._templates import complete_template
from cloche.cli._volumes import volume_option


@click.command()
@click.option("--image", help="Name or digest of an image.")
@click.option("--name", help="A name to find it by.")
@click.option("--driver", type=click.Choice(["gvisor", "runc"]), help="[default: the strongest that works]")
@_options.resources
@click.option("--no-sudo", is_flag=True, help="Leave no way to become root inside.")
@click.option("--template", shell_complete=complete_template, help="NAME or NAME@VERSION: begin as it was made ready.")
@click.option("--snapshot", shell_complete=complete_snapshot, help="Id or name: begin as it was saved.")
@lifecycle_options
@click.option("--no-warm", is_flag=True, help="Take none out of a pool.")
@volume_option
@_options.env
@_options.labels
@_options.metadata
@_options.as_json
@click.pass_context
def create(
    ctx: click.Context,
    /,
    *,
    image: str | None,
    name: str | None,
    driver: str | None,
    no_sudo: bool,
    template: str | None,
    snapshot: str | None,
    no_warm: bool,
    volumes: tuple[models.VolumeAttachment, ...],
    env: tuple[tuple[str, str], ...],
    labels: tuple[tuple[str, str], ...],
    metadata: tuple[tuple[str, JsonValue], ...],
    as_json: bool,
    **others: Any,
) -> None:
    """Create a sandbox and print its id. It stays until it is deleted."""
    client, started = _options.client_of(ctx), time.monotonic()
    made = create_sandbox(
        client,
        image,
        name=name,
        driver=driver,
        resources=_options.resources_of(others),
        env=_options.as_dict(env),
        labels=_options.as_dict(labels),
        metadata=dict(metadata) or None,
        volumes=volumes or None,
        sudo=False if no_sudo else None,
        template=template,
        snapshot=snapshot,
        lifecycle=policy_of(others),
        warm=False if no_warm else None,
    )
    if as_json:
        print_json(made.info)
        return
    click.echo(made.id)
    warm = ", warm" if made.info.origin.warm else ""
    click.echo(f"{made.info.image} on {made.info.driver} in {seconds_of(time.monotonic() - started)}{warm}", err=True)


@click.command("ls")
@click.option("--state", type=click.Choice([str(state) for state in models.SandboxState]), help="Only in this state.")
@click.option("--name", help="Only this name.")
@click.option("--all", "with_deleted", is_flag=True, help="Deleted ones, too.")
@_options.labels
@_options.owner
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@_options.as_json
@click.pass_context
def list_sandboxes(
    ctx: click.Context,
    /,
    *,
    state: str | None,
    name: str | None,
    with_deleted: bool,
    labels: tuple[tuple[str, str], ...],
    owner: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List sandboxes, newest first."""
    client = _options.client_of(ctx)
    wanted: ListOptions = {"name": name, "labels": _options.as_dict(labels), "owner": owner, "limit": limit}
    found = client.list_sandboxes(state=state, **wanted)
    if with_deleted and state is None:
        found = _with_deleted(found, client.list_sandboxes(state="deleted", **wanted), limit)
    if as_json:
        print_json(found)
        return
    now = now_utc()
    rows = [
        (
            sandbox.id,
            sandbox.name or "",
            sandbox.state,
            sandbox.image,
            sandbox.driver,
            origin_of(sandbox),
            next(iter(endings_of(sandbox, now)), ""),
            day_and_time(sandbox.created_at),
            pairs_of(sandbox.labels),
        )
        for sandbox in found
    ]
    print_table(("ID", "NAME", "STATE", "IMAGE", "DRIVER", "FROM", "NEXT", "CREATED", "LABELS"), rows)


class ListOptions(TypedDict):
    """What is asked of a list, but for the state."""

    name: str | None
    labels: dict[str, str] | None
    owner: str | None
    limit: int | None


def _with_deleted(
    found: list[models.Sandbox], deleted: list[models.Sandbox], limit: int | None
) -> list[models.Sandbox]:
    """The server lists those by themselves only."""
    return sorted([*found, *deleted], key=lambda sandbox: sandbox.created_at, reverse=True)[:limit]


@click.command()
@_options.sandbox_argument
@_options.as_json
@click.pass_context
def show(ctx: click.Context, sandbox: str, as_json: bool) -> None:
    """Show SANDBOX (id or name) and its contexts."""
    found = Sandbox.connect(sandbox, client=_options.client_of(ctx))
    running = found.info.state is models.SandboxState.RUNNING
    contexts = [info for context in (found.contexts.list() if running else []) if (info := context.info)]
    if as_json:
        print_json(
            {
                "sandbox": found.info.model_dump(mode="json"),
                "contexts": [context.model_dump(mode="json") for context in contexts],
            }
        )
        return
    print_facts(_facts(found.info))
    if contexts:
        click.echo()
        print_contexts(contexts)


@click.command("rm")
@click.argument("sandboxes", nargs=-1, required=True, metavar="SANDBOX...", shell_complete=_options.complete_sandbox)
@click.pass_context
def remove(ctx: click.Context, sandboxes: tuple[str, ...]) -> int:
    """Delete sandboxes (ids or names) with everything in them."""
    client = _options.client_of(ctx)

    def delete(wanted: str) -> str:
        found = Sandbox.connect(wanted, client=client)
        found.delete()
        return f"deleted {found.id}"

    return each(sandboxes, delete)


def _facts(sandbox: models.Sandbox) -> list[tuple[str, str]]:
    facts = [
        ("id", sandbox.id),
        ("name", sandbox.name or ""),
        ("state", sandbox.state),
        ("failure", sandbox.failure.message if sandbox.failure else ""),
        ("from", origin_of(sandbox)),
        ("parent", sandbox.parent or ""),
        ("lifetime", ", ".join(endings_of(sandbox, now_utc())) or "until it is deleted"),
        ("owner", sandbox.owner),
        ("image", f"{sandbox.image} ({sandbox.image_digest[:19]})"),
        ("driver", f"{sandbox.driver}: {sandbox.isolation}"),
        ("capabilities", ", ".join(sandbox.capabilities)),
        ("resources", limits_of(sandbox.resources)),
        ("volumes", ", ".join(_volume(attachment) for attachment in sandbox.volumes)),
        ("sudo", "yes" if sandbox.sudo else "no"),
        ("env", ", ".join(sandbox.env)),
        ("labels", pairs_of(sandbox.labels)),
        ("metadata", json.dumps(sandbox.metadata, ensure_ascii=False) if sandbox.metadata else ""),
        ("created", day_and_time(sandbox.created_at)),
        ("active", day_and_time(sandbox.last_activity_at)),
    ]
    return [(name, value) for name, value in facts if value]


def _volume(attachment: models.VolumeAttachment) -> str:
    return f"{attachment.volume} at {attachment.path}{' (read-only)' if attachment.read_only else ''}"
