"""`fleetgate help`: the help text of a command, for people who do not type --help."""

from __future__ import annotations

import click


@click.command(short_help="Show the help of a command.")
@click.argument("names", metavar="[COMMAND]…", nargs=-1)
def command(names: tuple[str, ...]) -> None:
    """Show the help of a command, or list all commands.

    \b
    fleetgate help
    fleetgate help run
    fleetgate help cap set

    Exit codes: 0; 64 when there is no such command.
    """
    from fleetgate.cli.click_group import group

    found: click.Command = group
    context = click.Context(found, info_name="fleetgate", **group.context_settings)
    for name in names:
        below = found.get_command(context, name) if isinstance(found, click.Group) else None
        if below is None:
            raise click.UsageError(f"No such command {name!r}.", context)
        found, context = below, click.Context(below, info_name=name, parent=context)
    click.echo(found.get_help(context))
