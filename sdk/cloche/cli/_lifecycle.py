"""``cloche pause``, ``suspend``, ``stop``, ``resume``; the options of a lifecycle, and how it is told of."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypedDict, TypeVar

import click

from cloche import models
from cloche._sandbox import Sandbox
from cloche.cli import _options
from cloche.cli._amounts import duration_of, seconds_of
from cloche.cli._print import print_json
from cloche.models import PolicyAction, StateChange

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")

NEVER: Final = math.inf

_FIELDS: Final = {name: f"{name}_s" for name in ("idle_timeout", "max_lifetime", "delete_after")}

F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3 only
    """Seconds; or ``90s``, ``30m``, ``2h``, ``7d``."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = _DURATION.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is no duration: 90, 90s, 30m, 2h or 7d", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


class DurationOrNever(Duration):
    """A duration, or ``never``, which is infinite."""

    name = "DURATION|never"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return NEVER if value == "never" else super().convert(value, param, ctx)


class LifecycleArguments(TypedDict):
    """What `lifecycle_options` give to a command; None: not given."""

    idle_timeout: float | None
    idle_action: str | None
    max_lifetime: float | None
    lifetime_action: str | None
    delete_after: float | None
    auto_resume: bool | None


def lifecycle_options(command: F) -> F:
    """The options of a `LifecyclePolicy`; see `policy_of`."""
    actions = click.Choice([str(action) for action in PolicyAction])
    times = DurationOrNever()
    for option in (
        click.option("--auto-resume/--no-auto-resume", default=None, help="Whether calls wake it when it rests. [yes]"),
        click.option("--delete-after", type=times, help="Delete it when it has been at rest for so long."),
        click.option("--lifetime-action", type=actions, help="What then happens. [default: delete]"),
        click.option("--max-lifetime", type=times, help="So long after it was created, whatever it does then."),
        click.option("--idle-action", type=actions, help="What then happens. [default: suspend]"),
        click.option("--idle-timeout", type=times, help="When nobody has worked in it for so long: 90s, 30m, 2h."),
    ):
        command = option(command)
    return command


def policy_of(given: Mapping[str, Any], now: models.LifecyclePolicy | None = None) -> dict[str, object] | None:
    """Only what was asked for, over ``now`` when there is one; None: nothing was.

    :raises UsageError: an action without the time after which it is to happen.
    """
    fields: dict[str, object] = {} if now is None else now.model_dump(mode="json")
    asked = {name: given[name] for name in LifecycleArguments.__annotations__ if given[name] is not None}
    if not asked:
        return None
    fields |= {_FIELDS.get(name, name): None if value == NEVER else value for name, value in asked.items()}
    for action, time in (("idle_action", "idle_timeout"), ("lifetime_action", "max_lifetime")):
        if action in asked and fields.get(f"{time}_s") is None:
            options = [f"--{name.replace('_', '-')}" for name in (action, time)]
            raise click.UsageError(f"{options[0]} needs {options[1]}: after which time?")
    return fields


def origin_of(sandbox: models.Sandbox) -> str:
    """``image``, ``fork of ID``, ``snapshot ID``, ``template NAME@2``; with ``, warm`` when it came out of a pool."""
    origin = sandbox.origin
    joint = " of " if origin.kind == "fork" else " "
    text = f"{origin.kind}{joint}{origin.id}" if origin.id is not None else origin.kind
    return f"{text}, warm" if origin.warm else text


def endings_of(sandbox: models.Sandbox, now: datetime) -> list[str]:
    """What a policy will do, soonest first: ``suspend in 9m``."""
    lifetime, policy = sandbox.lifetime, sandbox.lifecycle
    planned = [
        (lifetime.idle_at, policy.idle_action),
        (lifetime.ends_at, policy.lifetime_action),
        (lifetime.deletes_at, PolicyAction.DELETE),
    ]
    coming = sorted((at, str(action)) for at, action in planned if at is not None)
    return [f"{action} in {duration_of(max(at - now, timedelta()).total_seconds())}" for at, action in coming]


def now_utc() -> datetime:
    return datetime.now(UTC)


def _told(change: StateChange) -> str:
    stood = f", stood still for {seconds_of(change.paused_s)}" if change.paused_s is not None else ""
    return f"{change.state} {change.sandbox_id} ({seconds_of(change.duration_s)}{stood})"


def _command(name: str, help_: str, act: Callable[[Sandbox], StateChange]) -> click.Command:
    @click.command(name, help=help_)
    @_options.sandbox_argument
    @_options.as_json
    @click.pass_context
    def change(ctx: click.Context, sandbox: str, as_json: bool) -> None:
        done = act(Sandbox.connect(sandbox, client=_options.client_of(ctx)))
        print_json(done) if as_json else click.echo(_told(done))

    return change


pause = _command("pause", "Freeze SANDBOX in RAM: it uses no CPU, and goes on in a moment.", lambda box: box.pause())
suspend = _command(
    "suspend",
    "Write SANDBOX to disk, memory included, and free its RAM. The next call wakes it.",
    lambda box: box.suspend(),
)
stop = _command("stop", "End everything that runs in SANDBOX and keep its files.", lambda box: box.stop())
resume = _command("resume", "Wake SANDBOX, paused, suspended or stopped.", lambda box: box.resume())
