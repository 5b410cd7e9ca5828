"""``cloche volumes`` and ``cloche usage``: what outlives sandboxes, and what sandboxes cost."""

from __future__ import annotations

from typing import Any

import click

from cloche import models
from cloche._sandbox import Sandbox
from cloche.cli import _options
from cloche.cli._amounts import bytes_of, duration_of
from cloche.cli._failures import each
from cloche.cli._print import day_and_time, pairs_of, print_facts, print_json, print_table

READ_ONLY = ":ro"


class Attachment(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3 only
    """``VOLUME:PATH[:ro]``."""

    name = "VOLUME:PATH[:ro]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> models.VolumeAttachment:
        if isinstance(value, models.VolumeAttachment):
            return value
        text = str(value)
        volume, _, path = text.removesuffix(READ_ONLY).partition(":")
        if not volume or not path.startswith("/"):
            self.fail(f"{text!r} is not VOLUME:PATH or VOLUME:PATH:ro, with an absolute path", param, ctx)
        return models.VolumeAttachment(volume=volume, path=path, read_only=text.endswith(READ_ONLY))


volume_option = click.option(
    "--volume", "-v", "volumes", multiple=True, type=Attachment(), help="Attach a volume; repeatable."
)


complete_volume = _options.completer(
    lambda client: ((volume.name, f"{volume.size_mb} MiB") for volume in client.volumes.list())
)


@click.group()
def volumes() -> None:
    """Named disks that outlive sandboxes: `cloche create --volume NAME:/data`."""


@volumes.command()
@click.argument("name")
@click.option("--size", "size_mb", type=click.IntRange(16, 1_048_576), metavar="MIB", help="MiB it may hold (1024).")
@_options.labels
@_options.as_json
@click.pass_context
def create(
    ctx: click.Context, name: str, size_mb: int | None, labels: tuple[tuple[str, str], ...], as_json: bool
) -> None:
    """Make an empty volume and print its id."""
    made = _options.client_of(ctx).volumes.create(name, size_mb=size_mb, labels=_options.as_dict(labels))
    if as_json:
        print_json(made)
        return
    click.echo(made.id)
    click.echo(f"{made.name}: {made.size_mb} MiB", err=True)


@volumes.command("ls")
@_options.labels
@_options.owner
@_options.as_json
@click.pass_context
def list_volumes(ctx: click.Context, labels: tuple[tuple[str, str], ...], owner: str | None, as_json: bool) -> None:
    """List volumes, newest first."""
    found = _options.client_of(ctx).volumes.list(labels=_options.as_dict(labels), owner=owner)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            volume.name,
            volume.id,
            f"{volume.size_mb} MiB",
            bytes_of(volume.used_bytes),
            str(len(volume.attached_to)),
            day_and_time(volume.created_at),
            pairs_of(volume.labels),
        )
        for volume in found
    ]
    print_table(("NAME", "ID", "SIZE", "USED", "SANDBOXES", "CREATED", "LABELS"), rows)


@volumes.command()
@click.argument("volume", shell_complete=complete_volume)
@_options.as_json
@click.pass_context
def show(ctx: click.Context, volume: str, as_json: bool) -> None:
    """Show VOLUME (name or id) and which sandboxes have it."""
    found = _options.client_of(ctx).volumes.get(volume)
    if as_json:
        print_json(found)
        return
    facts = [
        ("name", found.name),
        ("id", found.id),
        ("owner", found.owner),
        ("size", f"{found.size_mb} MiB"),
        ("used", bytes_of(found.used_bytes)),
        ("attached to", ", ".join(found.attached_to) or "no sandbox"),
        ("labels", pairs_of(found.labels)),
        ("created", day_and_time(found.created_at)),
    ]
    print_facts([(name, value) for name, value in facts if value])


@volumes.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="VOLUME...", shell_complete=complete_volume)
@click.pass_context
def remove(ctx: click.Context, names: tuple[str, ...]) -> int:
    """Delete volumes (names or ids) with everything in them; not while a sandbox has them."""
    client = _options.client_of(ctx)

    def delete(name: str) -> str:
        deleted = client.volumes.delete(name)
        return f"deleted {deleted.name} ({deleted.id})"

    return each(names, delete)


@click.command()
@click.argument("sandbox", required=False, shell_complete=_options.complete_sandbox)
@click.option("--deleted", is_flag=True, help="Of deleted sandboxes.")
@_options.owner
@_options.as_json
@click.pass_context
def usage(ctx: click.Context, sandbox: str | None, deleted: bool, owner: str | None, as_json: bool) -> None:
    """What SANDBOX has cost in all its lives, or a table of all sandboxes."""
    if sandbox is not None and (deleted or owner):
        raise click.UsageError("--deleted and --owner are for the table of all sandboxes")
    client = _options.client_of(ctx)
    if sandbox is not None:
        one = Sandbox.connect(sandbox, client=client).usage()
        print_json(one) if as_json else print_facts(_facts(one))
        return
    found = client.usage(state="deleted" if deleted else None, owner=owner)
    if as_json:
        print_json(found)
        return
    print_table(("SANDBOX", "CPU", "MEMORY", "PEAK", "GIB-HOURS", "DISK", "RECEIVED", "SENT", "RAN"), _rows(found))


def _facts(usage: models.Usage) -> list[tuple[str, str]]:
    return [
        ("sandbox", usage.sandbox_id),
        ("CPU", f"{usage.cpu_s:.2f} s"),
        ("memory", f"{bytes_of(usage.memory_bytes)} now, {bytes_of(usage.memory_peak_bytes)} at most"),
        ("memory x time", f"{_gib_hours(usage):.4f} GiB-hours"),
        ("disk", bytes_of(usage.disk_bytes)),
        ("received", f"{bytes_of(usage.uplink_received_bytes)} from it"),
        ("sent", f"{bytes_of(usage.uplink_sent_bytes)} to it"),
        ("processes", str(usage.processes)),
        ("ran", duration_of(usage.running_s)),
    ]


def _rows(found: list[models.Usage]) -> list[tuple[str, ...]]:
    return [
        (
            usage.sandbox_id,
            f"{usage.cpu_s:.1f} s",
            bytes_of(usage.memory_bytes),
            bytes_of(usage.memory_peak_bytes),
            f"{_gib_hours(usage):.3f}",
            bytes_of(usage.disk_bytes),
            bytes_of(usage.uplink_received_bytes),
            bytes_of(usage.uplink_sent_bytes),
            duration_of(usage.running_s),
        )
        for usage in found
    ]


def _gib_hours(usage: models.Usage) -> float:
    return usage.memory_mb_s / 1024 / 3600
