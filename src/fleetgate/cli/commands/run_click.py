"""`fleetgate run` for click: help, completion, and error messages (see cli/run/run_options.py)."""

from __future__ import annotations

import click

from fleetgate.cli.commands.run import run
from fleetgate.cli.completion_values import complete_model, complete_project, complete_session
from fleetgate.cli.run.run_options import OPTIONS, Option, RunOptions


def _call(command: tuple[str, ...], **values: object) -> int:
    given = {name: value for name, value in values.items() if value not in (None, False)}
    return run(RunOptions(list(command), **given))  # type: ignore[arg-type]


_COMPLETE = {"model": complete_model, "project": complete_project, "session": complete_session}


def click_option(option: Option) -> click.Option:
    """An option of `run` as click declares it."""
    names = [*option.names, option.field]
    if not option.metavar:
        return click.Option(names, help=option.help, is_flag=True)
    return click.Option(names, help=option.help, metavar=option.metavar, shell_complete=_COMPLETE.get(option.field))


command = click.Command(
    "run",
    callback=_call,
    params=[
        *map(click_option, OPTIONS),
        click.Argument(["command"], nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND…"),
    ],
    context_settings={"allow_interspersed_args": False},
    short_help="Wait for a slot, run an agent, exit with its code.",
    help="""Wait for a slot, run an agent, exit with its code.

    The command runs unchanged, never through a shell. {model}, {provider}, {account} and {name} in its arguments are
    replaced with those of the chosen model. Without -m, Fleetgate takes the model of a recognized agent from its flags
    and environment, then from `models` in the config file, then from the agent's own settings. Other commands use no
    model; use -m none for an agent that needs none. A recognized agent is run with the model of its slot.

    \b
    fleetgate run -m anthropic/claude-opus-4-6 -- opencode run -m {model} "fix the tests"
    fleetgate run --wait 10m -- claude -p --model sonnet "review this"

    Exit codes: the agent's own, 128+n for a signal; 75 not admitted; 69 store unreachable; 64 usage; 78 config.""",
)
