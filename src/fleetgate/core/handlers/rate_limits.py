"""Refused and accepted calls: what a rate limit does to a pool or a model (rules P1 to P4).

A pool's policy (core/limits) decides what a refusal means; here that becomes events.
"""

from __future__ import annotations

from collections.abc import Callable

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Lease
from fleetgate.core.errors import NotFound
from fleetgate.core.handlers.backoffs import BackoffHandler
from fleetgate.core.model_names import shown
from fleetgate.core.pools import blame
from fleetgate.core.pools.pool import FOREVER, Pool
from fleetgate.core.state.state import State


class RateLimitHandler:
    """The limits of one state's pools."""

    def __init__(self, state: State, record: Callable[[ev.Event], None], backoffs: BackoffHandler) -> None:
        self._state = state
        self._record = record
        self._backoffs = backoffs

    def report(self, command: cmd.Report, now: int) -> None:
        lease = self._state.leases.get(command.id)
        if command.id and lease is None:
            raise NotFound(f"no lease {shown(command.id)}: see `fleetgate ps`")
        blamed = blame.meant(self._state, command, lease, now)
        if isinstance(blamed, Pool):
            self.rate_limited(blamed, lease, command.retry_after_ms, now)
        elif blamed is not None:  # nothing caps it, so no pool can be paused (rule B1)
            seen = cmd.Release(command.id, "rate_limited", command.retry_after_ms, evidence="reported")
            self._backoffs.observed(seen, blamed, now)

    def refused(self, command: cmd.Release, lease: Lease, now: int) -> bool:
        """The provider refused a lease's call. Returns True if a pool handles it; if not, the model must be backed off.

        If the provider says which models its limit is about, a pool with other models is left alone. A request that may
        use another model is not kept from it: the pool learns, and the model is backed off.
        """
        state, held = self._state, self._state.lease_candidates[lease.id]
        if command.named:
            pool = blame.named(held, command.scope, command.family)
        else:
            pool = blame.blamed(state, held, lease.id, now)
        if pool is None or pool.cap.on_429 == "fixed":
            return False
        alone = len(lease.ticket.spec.models) < 2
        self.rate_limited(pool, lease, command.retry_after_ms, now, pause=alone)
        return alone

    def use_up(self, command: cmd.UseUp, now: int) -> None:
        """Headers say that nothing is left for a while: pause until then, before a call is refused."""
        held = self._state.lease_candidates.get(command.id)
        first = None if held is None else blame.narrowest(held)
        if held is None or held.name is None or first is None:
            return
        pool = blame.named(held, command.scope, command.family) if command.scope else first
        if pool is None:
            seen = cmd.Release("", "rate_limited", command.for_ms, evidence="its headers", named=True)
            seen.scope, seen.family = command.scope, command.family
            self._backoffs.observed(seen, held.name, now, call=True)
        elif now + command.for_ms > pool.paused_until:
            until = min(now + command.for_ms, FOREVER)
            self._record(ev.Paused(pool.kind, pool.id, until, "rate_limited"))

    def rate_limited(
        self, pool: Pool, lease: Lease | None, retry_after_ms: int | None, now: int, *, pause: bool = True
    ) -> None:
        """Pause, never shorter than before; a new incident lowers the limit once. Without `pause` only that."""
        if pool.cap.on_429 == "fixed":
            return
        ident = "" if lease is None else lease.id
        incident = lease is None or lease.granted_seq > pool.incident_seq
        verdict = pool.policy.verdict(ident, pool.limit, now)
        if pool.limiter.adaptive is not None:
            incident = verdict.why != "fit"
        wait_ms = verdict.wait_ms if retry_after_ms is None else max(retry_after_ms, 0)
        until = max(pool.paused_until, min(now + wait_ms, FOREVER))
        if not pause:
            until = max(pool.paused_until, now)
        if incident or (pause and until > pool.paused_until):
            self._record(ev.Paused(pool.kind, pool.id, until, "rate_limited", incident))
        cap = pool.limiter.auto_cap if pool.cap.cap is None else pool.cap.cap
        if pool.limiter.adaptive is not None:
            self._record(ev.Refused(pool.kind, pool.id, ident, verdict.why, verdict.level, verdict.limit, cap))
        elif incident and verdict.limit < pool.limit:
            self._record(ev.Reduced(pool.kind, pool.id, verdict.limit, cap))

    def awaits_acceptance(self, ident: str) -> bool:
        """Whether it is worth reporting that the provider accepted this lease's call (`Active`)."""
        state = self._state
        if state.backoffs and self._probes(ident):
            return True
        held = state.lease_candidates.get(ident)
        for pool, _ in held.needs if held is not None else ():
            if pool.limiter.adaptive is not None and pool.limiter.adaptive.belief.unproven == ident:
                return True
        return False

    def _probes(self, ident: str) -> bool:
        return any(backoff.probing == ident for backoff in self._state.backoffs.values())

    def accept_unproven(self, pool: Pool) -> None:
        """The provider accepted the one call of this pool whose level was not proven."""
        assert pool.limiter.adaptive is not None
        belief = pool.limiter.adaptive.belief
        self._record(ev.Accepted(belief.unproven, pool.kind, pool.id, belief.calls[belief.unproven].level))

    def active(self, command: cmd.Active, now: int) -> None:
        self._backoffs.probe_succeeded(command.id)
        held = self._state.lease_candidates.get(command.id)
        for pool, _ in held.needs if held is not None else ():
            if pool.limiter.adaptive is not None and pool.limiter.adaptive.belief.unproven == command.id:
                self.accept_unproven(pool)
