"""`headgate drain`: nobody new starts on a host, before it is shut down or worked on."""

from __future__ import annotations

import click

from headgate.cli import exits
from headgate.cli.listing import say_json
from headgate.cli.targets import entered_text, json_option, opened_gate, tell, whoami
from headgate.core import commands as cmd
from headgate.core.errors import BadRequest
from headgate.core.names import shown
from headgate.core.state import State
from headgate.present.targets import entered


@click.command(short_help="Let nobody new start on a host.")
@click.argument("host", required=False)
@click.option("--end", is_flag=True, help="The host takes new agents again.")
@json_option
def command(host: str | None, end: bool, as_json: bool) -> int:
    """Let no new agent start on a host. Those that run go on, and so do their model calls.

    Whoever waits there keeps its place, and enters when it ends. Jobs are run by other hosts' workers. HOST is a name
    as `headgate ps` shows it; without one, this host is meant.

    \b
    headgate drain builder-7
    headgate drain builder-7 --end

    Exit: 0, also when it was drained already; 64 when HOST cannot be one, or is not drained (--end).
    """
    gate = opened_gate(configured=False)
    name = gate.host if host is None else host
    if not name or len(name) > 255 or not all(char.isprintable() and char != "|" for char in name):
        raise BadRequest(f"{shown(name)} is no host's name: see `headgate ps` for those that are known")
    events = gate.one(cmd.Drain(name, whoami(gate.host), end), durable=True)
    running = _running(gate.state, name)
    if as_json:
        say_json({"host": name, "draining": not end, "running": running, "entered": entered(events)})
    elif end:
        tell(f"{name} takes new agents again{entered_text(events)}")
    else:
        still = f"; {running} still running there: headgate ps" if running else "; nobody runs there"
        tell(f"{name} is drained{still}")
    return exits.OK


def _running(state: State, host: str) -> int:
    specs = [lease.ticket.spec for lease in state.leases.values()]
    return sum(spec.kind == "agents" and spec.host == host for spec in specs)
