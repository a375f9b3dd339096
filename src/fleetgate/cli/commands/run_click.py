"""`fleetgate run` as click knows it: help, completion, and what is wrong with a command line (see run_options.py)."""

from __future__ import annotations

import click

from fleetgate.cli.commands.run import run
from fleetgate.cli.run_options import OPTIONS, RunOptions


def _call(command: tuple[str, ...], **values: object) -> int:
    given = {name: value for name, value in values.items() if value not in (None, False)}
    return run(RunOptions(list(command), **given))  # type: ignore[arg-type]


command = click.Command(
    "run",
    callback=_call,
    params=[
        *(
            click.Option([*option.names, option.field], help=option.help, metavar=option.metavar or None)
            if option.metavar
            else click.Option([*option.names, option.field], help=option.help, is_flag=True)
            for option in OPTIONS
        ),
        click.Argument(["command"], nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND…"),
    ],
    context_settings={"allow_interspersed_args": False},
    short_help="Wait in the queue, run an agent under a lease, return as it returns.",
    help="""Wait in the queue, run an agent under a lease, return as it returns.

    The command is run as it is, never through a shell. {model}, {provider}, {account} and {name} in its arguments are
    replaced by the chosen model's. Without -m the model is read from a known agent's own flags and environment, else
    from `models` in the config, else from the agent's own settings. Other commands take no model; -m none says so of
    an agent. A known agent is run with the model of its slot.

    \b
    fleetgate run -m anthropic/claude-opus-4-6 -- opencode run -m {model} "fix the tests"
    fleetgate run --wait 10m -- claude -p --model sonnet "review this"

    Exit: the agent's own code, 128+n for a signal; 75 not admitted, 69 store unreachable, 64 usage, 78 config.""",
)
