"""Figures of each pool over a span of time: waits, throughput, use, refusals. The same for the log and for a replay."""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from fleetgate.core import events as ev
from fleetgate.core.pools.effective_caps import UNLIMITED
from fleetgate.core.pools.pool import Pool
from fleetgate.core.state.state import State

HOUR_MS = 3_600_000


class Figures(Struct):
    """One pool. Waits are of requests that arrived in the span; those still waiting count with their wait so far."""

    requests: int = 0  # arrived
    waited: int = 0  # not started at once
    wait_mean_s: float = 0.0
    wait_p50_s: float = 0.0
    wait_p95_s: float = 0.0
    wait_max_s: float = 0.0
    left: int = 0  # left the queue without a slot
    still_waiting: int = 0  # at the end
    finished: int = 0
    hours: float = 0.0  # from the first arrival to the last end
    finished_per_hour: float = 0.0
    slots_mean: float = 0.0  # in use, since the pool exists
    limit_mean: float | None = None  # None: there is none
    utilisation: float | None = None  # percent of the limit
    rate_limits: int = 0  # calls that the provider refused
    highest_accepted: int = 0  # the most slots in use of which no call was refused at its start
    lowest_refused: int | None = None


class _Tally:
    """What is summed up of one pool."""

    def __init__(self, pool: Pool, now: int) -> None:
        self.pool = pool
        self.waits: list[int] = []
        self.left = self.finished = self.rate_limits = self.highest_accepted = 0
        self.lowest_refused: int | None = None
        self.first_at: int | None = None
        self.last_end = 0
        self.used = self.limit = 0
        self.live = pool.used  # as the events say, one after another
        self.begin = now
        self.used_ms = self.limit_ms = self.unlimited_ms = 0
        self.seen_at = now
        self.levels: list[int] = []  # of the requests that were granted

    def look(self, now: int) -> None:
        """Count what was in use until now, and note what is in use from now on."""
        span = now - self.seen_at
        self.used_ms += self.used * span
        if self.limit >= UNLIMITED:
            self.unlimited_ms += span
        else:
            self.limit_ms += self.limit * span
        self.seen_at = now
        self.used, self.limit = self.pool.used, self.pool.limit


