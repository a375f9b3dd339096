"""The JSON of projects and of fair shares, as `fleetgate projects --json` and `GET /v1/projects` have them."""

from __future__ import annotations

from msgspec import Struct, field

from fleetgate.core.state.state import State
from fleetgate.core.views.share_views import FairShares, PoolShare
from fleetgate.present.json.state import Time
from fleetgate.present.log_time import LogTimes

_MOST_SHARES = 10


class ShareShape(Struct):
    """A part of a pool that several projects use: `percent` of the slots in use, and what the weights entitle it to."""

    pool: str
    kind: str
    slots: int
    of: int  # slots in use, of all projects
    percent: float | None  # null while no slot is in use
    fair_percent: float


class ProjectShape(Struct):
    """A project that has something at the gate. `oldest` is since when its oldest request waits.

    `shares` are its parts of the pools that it shares with other projects, the one where it is the shortest first.
    """

    project: str
    running: int = 0
    slots: int = 0
    waiting: int = 0
    oldest: Time | None = None
    weight: int = 1  # how much more than others it gets of what they share
    agents: int = 0  # running
    calls: int = 0  # in flight
    shares: list[ShareShape] = field(default_factory=list)


def list_projects(state: State, moments: LogTimes, only: str = "") -> list[ProjectShape]:
    """All projects by name, or only one of them."""
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
    shares = FairShares(state).of_projects
    for name, shape in found.items():
        shape.shares = shares_json(shares.get(name, []))
    return sorted((each for each in found.values() if only in ("", each.project)), key=lambda shape: shape.project)


def shares_json(shares: list[PoolShare]) -> list[ShareShape]:
    return [_share_json(share) for share in shares[:_MOST_SHARES]]


def _share_json(share: PoolShare) -> ShareShape:
    percent = None if share.part is None else round(100 * share.part, 1)
    return ShareShape(share.pool, share.kind, share.slots, share.of, percent, round(100 * share.entitled, 1))


def share_text(shares: list[ShareShape]) -> str:
    """The share that is the shortest, in a few words: `25 %, fair 50 %`; nothing for one that shares no pool."""
    if not shares:
        return ""
    first = shares[0]
    return f"{first.percent or 0:.0f} %, fair {first.fair_percent:.0f} %"
