"""Invariants of a state, checked by counting again. Tests do this after every step; so does `fleetgate doctor`.

A broken invariant is a bug in Fleetgate: the writer stops rather than go on with a wrong count.
"""

from __future__ import annotations

from fleetgate.core.accounts.choice import AccountChoice
from fleetgate.core.entities import INTERACTIVE, Ticket
from fleetgate.core.errors import InternalError
from fleetgate.core.model_names import account_of
from fleetgate.core.pools.resource import Resource
from fleetgate.core.queue.ticket_index import TicketIndex
from fleetgate.core.state.state import State


def check_invariants(state: State) -> None:
    """Raise InternalError where a count is not what leases and tickets say."""
    _check_ids(state)
    used: dict[str, int] = {}
    for ident, lease in state.leases.items():
        for pool, _ in state.lease_candidates[ident].needs:
            _require(state.pools.get(pool.key) is pool, f"{ident} holds slots of {pool.id}, which is not there")
            used[pool.key] = used.get(pool.key, 0) + lease.ticket.spec.slots
    for key, pool in state.pools.items():
        _require(pool.used == used.get(key, 0), f"{key}: counted {pool.used}, granted {used.get(key, 0)}")
        cooling = sum(slots for _, slots in pool.cooldown.heap)
        _require(pool.cooldown.slots == cooling, f"{key}: counted {pool.cooldown.slots} cooling, are {cooling}")
        _require(pool.limit >= 1, f"{key}: limit {pool.limit}")
        for_people = [each for each in state.active_queues.values() if each.spec.work_class == INTERACTIVE]
        people = sum(pool in each.pools for each in for_people)
        _require(pool.people == people, f"{key}: {pool.people} queues of interactive requests counted, {people} wait")
        _require(pool.limiter.reduced >= 0, f"{key}: reduced to {pool.limiter.reduced}")
    _check_budgets(state)
    _check_line(state)


def _check_budgets(state: State) -> None:
    for key, budget in state.budgets.items():
        _require(budget.key == key, f"{key} is {budget.key}")
        gone = budget.held.keys() - state.leases.keys()
        _require(not gone, f"{key}: reserved for {gone}, which are over")
        now, rate = state.at, budget.rate
        held = sum(
            each.amount for each in budget.held.values() if rate is not None or now < each.window == budget.ends_at
        )
        _require(budget.reserved(now) == held, f"{key}: counted {budget.reserved(now)} reserved, are {held}")
        _require(all(each.amount >= 0 for each in budget.held.values()), f"{key}: a reservation below zero")


def _check_ids(state: State) -> None:
    both = state.tickets.keys() & state.leases.keys()
    _require(not both, f"both waiting and running: {both}")
    _require(state.lease_candidates.keys() == state.leases.keys(), "slots without a lease, or a lease without slots")
    for key, ident in state.keys.items():
        ticket = _ticket(state, ident)
        _require(ticket is not None and ticket.key == key, f"the key {key!r} names {ident}, which does not have it")
    for session, ident in state.sessions.items():
        ticket = _ticket(state, ident)
        own = None if ticket is None else (ticket.spec.host, ticket.session)
        _require(own == session, f"the session {session} names {ident}, which does not have it")


def _ticket(state: State, ident: str) -> Ticket | None:
    lease = state.leases.get(ident)
    return lease.ticket if lease is not None else state.tickets.get(ident)


def _check_line(state: State) -> None:
    asking: dict[object, int] = {}
    waiting: dict[tuple[str, str], int] = {}
    askers: dict[str, int] = {}
    for ticket in state.tickets.values():
        if ticket.away:
            continue
        queue = state.queues.get(ticket.spec)
        _require(queue is not None, f"{ticket.id} is in no queue")
        assert queue is not None
        first = ticket.spec not in asking
        asking[ticket.spec] = asking.get(ticket.spec, 0) + 1
        for resource in [*queue.pools, *queue.budgets] if first else ():
            waiting[resource.key, queue.project] = waiting.get((resource.key, queue.project), 0) + 1
        for pool in queue.pools:
            if pool.account in ticket.asks:
                askers[pool.key] = askers.get(pool.key, 0) + 1
    _check_indexes(state)
    for spec, queue in state.queues.items():
        _require(queue.waiting == asking.get(spec, 0), f"{queue}: {asking.get(spec, 0)} tickets ask")
    resources: list[Resource] = [*state.pools.values(), *state.budgets.values()]
    for resource in resources:
        for project, share in resource.shares.projects.items():
            expected = waiting.get((resource.key, project), 0)
            _require(
                share.waiting == expected, f"{resource.key}: {share.waiting} of {project} counted, {expected} wait"
            )
    for pool in state.pools.values():
        can_ask = askers.get(pool.key, 0)
        _require(
            pool.usage_gate.askers == can_ask, f"{pool.key}: {pool.usage_gate.askers} askers counted, are {can_ask}"
        )
        _require(not pool.usage_gate.room, f"{pool.key}: an old answer still admits tickets")
        if pool.reservation is not None:
            _require(
                pool.key in {key for keys in state.reserved.values() for key in keys},
                f"{pool.key}: reserved for no ticket",
            )


def _check_indexes(state: State) -> None:
    """The indexes of tickets agree with the tickets themselves."""
    members: dict[object, dict[str, None]] = {}
    roster = TicketIndex()
    for ticket in state.tickets.values():
        members.setdefault(ticket.spec, {})[ticket.id] = None
        roster.add(ticket)
    listed = {spec: queue.members for spec, queue in state.queues.items() if queue.members}
    _require(listed == members, "queues do not have the tickets that need the same")
    standing = {spec: queue for spec, queue in state.queues.items() if queue.waiting}
    _require(state.active_queues == standing, "the wrong queues are taken for empty")
    known = state.ticket_index
    _require(known.processes == roster.processes, "tickets are not found by their process")
    _require(known.askers == roster.askers, "tickets are not found by the accounts that their process can ask")
    _require(known.aside == roster.aside, "tickets that ask for nothing are not known as such")
    found = {(account, spec) for account, queues in state.by_account.items() for spec in queues}
    named = {
        (account_of(each.name), spec)
        for spec, queue in state.queues.items()
        for each in queue.candidates
        if each.name is not None
    }
    _require(found == named, "queues are not found by the accounts of their candidates")


def check_settled(state: State, now: int) -> None:
    """Raise InternalError when a ticket that could enter now is left waiting. After `Engine.handle`."""
    _require(not state.changed_queues and not state.changed_pools, "the queue was not looked at")
    for queue in state.queues.values():
        head = queue.head()
        if head is None:
            continue
        if queue.has_sets:
            found, _ = AccountChoice(state).choose(queue, state.candidates_to_try(queue, now), None, now)
            _require(found is None, f"{head.id} could enter with an account of its set and waits")
            continue
        for candidate in state.candidates_to_try(queue, now):
            if candidate.closed_plan(queue.spec.work_class, now, head.run) is not None:
                continue
            slots = queue.spec.slots
            blocked = any(pool.blocks(slots, own, queue, now) for pool, own in candidate.needs)
            blocked = blocked or any(pool.awaits_answer(slots, queue, now) for pool in candidate.gates)
            blocked = blocked or any(budget.opens_at(head, queue, now) > now for budget in candidate.budgets)
            _require(blocked, f"{head.id} could enter with {candidate.model or 'no model'} and waits")


def _require(true: bool, otherwise: str) -> None:
    if not true:
        raise InternalError(f"invariant broken: {otherwise}")
