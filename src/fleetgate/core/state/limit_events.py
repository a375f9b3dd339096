"""Events about pauses, limits and the provider's answers: what they do to a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetgate.core import events as ev
from fleetgate.core.limits import Verdict
from fleetgate.core.pools.pool import Pool

if TYPE_CHECKING:
    from fleetgate.core.state.state import State

_OfPool = ev.Paused | ev.Resumed | ev.Reduced | ev.Accepted | ev.Refused | ev.UsageAsked | ev.UsageAnswered


class LimitEvents:
    """Applies them to one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def paused(self, event: ev.Paused, at: int) -> None:
        state = self._state
        pool = self._pool_of(event)
        pool.paused_until = event.until
        pool.pause_cause = event.cause
        if event.incident:
            pool.incident_seq = state.seq
        state.recheck_pool(pool)
        concerned = state.by_account.get(pool.account, {}) if pool.account else state.active_queues
        for queue in concerned.values():  # another candidate may be used meanwhile
            if (queue.has_fallback or queue.home is not None) and queue.waiting and pool in queue.pools:
                state.recheck_queue(queue)
        state.reservations.review(at)

    def resumed(self, event: ev.Resumed, at: int) -> None:
        pool = self._pool_of(event)
        pool.paused_until = 0
        pool.pause_cause = ""
        self._state.recheck_pool(pool)

    def reduced(self, event: ev.Reduced, at: int) -> None:
        pool = self._pool_of(event)
        pool.limiter.reduced = event.limit
        pool.refresh()
        self._state.reservations.review(at)

    # What `adapt` learns (core/limits/adaptive.py).

    def accepted(self, event: ev.Accepted, at: int) -> None:
        pool = self._pool_of(event)
        assert pool.limiter.adaptive is not None, f"{pool.key} learns nothing"
        pool.limiter.adaptive.accepted(event.id, at)
        pool.refresh()
        self._state.recheck_pool(pool)

    def refused(self, event: ev.Refused, at: int) -> None:
        pool = self._pool_of(event)
        assert pool.limiter.adaptive is not None, f"{pool.key} learns nothing"
        pool.limiter.adaptive.refused(event.id, Verdict(event.why, event.level, event.limit, 0), at)
        pool.refresh()
        self._state.recheck_pool(pool)
        self._state.reservations.review(at)

    def _pool_of(self, event: _OfPool) -> Pool:
        pool = self._state.named(event.kind, event.pool)
        assert pool is not None, f"no cap makes the pool {event.pool}"
        return pool

    # The usage gate.

    def usage_asked(self, event: ev.UsageAsked, at: int) -> None:
        self._pool_of(event).usage_gate.asked(event.by, at)

    def usage_answered(self, event: ev.UsageAnswered, at: int) -> None:
        pool = self._pool_of(event)
        asked_at = pool.usage_gate.asked_at
        pool.usage_gate.answered(event.count, event.error, at)
        if pool.limiter.adaptive is not None:
            pool.limiter.adaptive.answered(event.count, at, asked_at)
            pool.refresh()
