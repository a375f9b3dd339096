"""Events about caps, the config file and observations: which pools there are, and what counts in which.

Caps change seldom. What a change concerns is then counted again, a whole queue at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fleetgate.core import events as ev
from fleetgate.core.budgets.rules import rule_key
from fleetgate.core.entities import INTERACTIVE, AccountSet, Rule, Spec, Ticket
from fleetgate.core.model_names import Selector, glob, parse_model, parse_selector
from fleetgate.core.pools.effective_caps import makes
from fleetgate.core.pools.pool import Pool
from fleetgate.core.queue.queue import Queue

if TYPE_CHECKING:
    from fleetgate.core.state.state import State


class CapEvents:
    """Applies them to one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def rule_set(self, event: ev.RuleSet, at: int) -> None:
        rule = event.rule
        self._state.rules.runtime[rule.kind, rule.selector] = rule
        if event.cap_set:
            self._forgive(rule.kind, rule.selector)
        self._rule_changed(rule.kind, rule.selector)

    def cap_removed(self, event: ev.CapRemoved, at: int) -> None:
        key = (event.kind, event.selector)
        old = self._state.rules.runtime.get(key)
        kept = Rule(*key) if old is None else replace(old, cap=None, auto=False)
        self._state.rules.runtime[key] = replace(kept, unlimited=True)
        self._forgive(*key, pause=True)
        self._rule_changed(*key)

    def cap_reset(self, event: ev.CapReset, at: int) -> None:
        self._state.rules.runtime.pop((event.kind, event.selector), None)
        self._forgive(event.kind, event.selector)
        self._rule_changed(event.kind, event.selector)

    def selector_seen(self, event: ev.SelectorSeen, at: int) -> None:
        self._state.rules.seen[event.kind, event.selector] = None
        self._rule_changed(event.kind, event.selector)

    def file_loaded(self, event: ev.FileLoaded, at: int) -> None:
        state = self._state
        state.file_path, state.file_digest, state.file_modified = event.path, event.digest, event.modified
        state.seniority_ms = event.seniority_ms
        state.rules.file = {(rule.kind, rule.selector): rule for rule in event.rules}
        state.budget_rules.file = {rule_key(rule): rule for rule in event.budgets}
        state.zone = event.zone
        state.rules.weights.clear()
        state.rules.weights.update(event.weights)
        state.preempt_after_ms = event.preempt_after_ms
        state.plans.rules.file = {rule.account: rule for rule in event.plans}
        state.plans.configure(at)
        state.resumed_tickets = []
        sets = {rule.provider: rule for rule in event.account_sets}
        if sets == state.accounts.rules:
            state.budget_events.rules_changed(at)
        else:
            self._sets_changed(sets, at)

    def _sets_changed(self, sets: dict[str, AccountSet], at: int) -> None:
        """Requests may use other accounts than before; while there is none, their time stands still."""
        state = self._state
        stalled = {spec for spec, queue in state.queues.items() if not queue.usable}
        state.accounts.rules = sets
        state.budget_events.rules_changed(at)
        state.index_queues()
        for spec, queue in state.queues.items():
            if (spec in stalled) == bool(queue.usable):
                state.backoff_events.time(queue, at)

    def _forgive(self, kind: str, selector: str, *, pause: bool = False) -> None:
        """A person set this cap: undo what rate limits did to its pools."""
        for pool in self._state.pools.values():
            if pool.kind == kind and pool.cap.selector.text == selector:
                pool.limiter.forgive()
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
        changed = self._count_foreign()
        for pool in state.pools.values():
            if pool.host == event.host or (pool.kind == "agents" and pool.id in changed):
                state.apply_observations(pool)
                state.recheck_pool(pool)
        state.reservations.review(at)

    def _count_foreign(self) -> set[str]:
        """Count foreign agents in every pool they match, as if each had a slot on its host.

        Returns the pools of agents in which the number has changed.
        """
        state = self._state
        before, state.foreign_slots = state.foreign_slots, {}
        for host, seen in state.foreign.items():
            for model, number in seen:
                spec = Spec(models=(model,) if model else (), host=host)
                for need in state.rules.needs(spec, parse_model(model) if model else None):
                    if need.cap.selector.scope != "project":  # the project of a foreign agent is unknown
                        state.foreign_slots[need.pool] = state.foreign_slots.get(need.pool, 0) + number
        return {pool for pool in (*before, *state.foreign_slots) if before.get(pool) != state.foreign_slots.get(pool)}

    # What follows from the caps.

    def rebuild(self) -> None:
        """The caps changed: work out again which pools each queue and lease needs. Costs what there are of these."""
        state = self._state
        state.rules.merge()
        self._recount(list(state.queues.values()), list(state.leases), list(state.pools.values()))

    def _rule_changed(self, kind: str, text: str) -> None:
        """The same after a change of one selector: look only at the queues, leases and pools that it concerns."""
        state, selector = self._state, parse_selector(text)
        if selector.scope != "model":
            self.rebuild()
            return
        state.rules.merge()
        concerned: dict[Spec, Queue] = {}
        for account, found in state.by_account.items():
            if glob(selector.provider, account.partition("@")[0]):
                concerned |= {spec: queue for spec, queue in found.items() if spec.kind == kind}
        queues = [queue for queue in concerned.values() if _concerns(selector, queue)]
        leases = [
            ident
            for ident, lease in state.leases.items()
            if lease.model and lease.ticket.spec.kind == kind and selector.matches(parse_model(lease.model))
        ]
        made = [pool for pool in state.pools.values() if pool.kind == kind and makes(selector, pool.id)]
        self._recount(queues, leases, made)

    def _recount(self, queues: list[Queue], leases: list[str], pools: list[Pool]) -> None:
        """Give these pools their caps, and count these queues and leases in the pools that they need now."""
        state = self._state
        kept = self._unreserved(queues)
        waited: set[tuple[str, str]] = set()
        touched = {pool.key: pool for pool in pools}
        for queue in queues:
            touched |= {pool.key: pool for pool in queue.pools}
            self._count_out(queue, waited)
        for ident in leases:
            touched |= {pool.key: pool for pool, _ in state.lease_candidates[ident].needs}
            self._count_lease(ident, -1)
        for pool in pools:
            self._update_cap(pool)
        for queue in queues:
            candidates = state.candidates(queue.spec)
            queue.bind(candidates, state.usable(queue.spec, candidates))
            touched |= {pool.key: pool for pool in queue.pools}
            self._count_in(queue, waited)
            if queue.waiting:
                state.recheck_queue(queue)
        for ident in leases:
            lease = state.leases[ident]
            state.lease_candidates[ident] = state.candidate_of_lease(lease.ticket.spec, lease.model)
            touched |= {pool.key: pool for pool, _ in state.lease_candidates[ident].needs}
            self._count_lease(ident, 1)
        for name in self._count_foreign():
            if f"agents {name}" in state.pools:
                touched[f"agents {name}"] = state.pools[f"agents {name}"]
        state.changed_cap_pools = [pool for pool in touched.values() if state.pools.get(pool.key) is pool]
        for pool in state.changed_cap_pools:
            state.apply_observations(pool)
            state.recheck_pool(pool)
        self._sync_calls(state.changed_cap_pools)
        self._count_askers(state.changed_cap_pools)
        for ident, keys in kept.items():
            state.reservations.reserve(state.tickets[ident], keys)
        state.reservations.review(state.at)

    def choose_again(self, queues: list[Queue]) -> None:
        """The tickets of these queues enter with what is usable of their candidates now."""
        kept = self._unreserved(queues)
        waited: set[tuple[str, str]] = set()
        pools: dict[str, Pool] = {}
        for queue in queues:
            pools |= {pool.key: pool for pool in queue.pools}
            self._count_out(queue, waited)
        for queue in queues:
            valid = queue.valid
            queue.bind(queue.candidates, self._state.usable(queue.spec, queue.candidates))
            queue.valid = valid
            pools |= {pool.key: pool for pool in queue.pools}
            self._count_in(queue, waited)
        for pool in pools.values():
            if pool.cap.lendable and not pool.people:  # others may use what is kept for people (rule W5)
                self._state.recheck_pool(pool)
        self._count_askers(list(pools.values()))
        for ident, keys in kept.items():
            self._state.reservations.reserve(self._state.tickets[ident], keys)

    def _unreserved(self, queues: list[Queue]) -> dict[str, tuple[str, ...]]:
        """End the reservations of these queues. Returns them."""
        state = self._state
        specs = {queue.spec for queue in queues} if state.reserved else set()
        kept = {ident: keys for ident, keys in state.reserved.items() if state.tickets[ident].spec in specs}
        for ident in kept:
            state.reservations.end(ident)
        return kept

    def _count_out(self, queue: Queue, waited: set[tuple[str, str]]) -> None:
        """Stop counting a queue in its pools. Its project `waited` there."""
        for pool in [*queue.pools, *queue.budgets] if queue.waiting else ():
            waited.add((pool.key, queue.project))
            pool.shares.projects[queue.project].waiting -= 1
            if isinstance(pool, Pool) and queue.spec.work_class == INTERACTIVE:
                pool.people -= 1

    def _count_in(self, queue: Queue, waited: set[tuple[str, str]]) -> None:
        """Count a queue in its pools; a project that `waited` there keeps its share."""
        for pool in [*queue.pools, *queue.budgets] if queue.waiting else ():
            known = (pool.key, queue.project) in waited
            share = pool.shares.of(queue.project) if known else pool.shares.settled(queue.project)
            share.waiting += 1
            if isinstance(pool, Pool) and queue.spec.work_class == INTERACTIVE:
                pool.people += 1

    def _count_askers(self, pools: list[Pool]) -> None:
        """Count the tickets at these pools whose process can ask for the usage of the pool's account."""
        state = self._state
        for pool in pools:
            idents = state.ticket_index.askers.get(pool.account, ())
            asking = [state.tickets[ident].spec for ident in idents] if pool.account else []
            number = sum(pool in state.queue(spec).pools for spec in asking)
            pool.usage_gate.recount(number, state.at)

    def _count_lease(self, ident: str, sign: int) -> None:
        for pool, _ in self._state.lease_candidates[ident].needs:
            pool.used += sign * self._state.leases[ident].ticket.spec.slots

    def _update_cap(self, pool: Pool) -> None:
        """Give a pool the cap that is in force for it now, or delete it."""
        state = self._state
        need = state.rules.find(pool.kind, pool.id)
        if pool in state.gates:
            state.gates.remove(pool)
        if need is None:
            del state.pools[pool.key]
            return
        before, pool.cap = pool.cap, need.cap
        if (before.selector, before.cap, before.auto) != (need.cap.selector, need.cap.cap, need.cap.auto):
            pool.limiter.forgive()  # a person changed this cap
        if not need.cap.capped:
            pool.limiter.reduced = pool.paused_until = 0
            pool.pause_cause = ""
        if need.cap.usage_gate:
            state.gates.append(pool)
            if pool.usage_gate.askers and not (before.usage_gate and before.capped):
                pool.usage_gate.begin(state.at)
        else:
            pool.usage_gate.timer_at = 0

    def attach(self) -> None:
        """Count leases, tickets and foreign agents in the pools that they need by the caps in force."""
        state = self._state
        state.waiting_jobs.fill(state.at)
        self._count_foreign()
        for pool in state.pools.values():
            state.apply_observations(pool)
        for ident, lease in state.leases.items():
            state.lease_candidates[ident] = state.candidate_of_lease(lease.ticket.spec, lease.model)
            self._count_lease(ident, 1)
        self._sync_calls(list(state.pools.values()))
        by_spec: dict[Spec, list[Ticket]] = {}
        for ticket in state.tickets.values():
            state.index_ticket(ticket)
            if not ticket.away:
                by_spec.setdefault(ticket.spec, []).append(ticket)
        for spec, tickets in by_spec.items():
            queue = state.active_queues[spec] = state.queue(spec)
            queue.fill(tickets)
            self._count_in(queue, {(pool.key, queue.project) for pool in [*queue.pools, *queue.budgets]})
            state.recheck_queue(queue)
        self._count_askers(list(state.pools.values()))

    def _sync_calls(self, pools: list[Pool]) -> None:
        """Synchronise the adaptive limits of these pools with the leases that exist."""
        state = self._state
        live: dict[str, dict[str, int]] = {pool.key: {} for pool in pools if pool.limiter.adaptive is not None}
        if live:
            for ident, lease in state.leases.items():
                for pool, _ in state.lease_candidates[ident].needs:
                    if pool.key in live:
                        live[pool.key][ident] = lease.ticket.spec.slots
        for key, calls in live.items():
            adapt = state.pools[key].limiter.adaptive
            assert adapt is not None
            adapt.sync_calls(calls, state.at)


def _concerns(selector: Selector, queue: Queue) -> bool:
    return any(each.name is not None and selector.matches(each.name) for each in queue.candidates)
