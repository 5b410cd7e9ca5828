"""Commands of the server; the client's command line mounts them under ``cloche``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from cloche.errors import ClocheError
from cloche.models import DriverReport
from cloche_server.settings import Settings, load_settings


def _say(error: ClocheError) -> None:
    click.echo(f"error: {error.message}", err=True)
    if error.hint:
        click.echo(f"hint:  {error.hint}", err=True)


def _directories(command: click.Command) -> click.Command:
    for name in ("run_dir", "data_dir"):
        field = Settings.model_fields[name]
        option = click.Option([f"--{name.replace('_', '-')}"], type=click.Path(path_type=Path), help=field.description)
        command.params.insert(0, option)
    return command


@click.command()
@click.option("--host", help="Address to listen on (127.0.0.1).")
@click.option("--port", type=int, help="Port; 0 takes any free one (8720).")
@click.option("--driver", type=click.Choice(["gvisor", "runc"]), help="Default driver (the strongest that works).")
@click.option("--allowed-hosts", metavar="NAMES", help="More names clients may use in the Host header, with commas.")
@click.option("--allowed-origins", metavar="ORIGINS", help="More web origins, with commas.")
@click.option("--max-sandboxes", type=int, help="Of all owners together, those at rest included (500).")
@click.option("--max-sandboxes-per-owner", type=int, help="The same for each owner (250).")
@click.option("--max-running", type=int, help="With processes, of all owners together (100).")
@click.option("--max-body-bytes", type=int, help="Of one request (8 MiB).")
@click.option("--max-answer-bytes", type=int, help="Of one answer of a guest (128 MiB).")
@click.option("--start-timeout-s", type=float, help="For one create (60).")
@click.option("--shutdown-grace-s", type=float, help="For requests under way at TERM (10).")
@click.option("--preview-domain", metavar="NAME", help="Previews are at {port}-{sandbox id} below it (localhost).")
@click.option("--preview-scheme", type=click.Choice(["http", "https"]), help="Of preview URLs (http).")
@click.option("--preview-port", type=int, help="Of preview URLs (443 for https, else the port).")
@click.option("--max-volumes-per-owner", type=int, help="Of each owner (100).")
@click.option("--max-pools-per-owner", type=int, help="Of each owner (20).")
@click.option("--max-snapshots-per-owner", type=int, help="Of each owner, without those of templates (200).")
@click.option("--metrics-open", is_flag=True, default=None, help="Show /metrics without a key.")
@click.option("--log-format", type=click.Choice(["auto", "json", "text"]), help="auto: text on a terminal.")
def serve(**given: object) -> None:
    """Run a server until TERM or Ctrl-C. Sandboxes outlive it.

    Each option is also an environment variable: --data-dir is CLOCHE_DATA_DIR. docs/server.md explains them.
    """
    from cloche_server.main import serve as run  # noqa: PLC0415 - so that `cloche --help` stays fast

    try:
        run(load_settings(given))
    except ClocheError as error:
        _say(error)
        sys.exit(1)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(as_json: bool, **given: object) -> None:
    """Try every driver on this machine; say what works, what does not, and what to install."""
    from cloche_server.drivers import doctor as examine  # noqa: PLC0415

    try:
        settings = load_settings(given)
        reports = asyncio.run(examine(settings.data_dir, settings.run_dir))
    except ClocheError as error:
        _say(error)
        sys.exit(1)
    if as_json:
        click.echo("[" + ",".join(report.model_dump_json() for report in reports) + "]")
    else:
        for report in reports:
            click.echo(_describe(report))
    sys.exit(0 if any(report.works for report in reports) else 1)


def _describe(report: DriverReport) -> str:
    mark = click.style("works", fg="green") if report.works else click.style("does not work", fg="red")
    lines = [f"{report.name}: {mark}", f"  isolation: {report.isolation}"]
    if report.version:
        lines.append(f"  version: {report.version}")
    if report.capabilities:
        lines.append(f"  capabilities: {', '.join(report.capabilities)}")
    if report.why_not:
        lines += [f"  why not: {report.why_not}", f"  what to do: {report.how_to_fix}"]
    return "\n".join(lines)


_directories(serve)
_directories(doctor)
