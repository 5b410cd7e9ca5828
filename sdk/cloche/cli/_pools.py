"""``cloche pools``: sandboxes that are kept ready."""

from __future__ import annotations

import click

from cloche.cli import _options
from cloche.cli._amounts import limits_of
from cloche.cli._lifecycle import Duration
from cloche.cli._print import day_and_time, print_facts, print_json, print_table
from cloche.cli._templates import complete_template
from cloche.models import Pool

complete_pool = _options.completer(lambda client: ((pool.name, _thing(pool)) for pool in client.pools.list()))
pool_argument = click.argument("name", shell_complete=complete_pool)


@click.group()
def pools() -> None:
    """Sandboxes that are kept ready, so that a create takes milliseconds."""


@pools.command("set")
@pool_argument
@click.option(
    "--template", shell_complete=complete_template, help="NAME, to follow its newest version, or NAME@VERSION."
)
@click.option("--image", help="Instead of a template. [default: python]")
@click.option("--driver", type=click.Choice(["gvisor", "runc"]), help="With an image. [default: the strongest]")
@_options.resources
@click.option("--no-sudo", is_flag=True, help="With an image: no way to become root inside.")
@click.option("--shared", is_flag=True, help="For the creates of every owner (admin).")
@click.option("--min", "least", type=click.IntRange(min=0), help="Kept ready. [default: 1]")
@click.option("--max", "most", type=click.IntRange(min=0), help="When creates come often. [default: 10]")
@click.option("--max-age", type=Duration(), help="Older ready ones are replaced. [default: 1h]")
@_options.as_json
@click.pass_context
def put(
    ctx: click.Context,
    /,
    *,
    name: str,
    template: str | None,
    image: str | None,
    driver: str | None,
    no_sudo: bool,
    shared: bool,
    least: int | None,
    most: int | None,
    max_age: float | None,
    as_json: bool,
    **resources: float | None,
) -> None:
    """Make pool NAME, or change it: what is not given gets its default."""
    if template is not None and image is not None:
        raise click.UsageError("a pool is of one thing: --template or --image")
    made = _options.client_of(ctx).pools.put(
        name,
        template=template,
        image=image,
        driver=driver,
        resources=_options.resources_of(resources),
        sudo=False if no_sudo else None,
        shared=shared or None,
        min=least,
        max=most,
        max_age_s=max_age,
    )
    print_json(made) if as_json else click.echo(f"{made.name}: {made.min} to {made.max} of {_thing(made)}")


@pools.command("ls")
@_options.owner
@_options.as_json
@click.pass_context
def list_pools(ctx: click.Context, owner: str | None, as_json: bool) -> None:
    """List the pools, with how full they are."""
    found = _options.client_of(ctx).pools.list(owner=owner)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            pool.name,
            _thing(pool),
            str(pool.stats.ready),
            str(pool.stats.filling),
            f"{pool.stats.target} ({pool.min}-{pool.max})",
            str(pool.stats.claims),
            str(pool.stats.misses),
            _refill(pool),
            f"{pool.owner}, shared" if pool.shared else pool.owner,
        )
        for pool in found
    ]
    print_table(("POOL", "OF", "READY", "FILLING", "WANTED", "CLAIMS", "MISSES", "REFILL", "OWNER"), rows)


@pools.command()
@pool_argument
@_options.owner
@_options.as_json
@click.pass_context
def show(ctx: click.Context, name: str, owner: str | None, as_json: bool) -> None:
    """Show pool NAME."""
    pool = _options.client_of(ctx).pools.get(name, owner=owner)
    if as_json:
        print_json(pool)
        return
    stats = pool.stats
    facts = [
        ("pool", pool.name),
        ("owner", pool.owner),
        ("of", _thing(pool)),
        ("driver", pool.driver or ""),
        ("resources", limits_of(pool.resources) if pool.resources is not None else ""),
        ("sudo", "no" if pool.sudo is False else ""),
        ("for", "every owner" if pool.shared else ""),
        ("size", f"{pool.min} to {pool.max}, {stats.target} wanted now"),
        ("max age", f"{pool.max_age_s:g} s"),
        ("ready", f"{stats.ready}, and {stats.filling} on their way"),
        ("claims", f"{stats.claims}, and {stats.misses} creates that found none"),
        ("broken", str(stats.broken) if stats.broken else ""),
        ("refill", _refill(pool)),
        ("created", day_and_time(pool.created_at)),
    ]
    print_facts([(name, value) for name, value in facts if value])


@pools.command("rm")
@pool_argument
@_options.owner
@click.pass_context
def remove(ctx: click.Context, name: str, owner: str | None) -> None:
    """Delete pool NAME with all that are ready in it. Sandboxes that were handed out stay."""
    click.echo(f"deleted {_options.client_of(ctx).pools.delete(name, owner=owner).name}")


def _thing(pool: Pool) -> str:
    return f"template {pool.template}" if pool.template is not None else f"image {pool.image}"


def _refill(pool: Pool) -> str:
    return "" if pool.stats.refill_s is None else f"{pool.stats.refill_s:.2f} s"
