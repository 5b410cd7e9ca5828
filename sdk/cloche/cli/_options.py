"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from cloche._client import Client
from cloche.errors import ClocheError
from cloche.models import Resources

F = TypeVar("F", bound=Callable[..., Any])

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


class Pairs(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3 only
    """``KEY=VALUE``."""

    name = "KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not equals or not key:
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        return key, text


class JsonPairs(Pairs):
    """``KEY=VALUE`` with a value that is JSON, or else a text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        key, text = super().convert(value, param, ctx)
        try:
            return key, json.loads(text)
        except ValueError:
            return key, text


metadata = click.option(
    "--metadata", "-m", multiple=True, type=JsonPairs(), help="Metadata; VALUE is JSON or a text; repeatable."
)
env = click.option("--env", "-e", multiple=True, type=Pairs(), help="Environment variable; repeatable.")
labels = click.option("--label", "-l", "labels", multiple=True, type=Pairs(), help="Label; repeatable.")


def as_dict(pairs: Sequence[tuple[str, str]]) -> dict[str, str] | None:
    """None when there are none: then the server's default counts."""
    return dict(pairs) or None


def client_of(ctx: click.Context) -> Client:
    """The client for the server that was chosen; closed with the command."""
    return ctx.with_resource(Client(ctx.find_root().obj))


Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completer(words_of: Callable[[Client], Iterable[tuple[str, str]]]) -> Complete:
    """Completes words with a note for each; to nothing when the server cannot be asked."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            with Client(ctx.find_root().params.get("url"), reconnect_s=0) as client:
                words = list(words_of(client))
        except ClocheError:
            return []
        return [CompletionItem(word, help=note) for word, note in words if word.startswith(incomplete)]

    return complete


complete_sandbox = completer(
    lambda client: ((box.name or box.id, box.image) for box in client.list_sandboxes(limit=50))
)

sandbox_argument = click.argument("sandbox", metavar="SANDBOX", shell_complete=complete_sandbox)


owner = click.option("--owner", help="Of another owner (admin).")


def resources(command: F) -> F:
    """The options of `Resources`; see `resources_of`."""
    for option in (
        click.option("--processes", "max_processes", type=int, help="Processes and threads."),
        click.option("--disk", "disk_mb", type=int, metavar="MIB", help="What it may write, in MiB."),
        click.option("--memory", "memory_mb", type=int, metavar="MIB", help="Memory in MiB."),
        click.option("--cpus", type=float, help="CPU cores."),
    ):
        command = option(command)
    return command


def resources_of(given: Mapping[str, Any]) -> dict[str, float] | None:
    """Those that were given; None: the server's defaults count."""
    return {name: given[name] for name in Resources.model_fields if given[name] is not None} or None
