"""``cloche snapshot``, ``snapshots``, ``restore`` and ``fork``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cloche import models
from cloche._sandbox import Sandbox
from cloche.cli import _options
from cloche.cli._amounts import bytes_of, seconds_of
from cloche.cli._failures import SERVICE, each, line_of, say
from cloche.cli._lifecycle import Duration
from cloche.cli._print import day_and_time, pairs_of, print_facts, print_json, print_table
from cloche.cli._terminal_text import plain
from cloche.errors import ClocheError

complete_snapshot = _options.completer(
    lambda client: ((saved.name or saved.id, saved.image) for saved in client.snapshots.list(limit=50))
)

snapshot_argument = click.argument("snapshot", metavar="SNAPSHOT", shell_complete=complete_snapshot)


@click.command()
@_options.sandbox_argument
@click.option("--name", help="A name to find it by.")
@_options.labels
@click.option("--keep-last", type=click.IntRange(min=1), metavar="N", help="Keep only N newest of its series.")
@click.option("--ttl", type=Duration(), help="Delete it after so long: 2h, 7d.")
@click.option("--files-only", is_flag=True, help="Without memory.")
@_options.as_json
@click.pass_context
def snapshot(
    ctx: click.Context,
    /,
    *,
    sandbox: str,
    name: str | None,
    labels: tuple[tuple[str, str], ...],
    keep_last: int | None,
    ttl: float | None,
    files_only: bool,
    as_json: bool,
) -> None:
    """Save SANDBOX as it is now and print the snapshot's id. It goes on running."""
    kept = {field: value for field, value in (("ttl_s", ttl), ("keep_last", keep_last)) if value is not None}
    made = Sandbox.connect(sandbox, client=_options.client_of(ctx)).snapshot(
        name, labels=_options.as_dict(labels), memory=False if files_only else None, retention=kept or None
    )
    if as_json:
        print_json(made)
        return
    click.echo(made.id)
    click.echo(f"{_content(made)}, {bytes_of(made.size_bytes)}; stood still for {seconds_of(made.paused_s)}", err=True)


@click.group()
def snapshots() -> None:
    """Saved sandboxes; SNAPSHOT is an id or a name."""


