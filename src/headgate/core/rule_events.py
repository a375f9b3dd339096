"""What rules, files and observations make of a state: which pools there are, and who counts where.

Rules change seldom. Then everything that is derived from them is made anew, which is linear in what is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from headgate.core import events as ev
from headgate.core.names import parse_model
from headgate.core.pools import Pool
from headgate.core.records import Rule, Spec, Ticket
from headgate.core.rules import Need

if TYPE_CHECKING:
    from headgate.core.state import State


class RuleEvents:
    """Applied to one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def rule_set(self, event: ev.RuleSet, at: int) -> None:
        rule = event.rule
        self._state.rules.runtime[rule.kind, rule.selector] = rule
        if event.cap_set:
            self._forgive(rule.kind, rule.selector)
        self.rebuild()

    def cap_removed(self, event: ev.CapRemoved, at: int) -> None:
        key = (event.kind, event.selector)
        old = self._state.rules.runtime.get(key)
        kept = Rule(*key) if old is None else replace(old, cap=None, auto=False)
        self._state.rules.runtime[key] = replace(kept, unlimited=True)
        self._forgive(*key, pause=True)
        self.rebuild()

    def cap_reset(self, event: ev.CapReset, at: int) -> None:
        self._state.rules.runtime.pop((event.kind, event.selector), None)
        self._forgive(event.kind, event.selector)
        self.rebuild()

    def selector_seen(self, event: ev.SelectorSeen, at: int) -> None:
        self._state.rules.seen[event.kind, event.selector] = None
        self.rebuild()

    def file_loaded(self, event: ev.FileLoaded, at: int) -> None:
        state = self._state
        state.file_path, state.file_digest, state.file_modified = event.path, event.digest, event.modified
        state.seniority_ms = event.seniority_ms
        state.rules.file = {(rule.kind, rule.selector): rule for rule in event.rules}
        self.rebuild()

    def _forgive(self, kind: str, selector: str, *, pause: bool = False) -> None:
        """A person set this cap: what rate limits did to its pools is over."""
        for pool in self._state.pools.values():
            if pool.kind == kind and pool.cap.selector.text == selector:
                pool.reduced = 0
                if pool.adapt is not None:
                    pool.adapt.forgive()
                if pause:
                    pool.paused_until = 0
                    pool.pause_cause = ""

    def observed(self, event: ev.Observed, at: int) -> None:
        state = self._state
        state.foreign[event.host] = event.foreign
        if not event.foreign:
            del state.foreign[event.host]
        if event.auto_cap is not None:
            state.auto_caps[event.host] = event.auto_cap
        self._count_foreign()
        for pool in state.pools.values():
            state.see(pool)
            state.touch(pool)
        state.review_reservations(at)

    def _count_foreign(self) -> None:
        """Foreign agents count in every pool they match, as if each had asked for a seat on its host."""
        state = self._state
        state.foreign_seats = {}
        for host, seen in state.foreign.items():
            for model, number in seen:
                spec = Spec(models=(model,) if model else (), host=host)
                for need in state.rules.needs(spec, parse_model(model) if model else None):
                    if need.cap.selector.scope != "project":  # nobody knows theirs
                        state.foreign_seats[need.pool] = state.foreign_seats.get(need.pool, 0) + number

    # Making everything that is derived anew.

    def rebuild(self) -> None:
        """The rules changed: work out again which pools everyone needs. Rare, and linear in what is there."""
        self._state.rules.merge()
        self.line_anew()

    def line_anew(self) -> None:
        state = self._state
        old, state.pools, state.gates = state.pools, {}, []
        for pool in old.values():
            need = state.rules.find(pool.kind, pool.id)
            if need is not None:
                self._keep(pool, need)
        reserved, state.reserved = state.reserved, {}
        self.attach()
        for ident, keys in reserved.items():
            state.reserve(state.tickets[ident], keys)
        state.review_reservations(state.at)

    def _keep(self, pool: Pool, need: Need) -> None:
        state = self._state
        before, pool.cap = pool.cap, need.cap
        if (before.selector, before.cap, before.auto) != (need.cap.selector, need.cap.cap, need.cap.auto):
            pool.reduced = 0  # a person changed this cap
            if pool.adapt is not None:
                pool.adapt.forgive()
        if not need.cap.capped:
            pool.reduced = pool.paused_until = 0
            pool.pause_cause = ""
        pool.used = 0
        pool.parked = {}
        pool.timer_at = pool.usage_timer_at = 0
        pool.reserved_for = None
        if need.cap.usage_gate:
            state.gates.append(pool)
            if pool.upstream.askers and not (before.usage_gate and before.capped):
                pool.upstream.begin(state.at)
        for flow in pool.shares:
            pool.settled(flow).waiting = 0
        state.pools[pool.key] = pool

    def attach(self) -> None:
        """Count leases, tickets and foreign agents in the pools that they need by the rules in force."""
        state = self._state
        state.queues, state.fresh, state.dirty = {}, {}, {}
        state.shelf.fill(state.at)
        self._count_foreign()
        for pool in state.pools.values():
            state.see(pool)
        live: dict[str, dict[str, int]] = {}
        for ident, lease in state.leases.items():
            spec = lease.ticket.spec
            candidate = state.held[ident] = state.queue(spec).by_model[lease.model]
            for pool, _ in candidate.needs:
                pool.used += spec.seats
                if pool.adapt is not None:
                    live.setdefault(pool.key, {})[ident] = spec.seats
        for pool in state.pools.values():
            if pool.adapt is not None:
                pool.adapt.know(live.get(pool.key, {}), state.at)
        by_spec: dict[Spec, list[Ticket]] = {}
        asking: dict[str, int] = {}
        for ticket in state.tickets.values():
            if not ticket.away:
                by_spec.setdefault(ticket.spec, []).append(ticket)
        for spec, tickets in by_spec.items():
            queue = state.queue(spec)
            queue.fill(tickets)
            for pool in queue.pools:
                pool.share(queue.flow).waiting += len(tickets)
                asking[pool.key] = asking.get(pool.key, 0) + sum(pool.account in ticket.asks for ticket in tickets)
            state.look_at(queue)
        for pool in state.pools.values():
            pool.upstream.recount(asking.get(pool.key, 0), state.at)
