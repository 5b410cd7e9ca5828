"""Creating a sandbox on the command line: a spinner on a terminal, and nothing left behind when it is broken off."""

from __future__ import annotations

from typing import Unpack

import click

from cloche._client import Client
from cloche._ids import new_idempotency_key
from cloche._sandbox import CreateOptions, Sandbox
from cloche.cli._print import console


def create_sandbox(client: Client, image: str | None, **options: Unpack[CreateOptions]) -> Sandbox:
    """A new sandbox. Ctrl-C deletes it: the same idempotency key finds the one that is on its way."""
    options["idempotency_key"] = new_idempotency_key()
    try:
        return _with_spinner(client, image, options)
    except KeyboardInterrupt:
        click.echo("deleting the sandbox that was on its way; Ctrl-C again leaves it", err=True)
        Sandbox.create(image, client=client, **options).delete()
        raise


def _with_spinner(client: Client, image: str | None, options: CreateOptions) -> Sandbox:
    target = console(stderr=True)
    if not target.is_terminal:
        return Sandbox.create(image, client=client, **options)
    with target.status("creating a sandbox"):
        return Sandbox.create(image, client=client, **options)
