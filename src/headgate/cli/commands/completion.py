"""`headgate completion`: prints the script that makes a shell complete headgate's commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(short_help="Print the shell completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print the completion script for a shell.

    \b
    bash:  eval "$(headgate completion bash)"      in ~/.bashrc
    zsh:   eval "$(headgate completion zsh)"       in ~/.zshrc
    fish:  headgate completion fish > ~/.config/fish/completions/headgate.fish
    """
    from headgate.cli.click_group import group

    cls = get_completion_class(shell)
    assert cls is not None
    click.echo(cls(group, {}, "headgate", "_HEADGATE_COMPLETE").source())
    return 0
