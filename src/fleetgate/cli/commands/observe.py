"""`fleetgate observe`: how much of a plan window is used, for what Fleetgate cannot see itself (rule W1)."""

from __future__ import annotations

import click

from fleetgate.cli.click_helpers import opened_gate
from fleetgate.cli.open_gate import load_config
from fleetgate.cli.read_only_gate import note
from fleetgate.cli.statusline.line import print_line
from fleetgate.config.errors import BadValue
from fleetgate.config.units import parse_duration_ms
from fleetgate.config.value_types import read_share
from fleetgate.core import commands as cmd
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import canonical
from fleetgate.core.plans.reading import PlanReading, is_valid


@click.command(short_help="Record how much of a plan window is used.")
@click.option("--statusline", is_flag=True, help="Read the JSON of Claude Code's status line, and print a line.")
@click.option("--account", metavar="ACCOUNT", default="", help="Whose plan it is (default: anthropic).")
@click.option("--window", metavar="LENGTH", default="", help="The window, by its length: 5h, 7d.")
@click.option("--used", metavar="PERCENT", default="", help="How much of it is used: 63%.")
@click.option("--resets-in", metavar="DURATION", default="", help="When it is empty again: 2h10m.")
def command(statusline: bool, account: str, window: str, used: str, resets_in: str) -> int:
    """Record how much of a plan window is used, where neither the proxy nor an agent under Fleetgate reports it.

    \b
    fleetgate observe --window 5h --used 63% --resets-in 2h10m
    fleetgate observe --statusline     as the status line of Claude Code; the same as `fleetgate statusline`
    """
    if statusline:
        if window or used or resets_in:
            raise BadRequest("--statusline reads all of it from stdin: leave out --window, --used and --resets-in")
        return print_line(account)
    if not (window and used and resets_in):
        raise BadRequest("name the window: --window 5h --used 63% --resets-in 2h10m; or --statusline")
    try:
        reading = PlanReading(window, read_share(used), parse_duration_ms(resets_in), parse_duration_ms(window))
    except BadValue as error:
        raise BadRequest(str(error)) from error
    if not is_valid(reading) or not reading.resets_in_ms:
        raise BadRequest(f"--window {window} --resets-in {resets_in}: valid is a window of 1m to 400d that is not over")
    gate = opened_gate(load_config())
    name = canonical(account or "anthropic")
    events = gate.one(cmd.ObservePlan(name, (reading,)), durable=True)
    note(f"{name}: {used} of {window}" if events else f"{name}: {used} of {window} is what was known already")
    return 0
