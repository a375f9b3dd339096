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
    points = _points(service.series.of_pool(key, hours * 60), seen, moments)
    return LimitHistoryAnswer(
        name, found, moments.utc(since), moments.utc(moments.now), _thinned(points), _refusals(seen, moments)
    )


def _points(samples: list[tuple[str, PoolSample]], marks: list[LimitMark], moments: LogTimes) -> list[LimitPoint]:
    """From the samples of the service; before the first of them, as far as the log says."""
    points: list[LimitPoint] = []
    first = samples[0][0] if samples else None
    limit = proven = refused = None
    for mark in marks:
        at = moments.utc(mark.at)
        if first is not None and (at or "") >= first:
            break
        limit = mark.limit if mark.limit is not None else limit
        if mark.what == "accepted":
            proven = mark.level
            refused = refused if refused is not None and refused > proven else None
        else:
            refused = mark.level
            proven = proven if proven is not None and proven < refused else None
        points.append(LimitPoint(at, limit, proven, refused))
    for at, sample in samples:
        point = LimitPoint(at, sample.limit, sample.proven, sample.refused)
        last = points[-1] if points else None
        if last is None or (last.limit, last.proven, last.refused) != (point.limit, point.proven, point.refused):
            points.append(point)
    if samples and points[-1].at != samples[-1][0]:
        end = points[-1]
        points.append(LimitPoint(samples[-1][0], end.limit, end.proven, end.refused))
    return points


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
