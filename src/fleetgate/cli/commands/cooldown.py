"""`fleetgate cooldown`: how long a released slot stays reserved."""

from __future__ import annotations

import click

from fleetgate.cli.click_helpers import json_option, kind_option, opened_gate, read_cooldown_ms, show_result
from fleetgate.cli.completion_values import complete_selector
from fleetgate.cli.name_arguments import NAME
from fleetgate.config.units import format_duration
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from fleetgate.present.cap_listing import cooldown
from fleetgate.present.name_lookup import check_selector, kind_for


@click.command(short_help="Show or set how long a released slot stays reserved.")
@click.argument("selector", type=NAME, shell_complete=complete_selector)
@click.argument("duration", required=False)
@kind_option
@json_option
def command(selector: str, duration: str | None, kind: str | None, as_json: bool) -> None:
    """Show or set how long a released slot stays reserved before another request gets it.

    Providers count a finished call for a short time; a cooldown of the same length prevents one call too many. Give
    the unit (350ms, 2s); a bare number up to 30 is seconds, 0 disables it. Slots that are cooling keep their time.
    Without a cap the value is stored, and applies when a cap is set.

    \b
    fleetgate cooldown umans
    fleetgate cooldown umans 350ms

    Exit codes: 0; 64 when something is invalid (nothing is changed).
    """
    wait_ms = read_cooldown_ms("DURATION", duration)
    gate = opened_gate()
    state = gate.read()
    check_selector(selector, state, gate.settings)
    found = kind_for(state, selector, kind)
    if wait_ms is not None:
        gate.one(cmd.SetRule(Rule(found, selector, cooldown_ms=wait_ms)), durable=True)
        state = gate.state
    cap = state.rules.caps.get((found, selector))
    cooldown_ms, source = cooldown(state, (found, selector))
    capped = cap is not None and cap.capped
    document = {"selector": selector, "kind": found, "cooldown_ms": cooldown_ms, "source": source, "capped": capped}
    remembered = "" if capped else "; applies when a cap is set"
    text = f"{selector} ({found}): cooldown {format_duration(cooldown_ms)} ({source}){remembered}"
    show_result(as_json, document, text)