class Measure:
    """Looks at a state after each event from `start` on."""

    def __init__(self, state: State, start: int) -> None:
        self._state = state
        self._start = start
        self._tallies: dict[str, _Tally] = {}
        self._waiting: dict[str, tuple[int, tuple[str, ...]]] = {}  # since when, and for which pools
        self._running: dict[str, tuple[tuple[str, ...], list[int], int]] = {}  # pools, the level in each, and slots
        for ident, ticket in state.tickets.items():
            self._waiting[ident] = ticket.queued_at, self._pools_of_queue(ident, start)
        for pool in state.pools.values():
            self._tally(pool, start).look(start)
        for ident, candidate in state.lease_candidates.items():
            slots = state.leases[ident].ticket.spec.slots
            self._running[ident] = tuple(pool.key for pool, _ in candidate.needs), [], slots

    def _tally(self, pool: Pool, now: int, granted: int = 0) -> _Tally:
        """The tally of a pool; of a new one, in which so many slots were granted at this very moment."""
        tally = self._tallies.get(pool.key)
        if tally is None:
            tally = self._tallies[pool.key] = _Tally(pool, now)
            tally.live -= granted
        tally.pool = pool
        return tally

    def _pools_of_queue(self, ident: str, now: int) -> tuple[str, ...]:
        needs = self._state.queue(self._state.tickets[ident].spec).candidates[0].needs
        return tuple(self._tally(pool, now).pool.key for pool, _ in needs)

    def see(self, event: ev.Event, now: int) -> None:
        """After an event was applied."""
        kind = type(event)
        if kind is ev.Granted:
            self._granted(event, now)  # type: ignore[arg-type]
        elif kind is ev.Queued:
            ident = event.ticket.id  # type: ignore[union-attr]
            if ident in self._state.tickets:  # else it was granted in the same step, and counts there
                self._waiting[ident] = now, self._pools_of_queue(ident, now)
                self._arrived(self._waiting[ident][1], now)
        elif kind is ev.Released or kind is ev.Reclaimed:
            refused = kind is ev.Released and event.outcome == "rate_limited"  # type: ignore[union-attr]
            self._ended(event.id, refused, now)  # type: ignore[union-attr]
        elif kind in (ev.Cancelled, ev.Expired, ev.Dropped):
            queued_at, pools = self._waiting.pop(event.id, (0, ()))  # type: ignore[union-attr]
            for key in pools:
                if queued_at >= self._start:
                    self._tallies[key].left += 1
                    self._tallies[key].waits.append(now - queued_at)
        elif kind in (ev.RuleSet, ev.CapRemoved, ev.CapReset, ev.FileLoaded, ev.Observed):
            for pool in self._state.pools.values():
                tally = self._tally(pool, now)
                tally.look(now)
                tally.live = pool.used
        elif kind in (ev.Refused, ev.Reduced, ev.Accepted):
            named = self._state.named(event.kind, event.pool)  # type: ignore[union-attr]
            if named is not None:
                self._tally(named, now).look(now)

    def _arrived(self, pools: tuple[str, ...], now: int) -> None:
        for key in pools:
            tally = self._tallies[key]
            tally.first_at = now if tally.first_at is None else tally.first_at

    def _granted(self, event: ev.Granted, now: int) -> None:
        candidate = self._state.lease_candidates.get(event.id)
        if candidate is None:
            return
        queued_at, _ = self._waiting.pop(event.id, (now - event.waited_ms, ()))
        slots = self._state.leases[event.id].ticket.spec.slots
        levels = []
        keys = tuple(pool.key for pool, _ in candidate.needs)
        for pool, _ in candidate.needs:
            tally = self._tally(pool, now, slots)
            tally.look(now)
            tally.live += slots
            levels.append(tally.live)
            if queued_at >= self._start and not event.adopted:
                tally.waits.append(now - queued_at)
        if not event.adopted:
            self._arrived(keys, now)
        self._running[event.id] = keys, levels, slots

    def _ended(self, ident: str, refused: bool, now: int) -> None:
        pools, levels, slots = self._running.pop(ident, ((), [], 0))
        for place, key in enumerate(pools):
            tally = self._tallies[key]
            tally.look(now)
            tally.live -= slots
            tally.finished += not refused
            tally.rate_limits += refused
            tally.last_end = now
            if not levels:
                continue  # it began before the span
            level = levels[place]
            tally.levels.append(level)
            if refused:
                tally.lowest_refused = min(level, tally.lowest_refused or level)
            else:
                tally.highest_accepted = max(level, tally.highest_accepted)

    def began_with(self, ident: str) -> dict[str, int]:
        """By pool of models, the slots in use when this lease began, with its own. Empty: it began before the span."""
        keys, levels, _ = self._running.get(ident, ((), [], 0))
        pools = self._state.pools
        of_models = {key for key in keys if key in pools and pools[key].cap.selector.scope == "model"}
        return {key: level for key, level in zip(keys, levels, strict=False) if key in of_models}

    def levels(self, pool: str) -> list[int]:
        """Of each request that has ended, the slots in use when it began."""
        return self._tallies[pool].levels if pool in self._tallies else []

    def figures(self, end: int) -> dict[str, Figures]:
        """By pool."""
        waiting: dict[str, list[int]] = {}
        for queued_at, pools in self._waiting.values():
            for key in pools:
                if queued_at >= self._start:
                    waiting.setdefault(key, []).append(end - queued_at)
        return {key: _sum(tally, waiting.get(key, []), end) for key, tally in self._tallies.items()}


def _sum(tally: _Tally, waiting: list[int], end: int) -> Figures:
    tally.look(end)
    span = max(end - tally.begin, 1)
    waits = sorted([*tally.waits, *waiting])
    hours = max(tally.last_end - tally.first_at, 0) / HOUR_MS if tally.first_at is not None else 0.0
    limited = tally.limit_ms > 0 and not tally.unlimited_ms
    return Figures(
        requests=len(waits),
        waited=sum(wait > 0 for wait in waits),
        wait_mean_s=round(sum(waits) / len(waits) / 1000, 3) if waits else 0.0,
        wait_p50_s=_part(waits, 50),
        wait_p95_s=_part(waits, 95),
        wait_max_s=_part(waits, 100),
        left=tally.left,
        still_waiting=len(waiting),
        finished=tally.finished,
        hours=round(hours, 3),
        finished_per_hour=round(tally.finished / hours, 1) if hours else 0.0,
        slots_mean=round(tally.used_ms / span, 3),
        limit_mean=round(tally.limit_ms / span, 3) if limited else None,
        utilisation=round(100 * tally.used_ms / tally.limit_ms, 1) if limited else None,
        rate_limits=tally.rate_limits,
        highest_accepted=tally.highest_accepted,
        lowest_refused=tally.lowest_refused,
    )


def _part(ordered: list[int], percent: int) -> float:
    return ordered[ceil(len(ordered) * percent / 100) - 1] / 1000 if ordered else 0.0
