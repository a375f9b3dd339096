"""Deadlines: a heap of moments at which time alone brings something about.

Deadlines are never searched and removed; an obsolete one is skipped when it comes to the top.
They follow from the state, so they are not part of it: a replica sets its own as it replays.

Those that every ticket or lease has, and that hardly ever come due, are kept in a heap of their own. Only the first of
them is among the others, so the main heap stays small.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Final

from fleetgate.core import events as ev
from fleetgate.core.entities import INTERACTIVE, Ticket
from fleetgate.core.pools.backoff import VERDICT_MS, Backoff
from fleetgate.core.pools.pool import Pool
from fleetgate.core.queue.queue import Queue
from fleetgate.core.state.state import State

CLAIM_MS: Final = 10_000  # a grant that is not claimed by then is returned to its ticket

KEEP_MS: Final = 300_000
_MANY: Final = 4096  # beyond this many in the second heap, obsolete ones are dropped now and then

# What a timer is for. At the same moment pools come first: a slot may free up for a ticket about to expire.
POOL: Final = 0
USAGE: Final = 1
BACKOFF: Final = 2
PROBE: Final = 3
VERDICT: Final = 4
ACCEPT: Final = 5
OPENING: Final = 6
RESERVE: Final = 7
PREEMPT: Final = 8
MOVE: Final = 9
CLAIM: Final = 10
HOLD: Final = 11
RENEWAL: Final = 12
EXPIRY: Final = 13
_FAR: Final = HOLD  # this and those after it are kept apart

_ENDLESS: Final = 1 << 62

Timer = tuple[int, int, str]  # when, what for, the key of a pool or backoff, or a request's id


def keep_ms(renew_ms: int) -> int:
    """How long a client's ticket or lease is kept without a sign of the client: longer than a service restart takes."""
    return max(KEEP_MS, 3 * renew_ms)


def renewal_counts(ticket: Ticket, now: int) -> bool:
    """Whether a renewal must be written down; one that comes early enough need not."""
    return 2 * (ticket.renew_by - now) < keep_ms(ticket.renew_ms)


