"""``cloche templates``: sandboxes made ready once, and started many times."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import click

from cloche._answers import built
from cloche._templates import TemplateOptions, reference_of, text_of
from cloche.cli import _options
from cloche.cli._failures import SERVICE, each, say
from cloche.cli._print import day_and_time, print_facts, print_json, print_table
from cloche.cli._terminal_text import TerminalFilter
from cloche.models import Event, Template, TemplateCreate

complete_template = _options.completer(
    lambda client: ((reference_of(found), found.state) for found in client.templates.list())
)
template_argument = click.argument("template", metavar="TEMPLATE", shell_complete=complete_template)
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Do not show what the build prints.")
script = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def templates() -> None:
    """Templates; TEMPLATE is NAME, for its newest version, or NAME@VERSION."""


@templates.command()
@click.option("--file", "-f", "file", type=script, required=True, help="A TOML file with what goes in.")
@quiet_option
@_options.as_json
@click.pass_context
def build(ctx: click.Context, file: Path, quiet: bool, as_json: bool) -> None:
    """Build the template that a TOML file describes, and print NAME@VERSION.

    Its keys are those of TemplateCreate: name, image, driver, resources, env, sudo, setup, contexts, services.
    """
    try:
        fields = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file} is not TOML: {error}") from error
    built(TemplateCreate, **fields)  # its own words about what is wrong, before anything is sent
    _build(ctx, fields.pop("name"), cast(TemplateOptions, fields), quiet=quiet, as_json=as_json)


@templates.command()
@click.argument("name")
@click.option("--image", help="Name or digest of an image.")
@click.option("--driver", type=click.Choice(["gvisor", "runc"]), help="[default: the strongest that works]")
@click.option("--setup", type=script, metavar="FILE", help="A bash script to run in it.")
@click.option("--code", type=script, metavar="FILE", help="Python to run in its default context.")
@_options.resources
@click.option("--no-sudo", is_flag=True, help="Leave no way to become root inside.")
@_options.env
@quiet_option
@_options.as_json
@click.pass_context
def create(
    ctx: click.Context,
    /,
    *,
    name: str,
    image: str | None,
    driver: str | None,
    setup: Path | None,
    code: Path | None,
    no_sudo: bool,
    env: tuple[tuple[str, str], ...],
    quiet: bool,
    as_json: bool,
    **resources: float | None,
) -> None:
    """Build template NAME from options, and print NAME@VERSION."""
    options: TemplateOptions = {
        "image": image,
        "driver": driver,
        "resources": _options.resources_of(resources),
        "env": _options.as_dict(env),
        "sudo": False if no_sudo else None,
        "setup": setup.read_text() if setup is not None else None,
        "contexts": [{"code": code.read_text()}] if code is not None else None,
    }
    _build(ctx, name, options, quiet=quiet, as_json=as_json)


def _build(ctx: click.Context, name: str, options: TemplateOptions, *, quiet: bool, as_json: bool) -> None:
    client, shown = _options.client_of(ctx), TerminalFilter()

    def show(text: str) -> None:
        click.echo(shown.feed(text), nl=False, err=True)

    made = client.templates.create(name, on_log=None if quiet else show, **options)
    print_json(made) if as_json else click.echo(reference_of(made))


@templates.command("ls")
@click.option("--name", help="Versions of this one.")
@_options.owner
@_options.as_json
@click.pass_context
def list_templates(ctx: click.Context, name: str | None, owner: str | None, as_json: bool) -> None:
    """List all versions, by name, newest first."""
    found = _options.client_of(ctx).templates.list(name=name, owner=owner)
    if as_json:
        print_json(found)
        return
    rows = [
        (reference_of(each), each.state, each.spec.image, _took(each), day_and_time(each.created_at), each.owner)
        for each in found
    ]
    print_table(("TEMPLATE", "STATE", "IMAGE", "BUILT IN", "CREATED", "OWNER"), rows)


@templates.command()
@template_argument
@_options.owner
@_options.as_json
@click.pass_context
def show(ctx: click.Context, template: str, owner: str | None, as_json: bool) -> None:
    """Show TEMPLATE and what went into it."""
    found = _options.client_of(ctx).templates.get(template, owner=owner)
    if as_json:
        print_json(found)
        return
    spec = found.spec
    facts = [
        ("template", reference_of(found)),
        ("state", found.state),
        ("failure", found.failure or ""),
        ("owner", found.owner),
        ("image", spec.image),
        ("driver", spec.driver or ""),
        ("setup", f"{len(spec.setup.splitlines())} lines" if spec.setup else ""),
        ("contexts", str(len(spec.contexts)) if spec.contexts else ""),
        ("services", ", ".join(service.name for service in spec.services)),
        ("env", ", ".join(spec.env)),
        ("inputs", found.spec_digest),
        ("snapshot", found.snapshot_id or ""),
        ("built in", _took(found)),
        ("created", day_and_time(found.created_at)),
    ]
    print_facts([(name, value) for name, value in facts if value])


@templates.command()
@template_argument
@click.option("--follow", "-f", is_flag=True, help="Go on while it is being built.")
@_options.owner
@_options.as_json
@click.pass_context
def log(ctx: click.Context, template: str, follow: bool, owner: str | None, as_json: bool) -> int:
    """Print what the build of TEMPLATE printed."""
    templates = _options.client_of(ctx).templates
    if follow:
        return _follow(templates.follow(template, owner=owner), as_json=as_json)
    found = templates.log(template, owner=owner)
    print_json(found) if as_json else click.echo(TerminalFilter().feed(found.text), nl=False)
    return 0


def _follow(events: Iterable[Event], *, as_json: bool) -> int:
    """Text, or one JSON object a line. How the build ended is the exit code, and its failure the last line."""
    shown, failure = TerminalFilter(), None
    for event in events:
        if as_json:
            click.echo(event.model_dump_json())
        else:
            click.echo(shown.feed(text_of(event)), nl=False)
        if event.type == "finished" and event.data["state"] != "ready":
            failure = event.data["failure"] or event.data["state"]
    if failure is not None:
        say(f"the build failed: {failure}")
    return 0 if failure is None else SERVICE


@templates.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="TEMPLATE...", shell_complete=complete_template)
@_options.owner
@click.pass_context
def remove(ctx: click.Context, names: tuple[str, ...], owner: str | None) -> int:
    """Delete versions (NAME@VERSION), or all of a NAME. Sandboxes made from them stay."""
    client = _options.client_of(ctx)

    def delete(name: str) -> str:
        client.templates.delete(name, owner=owner)
        return f"deleted {name}"

    return each(names, delete)


def _took(template: Template) -> str:
    return "" if template.build_s is None else f"{template.build_s:.1f} s"
