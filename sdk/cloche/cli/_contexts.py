"""``cloche contexts``: the live kernels of a sandbox."""

from __future__ import annotations

from collections.abc import Sequence

import click

from cloche import models
from cloche._context import Context
from cloche._contexts import DEFAULT_CONTEXT
from cloche._sandbox import Sandbox
from cloche.cli import _options
from cloche.cli._print import day_and_time, print_json, print_table
from cloche.errors import NotFound

context_argument = click.argument("context", metavar="CONTEXT")


@click.group()
def contexts() -> None:
    """Live kernels of a sandbox; CONTEXT is an id or a name."""


@contexts.command("ls")
@_options.sandbox_argument
@_options.as_json
@click.pass_context
def list_contexts(ctx: click.Context, sandbox: str, as_json: bool) -> None:
    """List the contexts of SANDBOX."""
    handles = Sandbox.connect(sandbox, client=_options.client_of(ctx)).contexts.list()
    found = [handle.info for handle in handles if handle.info is not None]
    if as_json:
        print_json(found)
    else:
        print_contexts(found)


@contexts.command()
@_options.sandbox_argument
@click.option("--name", help="A name to find it by.")
@click.option("--cwd", help="Working directory in the sandbox. [default: /workspace]")
@_options.env
@_options.as_json
@click.pass_context
def create(
    ctx: click.Context,
    /,
    *,
    sandbox: str,
    name: str | None,
    cwd: str | None,
    env: tuple[tuple[str, str], ...],
    as_json: bool,
) -> None:
    """Start a context in SANDBOX and print its id."""
    found = Sandbox.connect(sandbox, client=_options.client_of(ctx))
    made = found.contexts.create(name=name, cwd=cwd, env=_options.as_dict(env))
    if as_json and made.info is not None:
        print_json(made.info)
    else:
        click.echo(made.id)


@contexts.command("rm")
@_options.sandbox_argument
@context_argument
@click.pass_context
def remove(ctx: click.Context, sandbox: str, context: str) -> None:
    """End CONTEXT and forget its variables."""
    found = _found(ctx, sandbox, context)
    found.delete()
    click.echo(f"deleted {found.id}")


@contexts.command()
@_options.sandbox_argument
@context_argument
@click.pass_context
def restart(ctx: click.Context, sandbox: str, context: str) -> None:
    """Give CONTEXT a new kernel; its variables are gone."""
    info = _found(ctx, sandbox, context).restart()
    click.echo(f"restarted {info.id}: generation {info.generation}")


@contexts.command()
@_options.sandbox_argument
@context_argument
@click.pass_context
def interrupt(ctx: click.Context, sandbox: str, context: str) -> None:
    """Interrupt what runs in CONTEXT; its variables stay."""
    found = _found(ctx, sandbox, context)
    found.interrupt()
    click.echo(f"interrupted {found.id}")


def _found(ctx: click.Context, sandbox: str, context: str) -> Context:
    return context_of(Sandbox.connect(sandbox, client=_options.client_of(ctx)), context)


def context_of(sandbox: Sandbox, id_or_name: str) -> Context:
    """The context with this id, else the one with this name."""
    if id_or_name == DEFAULT_CONTEXT:
        return sandbox.contexts.default
    for context in sandbox.contexts.list():
        if id_or_name in (context.id, context.info.name if context.info else None):
            return context
    raise NotFound(f"the sandbox {sandbox.id} has no context {id_or_name}")


def print_contexts(found: Sequence[models.Context]) -> None:
    """One row a context."""
    rows = [
        (
            context.id,
            context.name or "",
            context.language,
            context.state,
            str(context.execution_count),
            str(len(context.queue)),
            context.cwd,
            day_and_time(context.last_activity_at),
        )
        for context in found
    ]
    print_table(("CONTEXT", "NAME", "LANGUAGE", "STATE", "COUNT", "QUEUE", "CWD", "LAST ACTIVITY"), rows)
