"""The recent past for charts: a sample every few seconds while the service runs, and one a minute for a day.

The samples are kept in a file of the state folder, so that a restart does not empty the charts. A file that cannot be
read or written is ignored.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from time import time

import msgspec
from msgspec import Struct

from fleetgate.api.events.feed import Feed
from fleetgate.core import events as ev
from fleetgate.core.errors import FleetgateError
from fleetgate.core.state.state import State
from fleetgate.core.views.limit_belief import read_belief
from fleetgate.core.views.pool_and_lease_views import lasting_pool_views
from fleetgate.gate.serving.service_gate import ServiceGate
from fleetgate.log.store_files import make_file
from fleetgate.present.json.state import Time
from fleetgate.present.log_time import LogTimes
from fleetgate.present.wall_time import utc

STEP_S = 5
FINE = 720  # samples: an hour
COARSE_EVERY = 12  # of the fine ones
COARSE = 1440  # a day
_MOST_POOLS = 200
_LARGEST_FILE = 64 << 20


class PoolSample(Struct):
    in_flight: int
    limit: int | None
    queued: int
    rate_limits: int
    proven: int | None = None  # where the limit is learned: the highest level known to be accepted
    refused: int | None = None  # and the lowest known to be refused


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


class SeriesFile(Struct):
    """The file."""

    fine: list[Sample]
    coarse: list[Sample]


class Series:
    """Collects samples. `path` is where they are kept; nowhere, when it is empty."""

    def __init__(self, gate: ServiceGate, feed: Feed, path: str = "") -> None:
        self._gate = gate
        self._feed = feed
        self._path = path
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
                if self._taken % COARSE_EVERY == 0:
                    await asyncio.to_thread(self._write, self._kept())
            except FleetgateError as error:
                self._gate.core.outage.failed("samples", error)  # the series has a gap
            else:
                self._gate.core.outage.worked("samples")
            await asyncio.sleep(STEP_S)

    def load(self) -> None:
        """Go on with the samples of the service before this one."""
        if not self._path:
            return
        try:
            with open(self._path, "rb") as file:
                kept = msgspec.json.decode(file.read(_LARGEST_FILE), type=SeriesFile)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return
        now = utc(int(time() * 1000)) or ""
        self._fine.extend(each for each in kept.fine if each.at and each.at <= now)
        self._coarse.extend(each for each in kept.coarse if each.at and each.at <= now)

    def save(self) -> None:
        """Keep the samples for the service after this one."""
        self._write(self._kept())

    def _kept(self) -> SeriesFile:
        return SeriesFile(list(self._fine), list(self._coarse))

    def _write(self, kept: SeriesFile) -> None:
        if not self._path:
            return
        new = f"{self._path}.{os.getpid()}"
        try:
            with os.fdopen(make_file(new, exclusive=False), "wb") as file:
                file.truncate()
                file.write(msgspec.json.encode(kept))
            os.replace(new, self._path)
        except OSError:
            return

    async def take(self) -> None:
        """Add one sample."""
        state = await self._gate.read()
        moments = LogTimes(self._gate)
        limits, self._rate_limits = self._rate_limits, {}
        grants, self._grants = self._grants, 0
        pools = {
            f"{view.kind} {view.pool}": PoolSample(
                view.in_flight + view.foreign,
                view.limit,
                view.queued,
                limits.get(f"{view.kind} {view.pool}", 0),
                *_believed(state, f"{view.kind} {view.pool}", moments.now),
            )
            for view in lasting_pool_views(state, moments.now, self._gate.host)[:_MOST_POOLS]
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
        fine = minutes * 60 <= FINE * STEP_S
        step_s, samples = (STEP_S, self._fine) if fine else (STEP_S * COARSE_EVERY, self._coarse)
        moments = LogTimes(self._gate)
        since = moments.utc(moments.now - int(max(minutes * 60, step_s) * 1000)) or ""
        return SeriesShape(step_s, self._feed.seq, [each for each in samples if (each.at or "") > since])

    def of_pool(self, key: str, minutes: float) -> list[tuple[str, PoolSample]]:
        """The samples of one pool, with their times: of the last hour every few seconds, before it one a minute."""
        fine = self.shape(min(minutes, FINE * STEP_S / 60)).samples
        first = fine[0].at if fine else None
        samples = [each for each in self.shape(minutes).samples if first is None or (each.at or "") < first] + fine
        return [(each.at, each.pools[key]) for each in samples if each.at is not None and key in each.pools]

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
                pool.proven,
                pool.refused,
            )
            for key, pool in now.pools.items()
        }
        limits, grants = sum(each.rate_limits for each in last), sum(each.grants for each in last)
        return Sample(now.at, now.running, now.waiting, limits, grants, pools)


def _believed(state: State, key: str, now: int) -> tuple[int | None, int | None]:
    """The highest level known to be accepted, and the lowest known to be refused, where the limit is learned."""
    pool = state.pools.get(key)
    if pool is None or pool.limiter.adaptive is None:
        return None, None
    belief = read_belief(pool.limiter.adaptive, pool.used, now)
    return belief.proven, belief.refused
