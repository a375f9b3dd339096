"""An agent of a simulation: it thinks, asks, calls the provider and thinks again."""

from __future__ import annotations

from random import Random
from typing import Final

from fleetgate.core.entities import Spec
from fleetgate.core.usage import RESPONSE, Reading, Size, Usage
from fleetgate.simulate.scenario import Project

MINUTE: Final = 60_000

NO_TOKENS: Final = Usage(calls=1, source=RESPONSE)


class Group:
    """What a project (of one priority) has got: time at the provider, or tokens where calls at once are not limited."""

    __slots__ = ("done", "waits")

    def __init__(self) -> None:
        self.done = 0
        self.waits: list[int] = []


class SimulatedAgent:
    __slots__ = (
        "again",
        "asked_at",
        "group",
        "ident",
        "in_flight",
        "inputs",
        "left",
        "line",
        "network",
        "outputs",
        "priority",
        "project",
        "readings",
        "refused_rate",
        "retries",
        "senior",
        "sent_at",
        "service_ms",
        "services",
        "size",
        "spec",
        "thinks",
        "usage",
        "wait_ms",
        "work",
    )

    def __init__(
        self, project: Project, group: Group, spec: Spec, line: dict[str, SimulatedAgent], work: Random, network: Random
    ) -> None:
        self.project = project
        self.group = group
        self.spec = spec
        self.line = line
        self.priority = project.priority
        self.senior: int | None = None  # since when it always says it waits; None: since it asked
        self.work = work.getrandbits
        self.network = network.getrandbits
        self.thinks = project.think()
        self.services = project.service()
        self.inputs = project.input.table()
        self.outputs = project.output.table()
        self.left = project.requests or -1
        self.usage = NO_TOKENS  # of the call that it makes
        self.size: Size | None = None
        self.refused_rate = ""  # why its call was refused: the unit of a rate, what the headers said, and when to retry
        self.readings: tuple[Reading, ...] = ()
        self.wait_ms = 0
        self.ident = ""
        self.asked_at = self.service_ms = self.sent_at = self.retries = 0
        self.in_flight = 1  # when its call was sent, itself included
        self.again = False  # whether its call was refused before


def idle_ms(project: Project, at: int, think_ms: int) -> int:
    """How long an agent that would ask at this moment of the scenario waits until there is work again."""
    idle, busy = int(project.idle_min * MINUTE), int(project.busy_min * MINUTE)
    over = at % (busy + idle) if idle else 0
    return busy + idle - over + think_ms % 1000 if idle and over >= busy else 0
