"""A click group whose commands are imported when they are used.

``cloche --help`` and shell completion must be quick, and the server's commands need packages that a client does not
have; so the group knows name, module and one line of help of each command, and imports nothing for those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command is. ``extra``: the extra of the distribution it needs."""

    module: str
    attribute: str
    help: str
    extra: str | None = None


class MissingExtra(click.ClickException):
    """The command exists, but the packages it needs are not installed."""

    exit_code = 3

    def __init__(self, command: str, extra: str, missing: str) -> None:
        super().__init__(
            f"`cloche {command}` needs the {extra} part of Cloche, and {missing!r} of it is not installed here: "
            f"pip install 'cloche[{extra}]'"
        )


class OutputClosed(Exception):
    """Whoever reads standard output has gone."""


class LazyGroup(click.Group):
    """A group over `Entry`s."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        return None if entry is None else _loaded(cmd_name, entry)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:  # of an import that the command puts off until it is called
            entry = self.entries.get(ctx.invoked_subcommand or "")
            if entry is None or entry.extra is None:
                raise
            raise MissingExtra(str(ctx.invoked_subcommand), entry.extra, error.name or entry.module) from error
        except BrokenPipeError as error:  # click would exit with 1, which here means that the code failed
            raise OutputClosed from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        commands = [
            CompletionItem(name, help=entry.help) for name, entry in self.entries.items() if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]


def _loaded(name: str, entry: Entry) -> click.Command:
    try:
        found = getattr(import_module(entry.module), entry.attribute)
    except ModuleNotFoundError as error:
        if entry.extra is None:
            raise
        raise MissingExtra(name, entry.extra, error.name or entry.module) from error
    assert isinstance(found, click.Command)
    return found
