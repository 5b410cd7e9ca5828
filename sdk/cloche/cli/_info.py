"""``cloche info``: the server, its drivers and who you are."""

from __future__ import annotations

import click

from cloche.cli import _options
from cloche.cli._print import print_facts, print_json, print_table


@click.command()
@_options.as_json
@click.pass_context
def info(ctx: click.Context, as_json: bool) -> None:
    """Show the server, its drivers and who you are."""
    client = _options.client_of(ctx)
    found = client.info()
    if as_json:
        print_json(found)
        return
    print_facts(
        [
            ("server", f"{client.url}, version {found.version}"),
            ("you", f"{found.owner} ({found.role})"),
            ("default driver", found.default_driver or "none works"),
        ]
    )
    click.echo()
    rows = [
        (report.name, "yes" if report.works else "no", report.version or "", report.why_not or report.isolation)
        for report in found.drivers
    ]
    print_table(("DRIVER", "WORKS", "VERSION", "ISOLATION, OR WHY NOT"), rows)
