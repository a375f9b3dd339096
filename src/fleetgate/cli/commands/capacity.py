"""`fleetgate capacity`: is it worth asking now? Back-pressure for those who delegate (SPEC A11, O4)."""

from __future__ import annotations

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.completion_values import complete_model, complete_project
from fleetgate.cli.output.table import Cell, Screen
from fleetgate.cli.read_only_gate import current, opened, say_json
from fleetgate.config.environment import Environment
from fleetgate.config.file import Loaded
from fleetgate.core.entities import Spec
from fleetgate.core.model_names import KINDS
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import Capacity, capacity
from fleetgate.present.json.state import capacity_json
from fleetgate.present.log_time import LogTimes
from fleetgate.present.request_fields import candidates, project_name
from fleetgate.present.text import count, spans


@click.command(short_help="Is it worth asking now? green, yellow or red.")
@click.option(
    "-m",
    "--model",
    metavar="MODEL,…",
    shell_complete=complete_model,
    default="",
    help="The model to ask for; of several, the one that would be taken.",
)
@click.option("--kind", type=click.Choice(KINDS), default="agents", show_default=True, help="What is counted.")
@click.option(
    "--project",
    metavar="NAME",
    shell_complete=complete_project,
    default="",
    help="Whose request (default: $FLEETGATE_PROJECT, else `default`).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(model: str, kind: str, project: str, as_json: bool) -> int:
    """Say whether a request would enter: green (room and no line), yellow (one slot, or a short wait), red.

    Nothing is reserved by asking. Without -m the models of the config count; else only host and project caps.

    \b
    fleetgate capacity -m anthropic/claude-opus-4-6 && start-another-agent

    Exit: 0 for green and yellow, 75 for red.
    """
    environment = Environment.read()
    with opened() as gate:
        spec = _spec(model, kind, project_name(project), gate.host, environment, gate.loaded)
        found = _capacity(current(gate), spec, gate.now())
        if found.level != "green":  # before any refusal, the dead are looked for, as when a slot is asked for
            found = _capacity(current(gate, reap=True), spec, gate.now())
        moments = LogTimes(gate)
        if as_json:
            say_json(capacity_json(found, spec, moments))
        else:
            _draw(found, spec)
    return exit_codes.DEFERRED if found.level == "red" else exit_codes.OK


def _spec(model: str, kind: str, project: str, host: str, environment: Environment, loaded: Loaded | None) -> Spec:
    caps, family_caps = environment.caps_for(kind)
    return Spec(
        models=candidates(model, environment, loaded),
        kind=kind,
        host=host,
        project=project,
        caps=caps,
        family_caps=family_caps,
    )


def _capacity(state: State, spec: Spec, now: int) -> Capacity:
    """Selectors that only our environment caps are counted for this look alone; a request would have it logged."""
    unknown = [text for text, _ in spec.caps if not state.rules.counts(spec.kind, text)]
    if unknown:
        state = State.restore(state.export())
        state.rules.seen.update(dict.fromkeys((spec.kind, text) for text in unknown))
        state.cap_events.rebuild()
    return capacity(state, spec, now)


def _draw(found: Capacity, spec: Spec) -> None:
    screen = Screen()
    for_whom = " or ".join(spec.models) or "a request without a model"
    screen.prose(f"{_room(found)} for {for_whom}, {_line(found)}", "  ", [Cell(found.level, found.level), Cell(": ")])
    if found.reason is not None:
        screen.prose(f"{found.reason.code}: {found.reason.text}", "  ")
    screen.show()


def _room(found: Capacity) -> str:
    if found.free is None:
        return "nothing is capped"
    return f"{count(found.free, 'slot')} free" if found.free else "no slot is free"


def _line(found: Capacity) -> str:
    waiting = f"{found.queued} waiting" if found.queued else "nobody waits"
    if found.reason is None:
        return waiting
    if found.wait_ms is None:
        return f"{waiting}, how long it takes is not known yet"
    return f"{waiting}, {f'about {spans(*found.wait_ms)}' if found.wait_ms[1] >= 1000 else 'less than 1s'} to wait"
