"""`fleetgate capacity`: whether a slot is free now, for scripts that spawn agents."""

from __future__ import annotations

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import models_option
from fleetgate.cli.completion_values import complete_project
from fleetgate.cli.output.table import Cell, Screen
from fleetgate.cli.read_only_gate import current, opened, say_json
from fleetgate.config.environment import Environment
from fleetgate.config.file import Loaded
from fleetgate.core.entities import NORMAL, Spec
from fleetgate.core.model_names import KINDS
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import Capacity, capacity
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.present.json.state import capacity_json
from fleetgate.present.log_time import LogTimes
from fleetgate.present.request_fields import candidates, project_name, work_class
from fleetgate.present.text import count, spans


@click.command(short_help="Is a slot free now? green, yellow or red.")
@models_option
@click.option("--kind", type=click.Choice(KINDS), default="agents", show_default=True, help="What is counted.")
@click.option(
    "--project",
    metavar="NAME",
    shell_complete=complete_project,
    default="",
    help="Whose request (default: $FLEETGATE_PROJECT, else `default`).",
)
@click.option("--class", "given_class", metavar="CLASS", default="", help="interactive, normal (default) or batch.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(model: str, kind: str, project: str, given_class: str, as_json: bool) -> int:
    """Print whether a request would start now: green (free slots, no queue), yellow (one slot, or a short wait), red.

    Nothing is reserved. Without -m, `models` of the config file are used, or only the caps of host and project.

    \b
    fleetgate capacity -m anthropic/claude-opus-4-6 && start-another-agent

    Exit codes: 0 for green and yellow, 75 for red.
    """
    with opened(strict=True) as gate:
        found, spec = find_capacity(gate, model, kind, project, given_class)
        moments = LogTimes(gate)
        if as_json:
            say_json(capacity_json(found, spec, moments))
        else:
            _draw(found, spec)
    return exit_codes.DEFERRED if found.level == "red" else exit_codes.OK


def find_capacity(
    gate: DirectGate, model: str, kind: str, project: str, given_class: str = ""
) -> tuple[Capacity, Spec]:
    """The capacity for a request in the user's words, and the request."""
    spec = _spec(model, kind, project_name(project), given_class, gate.host, Environment.read(), gate.loaded)
    found = _capacity(current(gate), spec, gate.now())
    if found.level != "green":  # free the slots of dead processes first, as a real request does
        found = _capacity(current(gate, reap=True), spec, gate.now())
    return found, spec


def _spec(
    model: str, kind: str, project: str, given_class: str, host: str, environment: Environment, loaded: Loaded | None
) -> Spec:
    caps, family_caps = environment.caps_for(kind)
    return Spec(
        models=candidates(model, environment, loaded),
        kind=kind,
        host=host,
        project=project,
        caps=caps,
        family_caps=family_caps,
        work_class=work_class(given_class, project, loaded, NORMAL),
    )


def _capacity(state: State, spec: Spec, now: int) -> Capacity:
    """The capacity, with the caps of this environment, which only a real request would log."""
    unknown = [text for text, _ in spec.caps if not state.rules.counts(spec.kind, text)]
    if unknown:
        state = State.restore(state.export())
        state.rules.seen.update(dict.fromkeys((spec.kind, text) for text in unknown))
        state.cap_events.rebuild()
    return capacity(state, spec, now)


def _draw(found: Capacity, spec: Spec) -> None:
    screen = Screen()
    for_whom = " or ".join(spec.models) or "a request without a model"
    if found.model and found.model not in spec.models:
        for_whom += f" (with {found.model.partition('/')[0]})"
    screen.prose(
        f"{_room(found)} for {for_whom}, {_wait_text(found)}", "  ", [Cell(found.level, found.level), Cell(": ")]
    )
    if found.reason is not None:
        screen.prose(found.reason.text, "  ")
    screen.show()


def _room(found: Capacity) -> str:
    if found.free is None:
        return "nothing is capped"
    return f"{count(found.free, 'slot')} free" if found.free else "no slot is free"


def _wait_text(found: Capacity) -> str:
    waiting = f"{found.queued} waiting" if found.queued else "nothing waiting"
    if found.reason is None:
        return waiting
    if found.wait_ms is None:
        return f"{waiting}, no estimate yet"
    return f"{waiting}, {f'about {spans(*found.wait_ms)}' if found.wait_ms[1] >= 1000 else 'less than 1s'} to wait"
