"""`fleetgate completion`: the script with which a shell completes commands, options and values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(short_help="Print the shell completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for a shell: commands, options, IDs, pools, models and projects.

    \b
    bash:  eval "$(fleetgate completion bash)"      in ~/.bashrc
    zsh:   eval "$(fleetgate completion zsh)"       in ~/.zshrc
    fish:  fleetgate completion fish > ~/.config/fish/completions/fleetgate.fish
    """
    click.echo(completion_script(shell))


def completion_script(shell: str) -> str:
    """The script for a shell."""
    from fleetgate.cli.click_group import group

    cls = get_completion_class(shell)
    assert cls is not None
    return cls(group, {}, "fleetgate", "_FLEETGATE_COMPLETE").source()
