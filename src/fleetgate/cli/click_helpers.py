"""What a person means by a name or an id, for the commands that change something; and how they tell what came of it.

A command looks up everything it needs before it decides: what cannot be meant changes nothing (SPEC Q1).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from time import localtime, strftime

import click

from fleetgate.cli.open_gate import open_gate, open_patiently
from fleetgate.cli.output.table import say
from fleetgate.cli.store_outage import Outage
from fleetgate.config.file import Loaded
from fleetgate.config.units import format_duration, parse_duration_ms
from fleetgate.core import events as ev
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import KINDS, shown
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.gate.slots.slot_gate import SlotGate
from fleetgate.present.name_lookup import entered
from fleetgate.present.text import printable

_MOST_BARE_MS = 30_000
ENDLESS_MS = 10**11  # further away than anyone will wait: a pause without an end

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
kind_option = click.option(
    "--kind",
    type=click.Choice(KINDS),
    default=None,
    help="What is counted: agents (processes) or requests (model calls). Default: agents for host and project, "
    "else the kind that has such a cap; for a new cap agents, otherwise requests.",
)


def opened_gate(loaded: Loaded | None = None, *, configured: bool = True) -> DirectGate:
    """The gate, closed when the command ends. What does not need the config file does not stumble over it."""
    gate = open_gate(loaded, configured=configured)
    click.get_current_context().call_on_close(gate.close)
    return gate


def opened_slot_gate(loaded: Loaded | None, outage: Outage) -> SlotGate:
    """The same for one who asks for a slot, through the node where one runs."""
    gate = open_patiently(loaded, outage)
    click.get_current_context().call_on_close(gate.close)
    return gate


def read_duration_ms(name: str, text: str | None, *, zero: bool = False) -> int | None:
    """An option's duration; bare numbers are seconds."""
    if text is None:
        return None
    try:
        duration_ms = parse_duration_ms(text)
    except ValueError as error:
        raise BadRequest(f"{name}: {error}") from error
    if not duration_ms and not zero:
        raise BadRequest(f"{name} {shown(text)}: valid is a duration longer than zero, for example 30 (seconds) or 10m")
    return duration_ms


def read_cooldown_ms(name: str, text: str | None) -> int | None:
    """A cooldown. A small bare number is seconds; a larger one may as well be milliseconds, and is refused."""
    wait_ms = read_duration_ms(name, text, zero=True)
    number = (text or "").strip()
    if wait_ms is not None and wait_ms > _MOST_BARE_MS and number.replace(".", "", 1).isdecimal():
        raise BadRequest(f"{name} {shown(number)}: say the unit, {number}ms or {number}s")
    return wait_ms


def whoami(host: str) -> str:
    """Who does this, for the history: the person, the machine and the process that called us."""
    import pwd

    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"uid {os.getuid()}"
    return f"{user}@{host} pid {os.getppid()}"


# What came of it.


def entered_text(events: Iterable[ev.Event]) -> str:
    """`; 2 waiting entered`, or nothing."""
    count = entered(events)
    return f"; {count} waiting entered" if count else ""


def until_text(gate: DirectGate, until: int) -> str:
    """`until 14:03:20 (in 30s)`, in local time."""
    left_ms = until - gate.now()
    if left_ms > ENDLESS_MS:
        return "until somebody resumes it"
    wall = (until + gate.wall_offset_ms()) / 1000
    clock = strftime("%H:%M:%S" if left_ms < 43_200_000 else "%Y-%m-%d %H:%M", localtime(wall))
    return f"until {clock} (in {format_duration(max(left_ms + 999, 1000) // 1000 * 1000, 2)})"


def tell(text: str) -> None:
    """One line for a person."""
    say(f"{printable(text)}\n")
