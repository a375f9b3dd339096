"""The route of projects: how many requests of each are running and waiting."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.api.router.route import get
from fleetgate.api.service import Service
from fleetgate.present.json.state import Time


class ProjectShape(Struct):
    """A project that has something at the gate. `oldest` is since when its oldest request waits."""

    project: str
    running: int = 0
    slots: int = 0
    waiting: int = 0
    oldest: Time | None = None
    weight: int = 1  # how much more than others it gets of what they share
    agents: int = 0  # running
    calls: int = 0  # in flight


class ProjectsAnswer(Struct):
    projects: list[ProjectShape]
    seq: int


@get("/v1/projects", summary="Running and waiting requests by project")
async def projects(service: Service) -> ProjectsAnswer:
    state, moments = await service.look()
    found: dict[str, ProjectShape] = {}
    weights = state.rules.weights
    since: dict[str, int] = {}

    def of(name: str) -> ProjectShape:
        return found.setdefault(name, ProjectShape(name, weight=weights.get(name, 1)))

    for lease in state.leases.values():
        shape = of(lease.ticket.spec.project)
        shape.running += 1
        if lease.ticket.spec.kind == "agents":
            shape.agents += 1
        else:
            shape.calls += 1
        shape.slots += lease.ticket.spec.slots
    for ticket in state.tickets.values():
        name = ticket.spec.project
        of(name).waiting += 1
        since[name] = min(since.get(name, ticket.queued_at), ticket.queued_at)
    for name, at in since.items():
        found[name].oldest = moments.utc(at)
    return ProjectsAnswer(sorted(found.values(), key=lambda shape: shape.project), state.seq)
