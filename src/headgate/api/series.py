"""The recent past for charts: a sample every few seconds while the service runs, and one a minute for a day."""

from __future__ import annotations

import asyncio
from collections import deque

from msgspec import Struct

from headgate.api.feed import Feed
from headgate.core import events as ev
from headgate.core.errors import HeadgateError
from headgate.core.views import pool_views
from headgate.gate.node import Node
from headgate.present.moments import Moments
from headgate.present.shapes import Time

STEP_S = 5
FINE = 720  # samples: an hour
COARSE_EVERY = 12  # of the fine ones
COARSE = 1440  # a day
_MOST_POOLS = 200


class PoolSample(Struct):
    in_flight: int
    limit: int | None
    queued: int
    rate_limits: int


class Sample(Struct):
    """One moment. `grants` and `rate_limits` are counts since the sample before."""

    at: Time | None
    running: int
    waiting: int
    rate_limits: int
    grants: int
    pools: dict[str, PoolSample]


class SeriesShape(Struct):
    """`pools` of a sample is keyed by kind and pool, as "requests umans"."""

    step_s: int
    seq: int
    samples: list[Sample]


class Series:
    """Collects samples."""

    def __init__(self, gate: Node, feed: Feed) -> None:
        self._gate = gate
        self._feed = feed
        self._fine: deque[Sample] = deque(maxlen=FINE)
        self._coarse: deque[Sample] = deque(maxlen=COARSE)
        self._grants = 0
        self._rate_limits: dict[str, int] = {}
        self._taken = 0

    def hear(self, event: ev.Event) -> None:
        kind = type(event)
        if kind is ev.Granted:
            self._grants += 1
        elif isinstance(event, ev.Paused) and event.incident:
            key = f"{event.kind} {event.pool}"
            self._rate_limits[key] = self._rate_limits.get(key, 0) + 1

    async def run(self) -> None:
        while True:
            try:
                await self.take()
            except HeadgateError:
                pass  # the store is in trouble: a gap
            await asyncio.sleep(STEP_S)

    async def take(self) -> None:
        """Add one sample."""
        state = await self._gate.read()
        moments = Moments(self._gate)
        limits, self._rate_limits = self._rate_limits, {}
        grants, self._grants = self._grants, 0
        pools = {
            f"{view.kind} {view.pool}": PoolSample(
                view.in_flight + view.foreign, view.limit, view.queued, limits.get(f"{view.kind} {view.pool}", 0)
            )
            for view in pool_views(state, moments.now, self._gate.host)[:_MOST_POOLS]
        }
        sample = Sample(
            moments.utc(moments.now), len(state.leases), len(state.tickets), sum(limits.values()), grants, pools
        )
        self._fine.append(sample)
        self._taken += 1
        if self._taken % COARSE_EVERY == 0:
            self._coarse.append(self._summed())

    def shape(self, minutes: float) -> SeriesShape:
        """The last minutes."""
        if minutes * 60 <= FINE * STEP_S:
            most = max(int(minutes * 60 / STEP_S), 1)
            return SeriesShape(STEP_S, self._feed.seq, list(self._fine)[-most:])
        most = max(int(minutes), 1)
        return SeriesShape(STEP_S * COARSE_EVERY, self._feed.seq, list(self._coarse)[-most:])

    def _summed(self) -> Sample:
        """The last minute in one sample: as it is now, with all that was counted."""
        last = list(self._fine)[-COARSE_EVERY:]
        now = last[-1]
        pools = {
            key: PoolSample(
                pool.in_flight,
                pool.limit,
                pool.queued,
                sum(each.pools[key].rate_limits for each in last if key in each.pools),
            )
            for key, pool in now.pools.items()
        }
        limits, grants = sum(each.rate_limits for each in last), sum(each.grants for each in last)
        return Sample(now.at, now.running, now.waiting, limits, grants, pools)
