"""All commands but the quick `run`, through click: help, completion, and errors that say what is valid.

One file per command, imported only when it is called. A command returns its exit code (None is 0) and raises
FleetgateError for what a person should be told.
"""

from __future__ import annotations

import importlib
import sys

import click

from fleetgate.cli import exit_codes
from fleetgate.present.text import printable_lines

# Name -> module below fleetgate.cli that has it as `command`.
COMMANDS = {
    "run": "commands.run_click",
    "submit": "commands.submit",
    "jobs": "commands.jobs",
    "show": "commands.show",
    "logs": "commands.logs",
    "wait": "commands.wait",
    "retry": "commands.retry",
    "approve": "commands.approve",
    "clean": "commands.clean",
    "worker": "commands.worker",
    "dispatch": "commands.dispatch",
    "notify": "commands.notify",
    "acquire": "commands.acquire",
    "release": "commands.release",
    "status": "commands.status",
    "queue": "commands.queue",
    "ps": "commands.ps",
    "top": "top.command",
    "capacity": "commands.capacity",
    "cancel": "commands.cancel",
    "bump": "commands.bump",
    "cap": "commands.cap",
    "cooldown": "commands.cooldown",
    "pause": "commands.pause",
    "resume": "commands.resume",
    "drain": "commands.drain",
    "report": "commands.report",
    "backoff": "commands.backoff",
    "select": "commands.select",
    "session": "commands.session",
    "explain": "commands.explain",
    "simulate": "commands.simulate",
    "history": "commands.history",
    "metrics": "commands.metrics",
    "config": "commands.config",
    "serve": "commands.serve",
    "node": "commands.node",
    "env": "commands.env",
    "open": "commands.open",
    "store": "commands.store",
    "doctor": "doctor.command",
    "completion": "commands.completion",
}


class LazyGroup(click.Group):
    """Commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(f"fleetgate.cli.{module}").command
        return command


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
)
@click.version_option(package_name="fleetgate", prog_name="fleetgate")
def group() -> None:
    """Admission control for fleets of AI agents: caps, one visible queue, leases that cannot leak.

    \b
    fleetgate run -m anthropic/claude-opus-4-6 -- opencode run "fix the tests"
    fleetgate queue          who waits for what, and why
    fleetgate cap set 'anthropic/claude-opus-*' 4
    """


def dispatch(argv: list[str]) -> int:
    """Run what the arguments say; its exit code."""
    try:
        result = group.main(argv, prog_name="fleetgate", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return exit_codes.USAGE
    except click.ClickException as error:
        _explain(error)
        return exit_codes.USAGE
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        return exit_codes.INTERRUPTED
    return result if isinstance(result, int) else exit_codes.OK


def _explain(error: click.ClickException) -> None:
    """One sentence and what to type next, instead of click's block of usage lines."""
    message = error.format_message()
    sys.stderr.write(f"fleetgate: {printable_lines(message[:1].lower() + message[1:])}\n")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        sys.stderr.write(f"usage: {error.ctx.get_usage().partition(' ')[2]}\n")
        sys.stderr.write(f"more:  {error.ctx.command_path} --help\n")