class Deadlines:
    """The deadlines of one state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.heap: list[Timer] = []  # always the same list: the caller of an engine may look at its first
        self._far: list[Timer] = []  # heap; its first is in the other one as well
        self._preemptions: dict[str, int] = {}  # by interactive ticket: when jobs may have to give way to it
        self._reviews: dict[str, tuple[Queue, int]] = {}  # the queue, and its parking, of a timer to reserve
        self._is_current: tuple[
            Callable[[int, str], bool], ...
        ] = (  # whether a deadline still means something, by what it is for
            self._pool_is_current,
            self._usage_is_current,
            self._backoff_is_current,
            self._probe_is_current,
            self._verdict_is_current,
            self._acceptance_is_current,
            self._opening_is_current,
            self._review_is_current,
            self._preemption_is_current,
            self._move_is_current,
            self._claim_is_current,
            self._hold_is_current,
            self._renewal_is_current,
            self._expiry_is_current,
        )
        self.arming: dict[type, Callable[[Any, int], None]] = {  # what sets the timers that follow from an event
            ev.Queued: self._queued,
            ev.Granted: self._granted,
            ev.Renewed: self._renewed,
            ev.Recovering: self._recovering,
            ev.Returned: self._returned,
            ev.RuleSet: self._remade,
            ev.CapRemoved: self._remade,
            ev.CapReset: self._remade,
            ev.SelectorSeen: self._remade,
            ev.FileLoaded: self._file_loaded,
            ev.BackedOff: self._backed_off,
            ev.BackoffEnded: self._backoff_ended,
        }
        self.rearm()

    def due(self, now: int) -> Timer | None:
        """The next deadline that is due and not obsolete."""
        heap = self.heap
        while heap:
            timer = heap[0]
            at, what, name = timer
            if at > now:
                break
            if self._is_current[what](at, name):
                return timer
            self.pop()
        return None

    def first(self) -> Timer | None:
        """The next deadline that is not obsolete."""
        return self.due(_ENDLESS)

    def pop(self) -> None:
        """Take out what `due` gave."""
        timer = heappop(self.heap)
        if timer[1] >= _FAR:
            far = self._far
            if far and far[0] == timer:
                heappop(far)
            if far:
                heappush(self.heap, far[0])

    def push(self, at: int, what: int, name: str) -> None:
        heappush(self.heap, (at, what, name))

    def _push_far(self, at: int, what: int, name: str) -> None:
        far, timer = self._far, (at, what, name)
        heappush(far, timer)
        if far[0] == timer:
            heappush(self.heap, timer)

    def first_to_act(self) -> Ticket | None:
        """The ticket whose holder should act at the next deadline: the head of the queue at the pool it is about."""
        timer = self.first()
        if timer is None:
            return None
        _, what, name = timer
        if what == POOL:
            resource = self._state.resource(name)
            return None if resource is None else resource.parking.first_ticket()
        if what == USAGE:
            return self.first_asker(self._state.pools[name])
        if what in (EXPIRY, PREEMPT, MOVE):
            return self._state.tickets[name]
        return next((queue.first() for queue in self._state.active_queues.values()), None)

    def first_asker(self, pool: Pool) -> Ticket | None:
        """The first in the queue whose process can ask a pool's provider."""
        ident = next(iter(self._state.ticket_index.askers.get(pool.account, ())), "")
        return self._state.tickets.get(ident)

    def watch_gates(self, now: int) -> None:
        """After any event: a provider may have to be asked at another time."""
        for pool in self._state.gates:
            self.watch_usage(pool, now)

    def watch_usage(self, pool: Pool, now: int) -> None:
        """Set the deadline for the next question to a pool's provider, or for giving up on an answer."""
        due = pool.usage_gate.next_moment(now) if pool.gated else 0
        if due != pool.usage_gate.timer_at:
            pool.usage_gate.timer_at = due
            if due:
                self.push(due, USAGE, pool.key)

    def await_review(self, queue: Queue) -> None:
        """Set the deadline for checking whether the head of a parked queue is overtaken: one for all its heads."""
        name = f"{queue.first().id} {queue.parking_id}"
        queue.timer_at = queue.review_at
        self._reviews[name] = (queue, queue.parking_id)
        self.push(queue.review_at, RESERVE, name)

    def await_preemption(self, ticket: Ticket, at: int) -> None:
        """Set the deadline for letting jobs give way to an interactive ticket: at multiples of its waiting time."""
        after_ms = self._state.preempt_after_ms
        if after_ms and ticket.spec.work_class == INTERACTIVE:
            due = at + after_ms - (at - ticket.queued_at) % after_ms
            self._preemptions[ticket.id] = due
            self.push(due, PREEMPT, ticket.id)

    def await_move(self, queue: Queue, at: int) -> None:
        """Set the deadline at which the head of a queue leaves its home (rule Z3)."""
        head = queue.first()
        if queue.moves_for != head.id:
            queue.moves_for = head.id
            self.push(at, MOVE, head.id)

    def queue_to_review(self, name: str) -> Queue:
        """The queue of such a deadline, which has come due."""
        return self._reviews.pop(name)[0]

    def rearm(self) -> None:
        """Set all timers from the state, after a snapshot."""
        state = self._state
        far = [(ticket.expires_at, EXPIRY, ticket.id) for ticket in state.tickets.values()]
        far += [(ticket.renew_by, RENEWAL, ticket.id) for ticket in state.tickets.values() if ticket.renew_by]
        heap = [timer for backoff in state.backoffs.values() for timer in self._of_backoff(backoff)]
        for lease in state.leases.values():
            if not lease.claimed:
                heap.append((lease.granted_at + CLAIM_MS, CLAIM, lease.id))
            if lease.ends_at:
                far.append((lease.ends_at, HOLD, lease.id))
            if lease.ticket.renew_by:
                far.append((lease.ticket.renew_by, RENEWAL, lease.id))
        if state.recovers_until > state.at:
            heap.append((state.recovers_until, OPENING, ""))
        self._reviews = {}
        self._fill(heap, far)
        for pool in state.pools.values():
            pool.parking.timer_at = pool.usage_gate.timer_at = 0
            if pool.limiter.adaptive is not None and pool.limiter.adaptive.belief.unproven:
                self._await_acceptance(pool)
        for budget in state.budgets.values():
            budget.parking.timer_at = 0
        for window in state.plans.windows.values():
            window.parking.timer_at = 0
        for pool in state.gates:
            self.watch_usage(pool, state.at)
        self._await_preemptions(state.at)

    def _fill(self, near: list[Timer], far: list[Timer]) -> None:
        heapify(far)
        self._far = far
        self.heap[:] = near + far[:1]
        heapify(self.heap)

    def _of_backoff(self, backoff: Backoff) -> list[Timer]:
        state = self._state
        timers = []
        if not backoff.must_probe:
            timers.append((backoff.ends_at, BACKOFF, backoff.key))
        if backoff.probe_at > state.at:
            timers.append((backoff.probe_at, PROBE, backoff.key))
        if backoff.probing:
            timers.append((state.leases[backoff.probing].granted_at + VERDICT_MS, VERDICT, backoff.probing))
        return timers

    # Whether a deadline still means something: what it was set for may be gone.

    def _pool_is_current(self, at: int, name: str) -> bool:
        resource = self._state.resource(name)
        return resource is not None and resource.parking.timer_at == at

    def _usage_is_current(self, at: int, name: str) -> bool:
        pool = self._state.pools.get(name)
        return pool is not None and pool.usage_gate.timer_at == at

    def _backoff_is_current(self, at: int, name: str) -> bool:
        backoff = self._state.backoffs.get(name)
        return backoff is not None and backoff.ends_at == at

    def _probe_is_current(self, at: int, name: str) -> bool:
        backoff = self._state.backoffs.get(name)
        return backoff is not None and backoff.probe_at == at

    def _verdict_is_current(self, at: int, name: str) -> bool:
        return any(backoff.probing == name for backoff in self._state.backoffs.values())

    def _acceptance_is_current(self, at: int, name: str) -> bool:
        pool = self._state.pools.get(name)
        return pool is not None and pool.limiter.adaptive is not None and pool.limiter.adaptive.accepted_at == at

    def _opening_is_current(self, at: int, name: str) -> bool:
        return self._state.recovers_until == at

    def _review_is_current(self, at: int, name: str) -> bool:
        queue, parking = self._reviews.get(name, (None, 0))
        if queue is None or queue.parking_id != parking or not queue.waiting:
            self._reviews.pop(name, None)
            return False
        if queue.review_at > at == queue.timer_at:
            del self._reviews[name]
            self.await_review(queue)  # it has another head by now
        return queue.review_at == at

    def _preemption_is_current(self, at: int, name: str) -> bool:
        ticket = self._state.tickets.get(name)
        if ticket is not None and not ticket.away and self._state.preempt_after_ms:
            return self._preemptions.get(name) == at
        self._preemptions.pop(name, None)
        return False

    def _move_is_current(self, at: int, name: str) -> bool:
        ticket = self._state.tickets.get(name)
        if ticket is None or ticket.away:
            return False
        return self._state.queue(ticket.spec).leaves_home_at(ticket) == at

    def _claim_is_current(self, at: int, name: str) -> bool:
        lease = self._state.leases.get(name)
        return lease is not None and not lease.claimed and lease.granted_at + CLAIM_MS == at

    def _hold_is_current(self, at: int, name: str) -> bool:
        lease = self._state.leases.get(name)  # the runner ends a child process, whose lease is then lost
        return lease is not None and lease.ends_at == at and not lease.child

    def _renewal_is_current(self, at: int, name: str) -> bool:
        lease = self._state.leases.get(name)
        kept = lease.ticket if lease is not None else self._state.tickets.get(name)
        return kept is not None and kept.renew_by == at

    def _expiry_is_current(self, at: int, name: str) -> bool:
        ticket = self._state.tickets.get(name)
        return ticket is not None and ticket.expires_at == at and not ticket.stalled_at

    def _queued(self, event: ev.Queued, at: int) -> None:
        ticket = event.ticket
        self._push_far(ticket.expires_at, EXPIRY, ticket.id)
        if ticket.renew_by:
            self._push_far(ticket.renew_by, RENEWAL, ticket.id)
        if self._state.preempt_after_ms:
            self.await_preemption(ticket, at)

    def _granted(self, event: ev.Granted, at: int) -> None:
        if not event.claimed:
            self.push(at + CLAIM_MS, CLAIM, event.id)
        ident, ticket = event.id, event.ticket
        if event.ends_at:
            self._push_far(event.ends_at, HOLD, ident)
        if ticket is not None and ticket.renew_by:
            self._push_far(ticket.renew_by, RENEWAL, ident)
        if len(self._far) > _MANY:
            self._drop_obsolete()
        if event.probes:
            self.push(at + VERDICT_MS, VERDICT, ident)
        for pool, _ in self._state.lease_candidates[ident].needs:
            adapt = pool.limiter.adaptive
            if adapt is not None and adapt.belief.unproven == ident:
                self._await_acceptance(pool)

    def _await_acceptance(self, pool: Pool) -> None:
        """Without a refusal until then, the unproven call counts as accepted."""
        assert pool.limiter.adaptive is not None
        self.push(pool.limiter.adaptive.accepted_at, ACCEPT, pool.key)

    def _recovering(self, event: ev.Recovering, at: int) -> None:
        self.push(event.until, OPENING, "")

    def _renewed(self, event: ev.Renewed, at: int) -> None:
        self._push_far(event.until, RENEWAL, event.id)
        self._drop_obsolete()

    def _drop_obsolete(self) -> None:
        """Drop the deadlines of leases and tickets that are gone, now and then."""
        many = max(_MANY, 4 * (len(self._state.leases) + len(self._state.tickets)))
        if len(self._far) > many:
            near = [each for each in self.heap if each[1] < _FAR]
            self._fill(near, [each for each in self._far if self._is_current[each[1]](each[0], each[2])])

    def _returned(self, event: ev.Returned, at: int) -> None:
        self._push_far(self._state.tickets[event.id].expires_at, EXPIRY, event.id)

    def _remade(self, event: ev.Event, at: int) -> None:
        """After a change of caps, calls may count as accepted at another time."""
        for pool in self._state.changed_cap_pools:
            if pool.limiter.adaptive is not None and pool.limiter.adaptive.belief.unproven:
                self._await_acceptance(pool)

    def _file_loaded(self, event: ev.FileLoaded, at: int) -> None:
        self._remade(event, at)
        self._await_preemptions(at)
        self._resumed()

    def _await_preemptions(self, at: int) -> None:
        for ticket in self._state.tickets.values() if self._state.preempt_after_ms else ():
            self.await_preemption(ticket, at)

    def _backed_off(self, event: ev.BackedOff, at: int) -> None:
        for timer in self._of_backoff(self._state.backoffs[event.key]):
            self.push(*timer)

    def _backoff_ended(self, event: ev.BackoffEnded, at: int) -> None:
        self._resumed()

    def _resumed(self) -> None:
        """The time of these tickets runs again."""
        for ticket in self._state.resumed_tickets:
            self._push_far(ticket.expires_at, EXPIRY, ticket.id)
