"""`fleetgate drain`: nobody new starts on a host, before it is shut down or worked on."""

from __future__ import annotations

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import entered_text, json_option, opened_gate, tell, whoami
from fleetgate.cli.completion_values import complete_host
from fleetgate.cli.read_only_gate import say_json
from fleetgate.core import commands as cmd
from fleetgate.present.name_lookup import check_host, drained


@click.command(short_help="Let nobody new start on a host.")
@click.argument("host", shell_complete=complete_host, required=False)
@click.option("--end", is_flag=True, help="The host takes new agents again.")
@json_option
def command(host: str | None, end: bool, as_json: bool) -> int:
    """Let no new agent start on a host. Those that run go on, and so do their model calls.

    Whoever waits there keeps its place, and enters when it ends. Jobs are run by other hosts' workers. HOST is a name
    as `fleetgate ps` shows it; without one, this host is meant.

    \b
    fleetgate drain builder-7
    fleetgate drain builder-7 --end

    Exit: 0, also when it was drained already; 64 when HOST cannot be one, or is not drained (--end).
    """
    gate = opened_gate(configured=False)
    name = check_host(gate.host if host is None else host)
    events = gate.one(cmd.Drain(name, whoami(gate.host), end), durable=True)
    came_of_it = drained(gate.state, name, events)
    if as_json:
        say_json(came_of_it)
    elif end:
        tell(f"{name} takes new agents again{entered_text(events)}")
    else:
        running = came_of_it.running
        still = f"; {running} still running there: fleetgate ps" if running else "; nobody runs there"
        tell(f"{name} is drained{still}")
    return exit_codes.OK
