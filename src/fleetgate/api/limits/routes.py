"""The route for the chart of a pool's limit: limit, belief and refusals over time."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fleetgate.api.bodies import Kind
from fleetgate.api.history_reader import unhurried
from fleetgate.api.metrics.time_series import PoolSample
from fleetgate.api.router.route import get
from fleetgate.api.routes.read import PoolName
from fleetgate.api.service import Service
from fleetgate.core.errors import NotFound
from fleetgate.core.model_names import shown
from fleetgate.core.pools.effective_caps import UNLIMITED
from fleetgate.core.pools.pool import Pool
from fleetgate.core.views.limit_belief import read_belief
from fleetgate.present.json.state import Time
from fleetgate.present.limits.history import LimitMark
from fleetgate.present.log_time import LogTimes
from fleetgate.present.name_lookup import kind_for, pool_target

MOST_POINTS = 400
MOST_REFUSALS = 400

Hours = Annotated[float, Meta(gt=0, le=24, description="how far back")]


class LimitPoint(Struct):
    """From then on. `proven` is the highest level known to be accepted, `refused` the lowest known to be refused."""

    at: Time | None
    limit: int | None
    proven: int | None
    refused: int | None


class RefusalPoint(Struct):
    """`times` refusals, the last of them at `at`; `level`, `limit` and `why` are of that one."""

    at: Time | None
    level: int
    limit: int | None
    why: str | None
    times: int


class LimitHistoryAnswer(Struct):
    """Points only where something changed, and the newest. More than 400 points or refusals are thinned."""

    pool: str
    kind: str
    since: Time | None
    until: Time | None
    points: list[LimitPoint]
    refusals: list[RefusalPoint]


@get("/v1/limits/history", summary="Limit, belief and refusals of a pool over time")
async def get_limit_history(
    service: Service, pool: PoolName, kind: Kind | None = None, hours: Hours = 6.0
) -> LimitHistoryAnswer:
    state, moments = await service.look()
    found = kind_for(state, pool, kind)
    named = state.named(found, pool_target(state, found, pool, service.gate.host))
    if named is None:
        raise NotFound(f"{shown(pool)} is not one pool: see `fleetgate status`")
    key, name, last = named.key, named.id, state.seq
    since = moments.now - int(hours * 3_600_000)
    marks = service.limit_marks
    await service.archive.read(lambda log: marks.read(log, last, moments.now, unhurried))
    seen = marks.of(key, since)
    points = _points(service.series.of_pool(key, hours * 60), seen, _latest(named, moments), moments)
    return LimitHistoryAnswer(
        name, found, moments.utc(since), moments.utc(moments.now), _thinned(points), _refusals(seen, moments)
    )


def _points(
    samples: list[tuple[str, PoolSample]], marks: list[LimitMark], latest: LimitPoint, moments: LogTimes
) -> list[LimitPoint]:
    """What the service sampled and the log says, in the order of time, and what holds now.

    A sample says everything; a mark says what was accepted or refused, at the very moment.
    """
    points: list[LimitPoint] = []
    point = LimitPoint(None, None, None, None)
    seen: list[tuple[str, PoolSample | LimitMark]] = [*samples, *((moments.utc(mark.at) or "", mark) for mark in marks)]
    for at, each in sorted(seen, key=lambda pair: pair[0]):
        if isinstance(each, LimitMark):
            new = _after(point, each, at)
        else:
            new = LimitPoint(at, each.limit, each.proven, each.refused)
        if (new.limit, new.proven, new.refused) != (point.limit, point.proven, point.refused):
            points.append(new)
        point = new
    return [*points, latest] if points or latest.limit is not None else []


# Verdicts on a refusal which say nothing about how many the provider allows (core/events.py).
_NO_BOUND = ("lag", "alone", "neighbour")


def _after(point: LimitPoint, mark: LimitMark, at: str) -> LimitPoint:
    """What holds after a call was accepted or refused."""
    limit = mark.limit if mark.limit is not None else point.limit
    if mark.what == "accepted":
        refused = point.refused if point.refused is not None and point.refused > mark.level else None
        return LimitPoint(at, limit, mark.level, refused)
    if mark.why in _NO_BOUND:
        return LimitPoint(at, limit, point.proven, point.refused)
    return LimitPoint(at, limit, point.proven if (point.proven or mark.level) < mark.level else None, mark.level)


def _latest(pool: Pool, moments: LogTimes) -> LimitPoint:
    """What holds now."""
    limit = None if pool.limit >= UNLIMITED else pool.limit
    adaptive = pool.limiter.adaptive
    if adaptive is None:
        return LimitPoint(moments.utc(moments.now), limit, None, None)
    belief = read_belief(adaptive, pool.used, moments.now)
    return LimitPoint(moments.utc(moments.now), limit, belief.proven, belief.refused)


def _thinned(points: list[LimitPoint]) -> list[LimitPoint]:
    """The last of each group of neighbours, and the very first."""
    if len(points) <= MOST_POINTS:
        return points
    step = -(-len(points) // (MOST_POINTS - 1))
    return [points[0], *points[::-1][::step][::-1]]


def _refusals(marks: list[LimitMark], moments: LogTimes) -> list[RefusalPoint]:
    refused = [mark for mark in marks if mark.what != "accepted"]
    size = max(-(-len(refused) // MOST_REFUSALS), 1)
    groups = [refused[at : at + size] for at in range(0, len(refused), size)]
    return [
        RefusalPoint(moments.utc(last.at), last.level, last.limit, last.why or None, len(group))
        for group in groups
        for last in group[-1:]
    ]
