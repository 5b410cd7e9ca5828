"""The group ``cloche``: which commands there are, and the settings they share."""

from __future__ import annotations

from typing import Final

import click

from cloche.cli._lazy import Entry, LazyGroup

ENTRIES: Final = {
    "serve": Entry("cloche_server.cli", "serve", "Run a server on this machine.", extra="server"),
    "doctor": Entry("cloche_server.cli", "doctor", "Explain which sandbox drivers work here.", extra="server"),
    "image": Entry("cloche_server.images.cli", "image", "Build, list and remove images.", extra="server"),
    "keys": Entry("cloche.cli._keys", "keys", "Create, list and revoke API keys."),
    "info": Entry("cloche.cli._info", "info", "Show the server, its drivers and who you are."),
    "create": Entry("cloche.cli._sandboxes", "create", "Create a sandbox and print its id."),
    "ls": Entry("cloche.cli._sandboxes", "list_sandboxes", "List sandboxes."),
    "show": Entry("cloche.cli._sandboxes", "show", "Show a sandbox and its contexts."),
    "events": Entry("cloche.cli._events", "events", "Print what happens in a sandbox."),
    "update": Entry("cloche.cli._update", "update", "Change name, labels, metadata or lifecycle of a sandbox."),
    "cp": Entry("cloche.cli._files", "cp", "Copy files to and from a sandbox."),
    "files": Entry("cloche.cli._files", "files", "List, show and remove files of a sandbox."),
    "watch": Entry("cloche.cli._files", "watch", "Print what changes in a directory of a sandbox."),
    "rm": Entry("cloche.cli._sandboxes", "remove", "Delete sandboxes."),
    "run": Entry("cloche.cli._run", "run", "Run code in a new or an existing sandbox."),
    "exec": Entry("cloche.cli._processes", "exec_command", "Run a program in a sandbox."),
    "ps": Entry("cloche.cli._processes", "ps", "List the processes of a sandbox."),
    "kill": Entry("cloche.cli._processes", "kill", "Signal a process of a sandbox."),
    "logs": Entry("cloche.cli._processes", "logs", "Print the output of a process."),
    "contexts": Entry("cloche.cli._contexts", "contexts", "Create, list and end the contexts of a sandbox."),
    "shell": Entry("cloche.cli._shell", "shell", "Open a shell in a sandbox, here or in a browser."),
    "terminals": Entry("cloche.cli._shell", "terminals", "List, share and end the terminals of a sandbox."),
    "ports": Entry("cloche.cli._previews", "ports", "List the ports programs in a sandbox listen on."),
    "preview": Entry("cloche.cli._previews", "preview", "Print a link to a port of a sandbox."),
    "pause": Entry("cloche.cli._lifecycle", "pause", "Freeze a sandbox in RAM."),
    "suspend": Entry("cloche.cli._lifecycle", "suspend", "Write a sandbox to disk, memory included."),
    "stop": Entry("cloche.cli._lifecycle", "stop", "End what runs in a sandbox and keep its files."),
    "resume": Entry("cloche.cli._lifecycle", "resume", "Wake a sandbox that rests."),
    "snapshot": Entry("cloche.cli._snapshots", "snapshot", "Save a sandbox as it is now."),
    "snapshots": Entry("cloche.cli._snapshots", "snapshots", "List, show, delete, export and import snapshots."),
    "restore": Entry("cloche.cli._snapshots", "restore", "Roll a sandbox back to a snapshot."),
    "fork": Entry("cloche.cli._snapshots", "fork", "Make more sandboxes from this instant of one."),
    "compare": Entry("cloche.cli._compare", "compare", "Say what differs between sandboxes or snapshots."),
    "templates": Entry("cloche.cli._templates", "templates", "Build, list and delete templates."),
    "pools": Entry("cloche.cli._pools", "pools", "Keep sandboxes ready."),
    "volumes": Entry("cloche.cli._volumes", "volumes", "Create, list and delete volumes."),
    "usage": Entry("cloche.cli._volumes", "usage", "Show what sandboxes cost."),
    "top": Entry("cloche.cli._top", "top", "Show what sandboxes do, live."),
    "completion": Entry("cloche.cli._completion", "completion", "Print the completion script of a shell."),
}


@click.group(cls=LazyGroup, entries=ENTRIES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", envvar="CLOCHE_URL", help="The server. [default: http://127.0.0.1:8720]")
@click.version_option(package_name="cloche")
@click.pass_context
def cloche(ctx: click.Context, url: str | None) -> None:
    """Stateful code execution in isolated sandboxes.

    The key is CLOCHE_API_KEY; on the server's machine its first key is found by itself. Exit codes: 0 done, 1 the code
    that ran failed, 2 wrong usage, 3 the service could not do it.
    """
    ctx.obj = url
