"""`fleetgate drain`: stops starting agents on a host, before maintenance."""

from __future__ import annotations

import click

from fleetgate.cli.click_helpers import entered_text, json_option, opened_gate, show_result, whoami
from fleetgate.cli.completion_values import complete_host
from fleetgate.core import commands as cmd
from fleetgate.present.name_lookup import check_host, drained


@click.command(short_help="Stop starting agents on a host.")
@click.argument("host", shell_complete=complete_host, required=False)
@click.option("--end", is_flag=True, help="Start agents on the host again.")
@json_option
def command(host: str | None, end: bool, as_json: bool) -> None:
    """Stop starting agents on a host. Running agents and their model calls continue.

    Waiting agents keep their place until the drain ends. Workers on other hosts run the jobs. HOST is a name that
    `fleetgate ps` shows (default: this host).

    \b
    fleetgate drain builder-7
    fleetgate drain builder-7 --end

    Exit codes: 0, even when it was already drained; 64 for an invalid HOST, or one that is not drained (--end).
    """
    gate = opened_gate(configured=False)
    name = check_host(gate.host if host is None else host)
    events = gate.one(cmd.Drain(name, whoami(gate.host), end), durable=True)
    result = drained(gate.state, name, events)
    still = f"{result.running} still running there: fleetgate ps" if result.running else "nothing is running there"
    text = f"{name} starts agents again{entered_text(events)}" if end else f"{name} is drained; {still}"
    show_result(as_json, result, text)
