"""Helpers of click commands that change something: options, durations, the gate, and texts for results.

The rule: a command checks everything before it decides; invalid input changes nothing (rule Q1).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from time import localtime, strftime

import click

from fleetgate.cli.completion_values import complete_model
from fleetgate.cli.open_gate import load_to_read, open_gate, open_patiently
from fleetgate.cli.output.table import say
from fleetgate.cli.read_only_gate import note, say_json
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

_LONGEST_BARE_MS = 30_000
ENDLESS_MS = 10**11  # a pause that ends later than this has no end

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
models_option = click.option(
    "-m", "--model", metavar="MODEL,…", shell_complete=complete_model, default="", help="Models in order of preference."
)
kind_option = click.option(
    "--kind",
    type=click.Choice(KINDS),
    default=None,
    help="What is counted: agents (processes) or requests (model calls). Default: the kind that has such a cap; "
    "agents for host, project and new caps.",
)


def opened_gate(loaded: Loaded | None = None, *, configured: bool = True) -> DirectGate:
    """The gate, closed when the command ends. With `configured` off, an invalid config file does not matter."""
    gate = open_gate(loaded, configured=configured)
    click.get_current_context().call_on_close(gate.close)
    return gate


def gate_to_read() -> DirectGate:
    """The same for a command that only shows something: it works without an invalid config file, and says so."""
    return opened_gate(load_to_read(note), configured=False)


def opened_slot_gate(loaded: Loaded | None, outage: Outage) -> SlotGate:
    """The same for a command that requests a slot, through the node if one is running."""
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
    """A cooldown. A small bare number is seconds; a larger one could mean milliseconds, and is refused."""
    wait_ms = read_duration_ms(name, text, zero=True)
    number = (text or "").strip()
    if wait_ms is not None and wait_ms > _LONGEST_BARE_MS and number.replace(".", "", 1).isdecimal():
        raise BadRequest(f"{name} {shown(number)}: add a unit, {number}ms or {number}s")
    return wait_ms


def whoami(host: str) -> str:
    """The author of a change, for the history: user, host and calling process."""
    import pwd

    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"uid {os.getuid()}"
    return f"{user}@{host} pid {os.getppid()}"


# Texts for results.


def entered_text(events: Iterable[ev.Event]) -> str:
    """`; 2 waiting started`, or nothing."""
    count = entered(events)
    return f"; {count} waiting started" if count else ""


def until_text(gate: DirectGate, until: int) -> str:
    """`until 14:03:20 (in 30s)`, in local time."""
    left_ms = until - gate.now()
    if left_ms > ENDLESS_MS:
        return "until it is resumed"
    wall = (until + gate.wall_offset_ms()) / 1000
    clock = strftime("%H:%M:%S" if left_ms < 43_200_000 else "%Y-%m-%d %H:%M", localtime(wall))
    return f"until {clock} (in {format_duration(max(left_ms + 999, 1000) // 1000 * 1000, 2)})"


def tell(text: str) -> None:
    """Print one line."""
    say(f"{printable(text)}\n")


def show_result(as_json: bool, document: object, *lines: str) -> None:
    """Print the result of a command: the document as JSON, or these lines."""
    if as_json:
        say_json(document)
    else:
        for line in lines:
            tell(line)
