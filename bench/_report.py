"""Reports: one table a subject, for people or as JSON."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click

from bench._machine import machine_facts
from bench._samples import Row


@dataclass(frozen=True, slots=True)
class Table:
    """Rows about one subject (a driver, say). ``baseline``: what the ratios are of."""

    title: str
    rows: Sequence[Row]
    baseline: str | None = None
    unit: str = "milliseconds"


def report(tables: Sequence[Table], *, as_json: bool) -> None:
    """Print everything that makes a number reproducible: command, machine, n."""
    command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
    machine = machine_facts()
    if as_json:
        content = {"command": command, "machine": machine, "tables": [asdict(table) for table in tables]}
        click.echo(json.dumps(content, indent=2))
        return
    click.echo(f"$ {command}")
    click.echo(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items()))
    for table in tables:
        _print(table)


def _print(table: Table) -> None:
    width = max(len(row.name) for row in table.rows)
    ratio = f"  ratio to {table.baseline}" if table.baseline else ""
    click.echo(f"\n{table.title}\n{'':<{width}}     n   median      p95{ratio}")
    for row in table.rows:
        times = "" if row.ratio is None else f"  {row.ratio:.2f}"
        click.echo(f"{row.name:<{width}}  {row.n:>4}  {row.median_ms:>7.2f}  {row.p95_ms:>7.2f}{times}")
    click.echo(f"({table.unit})")
