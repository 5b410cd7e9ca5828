"""``cloche image``: builds, lists, shows and removes images. Works on the store's files; no server is needed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from cloche_server.images.build import build_image
from cloche_server.images.image import Image
from cloche_server.images.paths import checkout_root
from cloche_server.images.store import ImageStore
from cloche_server.images.users import sandboxes_over

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


@click.group()
def image() -> None:
    """Root file systems for sandboxes."""


@image.command()
@click.argument("name")
@click.argument("directory", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--fresh", is_flag=True, help="Build from nothing, base included: brings in today's updates.")
@_as_json
def build(name: str, directory: Path | None, fresh: bool, as_json: bool) -> None:
    """Build NAME from DIRECTORY (with a Dockerfile); without one, from Cloche's own sandbox_images/NAME."""
    source = directory or checkout_root() / "sandbox_images" / name
    built = build_image(ImageStore(), name, source, _reporter(), fresh=fresh)
    click.echo(json.dumps(_as_dict(built)) if as_json else f"{built.name} {built.digest}")


@image.command("ls")
@_as_json
def list_images(as_json: bool) -> None:
    """List the images on this machine."""
    images = ImageStore().list()
    if as_json:
        click.echo(json.dumps([_as_dict(one) for one in images]))
    elif not images:
        click.echo("no images yet; build the default one: cloche image build python", err=True)
    else:
        Console().print(_table(images))


@image.command()
@click.argument("reference")
def inspect(reference: str) -> None:
    """Show everything about one image (name, digest, or the digest's first digits) as JSON."""
    found = ImageStore().resolve(reference)
    click.echo(json.dumps(_as_dict(found), indent=2))


@image.command("rm")
@click.argument("references", nargs=-1, required=True)
def remove(references: Sequence[str]) -> None:
    """Remove images. Refused while a sandbox uses the tree."""
    store = ImageStore()
    for reference in references:
        gone = store.remove(reference, sandboxes_over(store))
        click.echo(f"removed {reference}" if gone else f"removed the name {reference}; the tree has other names")


@image.command()
def prune() -> None:
    """Remove images that lost their name to a newer build and that no sandbox uses."""
    store = ImageStore()
    removed = store.prune(sandboxes_over(store))
    click.echo(f"removed {len(removed)} image(s)")


def _table(images: Sequence[Image]) -> Table:
    table = Table(box=None, header_style="bold")
    for column in ("NAME", "DIGEST", "SIZE", "CREATED", "FROM"):
        table.add_column(column, justify="right" if column == "SIZE" else "left", no_wrap=True)
    for one in images:
        created = one.created_at.astimezone().strftime("%Y-%m-%d %H:%M")
        digest = one.digest.removeprefix("sha256:")[:12]
        table.add_row(one.name, digest, f"{one.size_bytes / 1e6:.0f} MB", created, one.metadata.parent or "")
    return table


def _as_dict(one: Image) -> dict[str, object]:
    return {**one.metadata.model_dump(mode="json"), "name": one.name, "rootfs": str(one.rootfs)}


def _reporter() -> Callable[[str], None]:
    """Lines to standard error, each with the seconds since the start: a long build shows that it is alive."""
    started = time.monotonic()

    def report(line: str) -> None:
        click.echo(f"[{time.monotonic() - started:6.1f}s] {line}", err=True)

    return report
