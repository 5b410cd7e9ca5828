"""``python -m bench``: measures a running server (CLOCHE_URL, CLOCHE_API_KEY) and prints tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import click

from bench import burst as burst_bench
from bench import cells as cells_bench
from bench import claim as claim_bench
from bench import contexts as contexts_bench
from bench import create as create_bench
from bench import density as density_bench
from bench import files as files_bench
from bench import fork as fork_bench
from bench import preview as preview_bench
from bench import processes as process_bench
from bench import soak as soak_bench
from bench import suspend as suspend_bench
from bench import terminals as terminals_bench
from bench import watches as watches_bench
from bench._gateway import Gateway
from bench._report import Table, report
from cloche import Client, ClocheError
from cloche._config import data_dirs
from cloche_server.images import ImageStore

drivers_option = click.option("--driver", "drivers", multiple=True, help="[default: all that work]; repeatable.")
image_option = click.option("--image", help="[default: the server's]")
code_option = click.option("--code", default="1+1", show_default=True)
json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")


@click.group()
def bench() -> None:
    """Measure a running server."""


@bench.command()
@image_option
@drivers_option
@code_option
@click.option("-n", default=200, show_default=True, help="Round trips of each kind.")
@click.option("--gateway/--no-gateway", default=True, show_default=True, help="Jupyter Kernel Gateway, too.")
@json_option
def cells(image: str | None, drivers: Sequence[str], code: str, n: int, gateway: bool, as_json: bool) -> None:
    """The round trip of one cell."""
    with Client() as client, Gateway() if gateway else nullcontext() as other:
        tables = [cells_bench.measure(client, image, driver, code, n, other) for driver in drivers or working(client)]
    report(tables, as_json=as_json)


@bench.command()
@image_option
@drivers_option
@code_option
@click.option("-n", default=20, show_default=True, help="Sandboxes on each driver.")
@json_option
def create(image: str | None, drivers: Sequence[str], code: str, n: int, as_json: bool) -> None:
    """Cold create to first result."""
    on_each(drivers, lambda client, driver: [create_bench.measure(client, image, driver, code, n)], as_json=as_json)


@bench.command()
@image_option
@drivers_option
@code_option
@click.option("-n", default=30, show_default=True, help="Contexts on each driver.")
@json_option
def contexts(image: str | None, drivers: Sequence[str], code: str, n: int, as_json: bool) -> None:
    """New context to first result."""
    on_each(drivers, lambda client, driver: [contexts_bench.measure(client, image, driver, code, n)], as_json=as_json)


@bench.command()
@image_option
@drivers_option
@click.option("--sandboxes", default=10, show_default=True)
@click.option("--contexts", "count", default=3, show_default=True, help="In each sandbox.")
@click.option("--seconds", default=300.0, show_default=True, help="On each driver.")
@click.option("--server-pid", type=int, required=True, help="Whose memory and descriptors are watched.")
def soak(
    image: str | None, drivers: Sequence[str], sandboxes: int, count: int, seconds: float, server_pid: int
) -> None:
    """All contexts at work at once: nothing wrong, mixed up or growing. Exit 1 otherwise."""
    with Client() as client:
        outcomes = [
            soak_bench.measure(client, image, driver, sandboxes, count, seconds, server_pid)
            for driver in drivers or working(client)
        ]
    for text, _ in outcomes:
        click.echo(text)
    sys.exit(0 if all(good for _, good in outcomes) else 1)


@bench.command()
@image_option
@drivers_option
@click.option("-n", default=100, show_default=True, help="Starts on each driver; a tenth as many logs.")
@json_option
def process(image: str | None, drivers: Sequence[str], n: int, as_json: bool) -> None:
    """Start to exit of `true`, and log throughput."""
    on_each(drivers, lambda client, driver: process_bench.measure(client, image, driver, n), as_json=as_json)


@bench.command()
@image_option
@drivers_option
@click.option("-n", default=400, show_default=True, help="Small requests of each kind.")
@click.option("--large", default=12, show_default=True, help="Downloads and uploads of 64 MiB.")
@json_option
def preview(image: str | None, drivers: Sequence[str], n: int, large: int, as_json: bool) -> None:
    """An app through its preview, against a client beside it in the sandbox."""
    on_each(drivers, lambda client, driver: preview_bench.measure(client, image, driver, n, large), as_json=as_json)


@bench.command()
@image_option
@drivers_option
@click.option("-n", default=200, show_default=True, help="Keystrokes each.")
@json_option
def terminal(image: str | None, drivers: Sequence[str], n: int, as_json: bool) -> None:
    """Echo of a keystroke and throughput of a terminal, against terminado."""
    with Client() as client:
        tables = terminals_bench.measure(client, image, drivers or working(client), n)
    report(tables, as_json=as_json)


@bench.command()
@image_option
@drivers_option
@click.option("--files", default=20_000, show_default=True, help="Small files.")
@click.option("--large-mb", default=256, show_default=True, help="2048 shows that memory stays flat.")
@click.option("-n", default=1, show_default=True, help="Rounds on each driver.")
@json_option
def files(image: str | None, drivers: Sequence[str], files: int, large_mb: int, n: int, as_json: bool) -> None:
    """Many small files and a large one, by programs and over the API."""
    on_each(
        drivers,
        lambda client, driver: [files_bench.measure(client, image, driver, files, large_mb, n)],
        as_json=as_json,
    )


@bench.command()
@image_option
@drivers_option
@click.option("-n", default=100, show_default=True, help="Changes of each kind.")
@click.option("--files", default=5000, show_default=True, help="Of the burst.")
@json_option
def watch(image: str | None, drivers: Sequence[str], n: int, files: int, as_json: bool) -> None:
    """From a change of a file to the event at a client."""
    on_each(drivers, lambda client, driver: [watches_bench.measure(client, image, driver, n, files)], as_json=as_json)


@bench.command()
@image_option
@drivers_option
@code_option
@click.option("-n", default=30, show_default=True, help="Claims on each driver.")
@click.option("--cold", default=5, show_default=True, help="Creates without a pool, beside them.")
@json_option
def claim(image: str | None, drivers: Sequence[str], code: str, n: int, cold: int, as_json: bool) -> None:
    """A create out of a warm pool to its first result, against a cold one."""
    on_each(
        drivers, lambda client, driver: [claim_bench.measure(client, image, driver, code, n, cold)], as_json=as_json
    )


@bench.command()
@image_option
@drivers_option
@code_option
@click.option("-n", default=100, show_default=True, help="Creates at once; the pool has as many.")
@click.option("--cold", default=10, show_default=True, help="Creates at once without a pool, beside them; 0: none.")
@json_option
def burst(image: str | None, drivers: Sequence[str], code: str, n: int, cold: int, as_json: bool) -> None:
    """Many creates in one moment; all must succeed."""
    on_each(
        drivers, lambda client, driver: [burst_bench.measure(client, image, driver, code, n, cold)], as_json=as_json
    )


@bench.command()
@image_option
@drivers_option
@click.option("-n", default=16, show_default=True, help="Sandboxes on each driver.")
@json_option
def density(image: str | None, drivers: Sequence[str], n: int, as_json: bool) -> None:
    """Memory of an idle sandbox with a live kernel. Nothing else should run on the machine."""
    on_each(drivers, lambda client, driver: [density_bench.measure(client, image, driver, n)], as_json=as_json)


@bench.command()
@image_option
@click.option("--children", "counts", type=int, multiple=True, default=(1, 5, 20), show_default=True)
@click.option(
    "--megabytes", default=20, show_default=True, help="Of the frame in the source's kernel; 0: not even pandas."
)
@click.option("-n", default=5, show_default=True, help="Forks of each size.")
@click.option("--bare", is_flag=True, help="Against runsc alone, for one child. As root, beside the server.")
@json_option
def fork(image: str | None, counts: Sequence[int], megabytes: int, n: int, bare: bool, as_json: bool) -> None:
    """Pause of the source, and answers of the children."""
    rootfs_of = (lambda digest: ImageStore(data_dirs(os.environ)[0]).resolve(digest).rootfs) if bare else None
    with Client() as client:
        tables = fork_bench.measure(client, image, counts, megabytes, n, rootfs_of)
    report(tables, as_json=as_json)


@bench.command()
@image_option
@click.option("--megabytes", default=20, show_default=True, help="Of the frame in the kernel.")
@click.option("-n", default=10, show_default=True, help="Wakes of each kind.")
@json_option
def suspend(image: str | None, megabytes: int, n: int, as_json: bool) -> None:
    """To disk and back."""
    with Client() as client:
        table, disk_bytes = suspend_bench.measure(client, image, megabytes, n)
    report([table], as_json=as_json)
    click.echo(f"on disk while it is suspended: {disk_bytes / 1e6:.0f} MB", err=True)


def on_each(drivers: Sequence[str], measure: Callable[[Client, str], Sequence[Table]], *, as_json: bool) -> None:
    """Print what ``measure`` finds on each of these drivers, or on all that work."""
    with Client() as client:
        tables = [table for driver in drivers or working(client) for table in measure(client, driver)]
    report(tables, as_json=as_json)


def working(client: Client) -> list[str]:
    """The drivers that passed their self-test."""
    return [driver.name for driver in client.info().drivers if driver.works]


if __name__ == "__main__":
    try:
        bench()
    except ClocheError as error:
        sys.exit(f"bench: {error}")