@snapshots.command("ls")
@click.argument("sandbox", required=False, shell_complete=_options.complete_sandbox)
@click.option("--name", help="Only this name.")
@_options.labels
@_options.owner
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@_options.as_json
@click.pass_context
def list_snapshots(
    ctx: click.Context,
    /,
    *,
    sandbox: str | None,
    name: str | None,
    labels: tuple[tuple[str, str], ...],
    owner: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List snapshots, of SANDBOX or all, newest first."""
    client = _options.client_of(ctx)
    source = None if sandbox is None else Sandbox.connect(sandbox, client=client)
    found = client.snapshots.list(sandbox=source, name=name, labels=_options.as_dict(labels), owner=owner, limit=limit)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            saved.id,
            saved.name or "",
            saved.sandbox_id or "imported",
            _content(saved),
            bytes_of(saved.size_bytes),
            day_and_time(saved.created_at),
            day_and_time(saved.expires_at),
            pairs_of(saved.labels),
        )
        for saved in found
    ]
    print_table(("ID", "NAME", "SANDBOX", "CONTENT", "SIZE", "CREATED", "EXPIRES", "LABELS"), rows)


@snapshots.command()
@snapshot_argument
@_options.as_json
@click.pass_context
def show(ctx: click.Context, snapshot: str, as_json: bool) -> None:
    """Show SNAPSHOT."""
    found = _options.client_of(ctx).snapshots.get(snapshot)
    if as_json:
        print_json(found)
        return
    facts = [
        ("id", found.id),
        ("name", found.name or ""),
        ("state", found.state),
        ("owner", found.owner),
        ("sandbox", found.sandbox_id or "imported"),
        ("parent", found.parent or ""),
        ("template", found.template or ""),
        ("content", _content(found)),
        ("size", bytes_of(found.size_bytes)),
        ("stood still", seconds_of(found.paused_s)),
        ("image", f"{found.image} ({found.image_digest[:19]})"),
        ("driver", found.driver),
        ("volumes", ", ".join(f"{attached.volume} at {attached.path}" for attached in found.volumes)),
        ("digest", found.digest or ""),
        ("labels", pairs_of(found.labels)),
        ("created", day_and_time(found.created_at)),
        ("expires", day_and_time(found.expires_at)),
    ]
    print_facts([(name, value) for name, value in facts if value])


@snapshots.command()
@_options.sandbox_argument
@_options.as_json
@click.pass_context
def tree(ctx: click.Context, sandbox: str, as_json: bool) -> None:
    """Draw which snapshot of SANDBOX came from which."""
    place = Sandbox.connect(sandbox, client=_options.client_of(ctx))
    found = place.snapshot_tree()
    if as_json:
        print_json(found)
        return
    for node in found.nodes:
        saved = node.snapshot
        here = "  <- the sandbox came from here" if saved.id == place.info.parent else ""
        name = f" {plain(saved.name)}" if saved.name else ""
        click.echo(f"{'  ' * node.depth}{saved.id}{name}  {day_and_time(saved.created_at)}{here}")


@snapshots.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="SNAPSHOT...", shell_complete=complete_snapshot)
@click.pass_context
def remove(ctx: click.Context, names: tuple[str, ...]) -> int:
    """Delete snapshots. What was made from them stays."""
    client = _options.client_of(ctx)
    return each(names, lambda name: f"deleted {client.snapshots.delete(name).id}")


@snapshots.command()
@snapshot_argument
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.pass_context
def export(ctx: click.Context, snapshot: str, file: Path) -> None:
    """Write SNAPSHOT as one tar FILE, or to standard output (-). It holds memory and environment: keep it secret."""
    exported = _options.client_of(ctx).snapshots.export
    if str(file) == "-":
        exported(snapshot, sys.stdout.buffer)
        return
    click.echo(f"{file}: {bytes_of(exported(snapshot, file))}", err=True)


@snapshots.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--name", help="A name to find it by.")
@_options.as_json
@click.pass_context
def import_snapshot(ctx: click.Context, file: Path, name: str | None, as_json: bool) -> None:
    """Take in what `export` wrote, from FILE or standard input (-), and print the new snapshot's id."""
    source = sys.stdin.buffer if str(file) == "-" else file
    made = _options.client_of(ctx).snapshots.import_(source, name=name)
    print_json(made) if as_json else click.echo(made.id)


@click.command()
@_options.sandbox_argument
@snapshot_argument
@_options.as_json
@click.pass_context
def restore(ctx: click.Context, sandbox: str, snapshot: str, as_json: bool) -> None:
    """Roll SANDBOX back to SNAPSHOT, in place: what is in it now is lost."""
    info = Sandbox.connect(sandbox, client=_options.client_of(ctx)).restore(snapshot)
    print_json(info) if as_json else click.echo(f"restored {info.id} to {info.parent or snapshot}: {info.state}")


@click.command()
@_options.sandbox_argument
@click.option("--count", "-n", type=click.IntRange(1, 100), help="How many. [default: 1, or one for each --name]")
@click.option("--name", "names", multiple=True, help="Of a child; repeatable, one for each.")
@_options.env
@_options.labels
@click.option("--files-only", is_flag=True, help="Without memory: children start with the files alone.")
@_options.as_json
@click.pass_context
def fork(
    ctx: click.Context,
    /,
    *,
    sandbox: str,
    count: int | None,
    names: tuple[str, ...],
    env: tuple[tuple[str, str], ...],
    labels: tuple[tuple[str, str], ...],
    files_only: bool,
    as_json: bool,
) -> int:
    """Make more sandboxes from this instant of SANDBOX and print their ids. They stay until they are deleted."""
    if count is not None and names and len(names) != count:
        raise click.UsageError(f"{len(names)} names for {count} children: give one for each, or none")
    made = Sandbox.connect(sandbox, client=_options.client_of(ctx)).fork(
        count or len(names) or 1,
        names=list(names) or None,
        env=_options.as_dict(env),
        labels=_options.as_dict(labels),
        memory=False if files_only else None,
    )
    if as_json:
        print_json({"children": list(map(_child, made.children)), "paused_s": made.paused_s, "ready_s": made.ready_s})
    else:
        for child in made.sandboxes:
            click.echo(child.id)
        click.echo(f"stood still for {seconds_of(made.paused_s)}; all there after {seconds_of(made.ready_s)}", err=True)
    for place, error in made.errors.items():
        say(f"child {place}: {line_of(error)}")
    return SERVICE if made.errors else 0


def _child(child: Sandbox | ClocheError) -> dict[str, object]:
    if isinstance(child, ClocheError):
        return {"sandbox": None, "error": child.to_body().model_dump(mode="json")}
    return {"sandbox": child.info.model_dump(mode="json"), "error": None}


def _content(saved: models.Snapshot) -> str:
    return "memory and files" if saved.memory else "files"
