"""``cloche pause``, ``suspend``, ``stop``, ``resume``; the options of a lifecycle, and how it is told of."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypedDict, TypeVar

import click

from cloche import models
from cloche._sandbox import Sandbox
from cloche.cli import _options
from cloche.cli._amounts import duration_of
from cloche.cli._print import print_json
from cloche.models import PolicyAction, StateChange

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")

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


class LifecycleArguments(TypedDict):
    """What `lifecycle_options` give to a command."""

    idle_timeout: float | None
    idle_action: str | None
    max_lifetime: float | None
    no_auto_resume: bool


def lifecycle_options(command: F) -> F:
    """The options that make a `LifecyclePolicy`; see `policy_of`."""
    actions = click.Choice([str(action) for action in PolicyAction])
    for option in (
        click.option("--no-auto-resume", is_flag=True, help="Calls do not wake it when it rests."),
        click.option("--max-lifetime", type=Duration(), help="Delete it after so long."),
        click.option("--idle-action", type=actions, help="What then happens. [default: suspend]"),
        click.option("--idle-timeout", type=Duration(), help="When nobody has worked in it for so long: 90s, 30m, 2h."),
    ):
        command = option(command)
    return command


def policy_of(given: LifecycleArguments) -> dict[str, object] | None:
    """Only what was asked for; None: nothing was.

    :raises UsageError: an action without the time after which it is to happen.
    """
    if given["idle_action"] is not None and given["idle_timeout"] is None:
        raise click.UsageError("--idle-action needs --idle-timeout: after which time?")
    fields: dict[str, object | None] = {
        "idle_timeout_s": given["idle_timeout"],
        "idle_action": given["idle_action"],
        "max_lifetime_s": given["max_lifetime"],
        "auto_resume": False if given["no_auto_resume"] else None,
    }
    return {name: value for name, value in fields.items() if value is not None} or None


def origin_of(sandbox: models.Sandbox) -> str:
    """``image``, ``fork of ID``, ``snapshot ID``, ``template NAME@2``; with ``, warm`` when it came out of a pool."""
    origin = sandbox.origin
    joint = " of " if origin.kind == "fork" else " "
    text = f"{origin.kind}{joint}{origin.id}" if origin.id is not None else origin.kind
    return f"{text}, warm" if origin.warm else text


def endings_of(sandbox: models.Sandbox, now: datetime) -> list[str]:
    """What a policy will do, soonest first: ``suspend in 9m``."""
    lifetime, policy = sandbox.lifetime, sandbox.lifecycle
    planned = [(lifetime.idle_at, policy.idle_action), (lifetime.ends_at, policy.lifetime_action)]
    coming = sorted((at, str(action)) for at, action in planned if at is not None)
    return [f"{action} in {duration_of(max(at - now, timedelta()).total_seconds())}" for at, action in coming]


def now_utc() -> datetime:
    return datetime.now(UTC)


def _told(change: StateChange) -> str:
    stood = f", stood still for {change.paused_s:.2f} s" if change.paused_s is not None else ""
    return f"{change.state} {change.sandbox_id} ({change.duration_s:.2f} s{stood})"


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
