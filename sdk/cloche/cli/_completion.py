"""``cloche completion``: the script that teaches a shell to complete commands, options and sandbox names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash: eval "$(cloche completion bash)"           in ~/.bashrc
    zsh:  eval "$(cloche completion zsh)"            in ~/.zshrc
    fish: cloche completion fish | source            in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "cloche", "_CLOCHE_COMPLETE").source())
