"""The command `fleetgate` for click: all commands by what they are for, help, and errors with a suggestion.

One file per command, imported only when it is called. A command returns its exit code (None is 0) and raises
FleetgateError for mistakes that a person can correct. `run` usually starts without this module (cli/main.py).
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Sequence

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.suggestions import suggestion
from fleetgate.present.text import printable_lines

# Heading -> names of commands. A command is `command` of the module of its name below fleetgate.cli.commands.
_NAMES = {
    "Run agents": "run stop acquire release capacity select session report",
    "See what is happening": "status accounts projects queue ps top digest history metrics usage explain statusline "
    "observe",
    "Manage caps and the queue": "cap budget cooldown pause resume drain backoff bump cancel",
    "Queue jobs for later": "submit jobs show logs wait retry approve clean worker dispatch",
    "Serve the dashboard, API and proxy": "serve open key env node notify mcp hook",
    "Set up": "init shim config store doctor simulate completion help",
}
SECTIONS = {heading: names.split() for heading, names in _NAMES.items()}
_ELSEWHERE = {
    "run": "commands.run_click",
    "top": "top.command",
    "doctor": "doctor.command",
    "init": "init.command",
    "mcp": "mcp.command",
    "shim": "shims.command",
}
COMMANDS = {name: _ELSEWHERE.get(name, f"commands.{name}") for names in SECTIONS.values() for name in names}


_SERVICE = "fleetgate.service"  # where a context keeps the value of --service


class LazyGroup(click.Group):
    """Imports a command when it is needed, and lists all of them by section."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(f"fleetgate.cli.{module}").command
        given = ctx.meta.get(_SERVICE)
        if given or os.environ.get("FLEETGATE_SERVICE"):
            from fleetgate.cli.service.over_http import over_http

            return over_http(cmd_name, command, given)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for heading, names in SECTIONS.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(heading):
                rows = [(name.ljust(width), command.get_short_help_str(90)) for name, command in found if command]
                formatter.write_dl(rows)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
)
@click.version_option(package_name="fleetgate", prog_name="fleetgate")
@click.option(
    "--service",
    metavar="URL",
    expose_value=False,
    callback=lambda context, _, url: context.meta.update({_SERVICE: url}),
    help="Ask a service elsewhere, with FLEETGATE_KEY (default: $FLEETGATE_SERVICE).",
)
@click.option("-v", "--verbose", is_flag=True, help="Show warnings about the store, and the steps of a run, on stderr.")
def group(verbose: bool) -> None:
    """Admission control for fleets of AI agents: caps, one visible queue, slots that cannot leak.

    \b
    fleetgate run -m anthropic/claude-opus-4-6 -- opencode run "fix the tests"
    fleetgate queue          what is waiting, and why
    fleetgate cap set 'anthropic/claude-opus-*' 4
    """
    if verbose:
        from fleetgate.cli.log_output import log_to_stderr

        log_to_stderr()


def dispatch(argv: list[str]) -> int:
    """Run the command that the arguments name; its exit code."""
    try:
        result = group.main(argv, prog_name="fleetgate", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return exit_codes.USAGE
    except click.ClickException as error:
        _explain(error, argv)
        return exit_codes.USAGE
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        return exit_codes.INTERRUPTED
    return result if isinstance(result, int) else exit_codes.OK


def _explain(error: click.ClickException, argv: Sequence[str]) -> None:
    """One sentence and what to type next, instead of click's block of usage lines."""
    message = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = suggestion(argv, context)
    if hint:
        message = re.sub(r" \(?Did you mean.*", "", message)  # newer versions of click guess, too
    sys.stderr.write(f"fleetgate: {printable_lines(message[:1].lower() + message[1:])}\n")
    if hint:
        sys.stderr.write(f"{printable_lines(hint)}\n")
    if context is not None:
        sys.stderr.write(f"usage: {context.get_usage().partition(' ')[2]}\n")
        sys.stderr.write(f"more:  {context.command_path} --help\n")
