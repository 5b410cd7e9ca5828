"""Printing: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click
from pydantic import BaseModel

from cloche.cli._terminal_text import plain

if TYPE_CHECKING:
    from rich.console import Console


def print_json(value: BaseModel | Sequence[BaseModel] | dict[str, object]) -> None:
    """One JSON value, indented; controls in strings are escaped by JSON itself."""
    click.echo(json.dumps(_plain_value(value), indent=2))


def _plain_value(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, list | tuple):
        return [_plain_value(item) for item in value]
    return value


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table without lines: columns in capitals, one row an object. Values cannot control the terminal."""
    # rich takes 60 ms to import: only commands that print tables pay.
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(plain(value)) for value in row))
    console().print(table)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """``name  value`` lines."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        click.echo(f"{name:<{width}}  {plain(value)}")


def console(*, stderr: bool = False) -> Console:
    """A console that does not fold lines when the output goes to a program."""
    from rich.console import Console  # noqa: PLC0415

    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=10_000, no_color=True)


def day_and_time(moment: datetime | None) -> str:
    """In local time; nothing for None."""
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def pairs_of(mapping: dict[str, str]) -> str:
    """``k=v k=v``."""
    return " ".join(f"{key}={value}" for key, value in sorted(mapping.items()))
