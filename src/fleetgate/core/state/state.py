"""Everything the engine knows, and the one way to change it: `apply(event, at)`.

Applying the events of a log from its start gives the state of the process that wrote them. What is derived (queues,
counts, which queues must be looked at) is kept up to date here too, so that a replica that replays is ready to decide.

`changed_queues` and `changed_pools` are the to-do list of admission: queues whose head is new, and pools in which
something changed. The engine works it off (core/queue/admission.py); replaying only adds to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from fleetgate.core import events as ev
from fleetgate.core.access.keys import AccessKey
from fleetgate.core.accounts.sets import AccountSets
from fleetgate.core.budgets.budget import Budget
from fleetgate.core.budgets.calendar import UTC, Zone
from fleetgate.core.budgets.estimates import Estimates
from fleetgate.core.budgets.rules import BudgetNeed, BudgetRules
from fleetgate.core.budgets.usage_sums import UsageSums
from fleetgate.core.entities import INTERACTIVE, Lease, Spec, Ticket
from fleetgate.core.model_names import account_of, parse_model
from fleetgate.core.plans.plans import Plans
from fleetgate.core.plans.window import PlanWindow
from fleetgate.core.pools.backoff import Backoff, concerns
from fleetgate.core.pools.effective_caps import Need, Rules
from fleetgate.core.pools.pool import Pool
from fleetgate.core.pools.resource import Resource
from fleetgate.core.queue.candidates import CandidateMaker, hold_key
from fleetgate.core.queue.queue import Candidate, Queue
from fleetgate.core.queue.ticket_index import TicketIndex
from fleetgate.core.queue.waiting_jobs import WaitingJobs
from fleetgate.core.state.backoff_events import BackoffEvents
from fleetgate.core.state.budget_events import BudgetEvents
from fleetgate.core.state.cap_events import CapEvents
from fleetgate.core.state.event_table import event_table
from fleetgate.core.state.job_events import JobEvents
from fleetgate.core.state.reservation_events import ReservationEvents
from fleetgate.core.state.snapshot import export_state, restore_state
from fleetgate.core.state.snapshot_format import Snapshot

_MAX_QUEUES = 4096  # beyond this, empty queues are dropped
DEFAULT_HOLD_MS: Final = 10_000  # what a project is charged for a slot before anything was observed


class State:
    """Pools, tickets, leases and rules of one gate."""

    def __init__(self) -> None:
        self.seq = self.at = 0
        self.rules = Rules()
        self.file_path = self.file_digest = ""
        self.file_modified = 0
        self.seniority_ms: int | None = None
        self.tickets: dict[str, Ticket] = {}
        self.leases: dict[str, Lease] = {}
        self.lease_candidates: dict[str, Candidate] = {}  # what each lease uses slots of
        self.keys: dict[str, str] = {}  # idempotency key -> id
        self.sessions: dict[tuple[str, str], str] = {}  # host and key of a session -> id (rule R9)
        self.pools: dict[str, Pool] = {}
        self.queues: dict[Spec, Queue] = {}
        self.active_queues: dict[Spec, Queue] = {}  # those that have waiting tickets
        self.by_account: dict[str, dict[Spec, Queue]] = {}  # those with a candidate of this account
        self._queues_after_drop = 0  # how many there were after empty ones were last dropped
        self.ticket_index = TicketIndex()  # tickets by process and account
        self.resumed_tickets: list[Ticket] = []  # tickets whose time runs again since a backoff ended
        self.changed_cap_pools: list[Pool] = []  # pools that the last change of caps concerns
        self.arrivals = 0
        self.front = 0  # the order given to the last ticket that was moved to the front
        self.holds: dict[str, int] = {}  # expected hold of a project, by "kind project"
        self.foreign: dict[str, tuple[tuple[str, int], ...]] = {}  # by host
        self.foreign_slots: dict[str, int] = {}  # slots of foreign agents, by pool of agents
        self.auto_caps: dict[str, int] = {}  # by host
        self.reserved: dict[str, tuple[str, ...]] = {}  # ticket -> keys of the pools kept for it
        self.backoffs: dict[str, Backoff] = {}
        self.chosen: dict[str, dict[str, int]] = {}  # by role: when each model was last chosen, as a sequence number
        self.draining: dict[str, int] = {}  # drained hosts, and since when
        self.recovers_until = 0  # nothing is admitted until then
        self.recovers_since = 0  # the number of that event
        self.gates: list[Pool] = []  # pools with a usage gate
        self.waiting_jobs = WaitingJobs(self.tickets)  # jobs that wait for a worker
        self.changed_queues: dict[Spec, Queue] = {}
        self.changed_pools: dict[str, Resource] = {}  # and budgets
        self.budget_rules = BudgetRules()
        self.zone: Zone = UTC  # in which days, weeks and months begin
        self.budgets: dict[str, Budget] = {}
        self.touched_budgets: dict[str, Budget] = {}  # windows of which something was used since the engine looked
        self.preempt_after_ms = 0  # how long an interactive request waits before a job gives way; 0: none does
        self.plans = Plans()
        self.touched_plans: dict[str, PlanWindow] = {}  # windows that were seen since the engine looked
        self.access_keys: dict[str, AccessKey] = {}  # by name
        self.accounts = AccountSets()
        self.candidate_maker = CandidateMaker(self)
        self.estimates = Estimates()
        self.usage = UsageSums()
        self.cap_events = CapEvents(self)
        self.backoff_events = BackoffEvents(self)
        self.job_events = JobEvents(self)
        self.budget_events = BudgetEvents(self)
        self.reservations = ReservationEvents(self)
        self.applying: dict[type, Callable[[Any, int], None]] = event_table(self)  # what each kind of event changes
        self.applying[ev.Queued] = self._queued
        self.applying[ev.Asked] = self._asked
        self.applying[ev.Cancelled] = self.applying[ev.Expired] = self.applying[ev.Dropped] = self._ticket_gone
        self.applying[ev.Bumped] = self._bumped

    def __repr__(self) -> str:
        return f"<State at {self.seq}: {len(self.leases)} leases, {len(self.tickets)} waiting, {len(self.pools)} pools>"

    def apply(self, event: ev.Event, at: int) -> None:
        """Make an event part of the state."""
        self.seq += 1
        self.at = at
        self.applying[type(event)](event, at)

    # Looking things up.

    def queue(self, spec: Spec) -> Queue:
        """The queue for requests like this. Raises BadName for a model that cannot be one."""
        queue = self.queues.get(spec)
        return queue if queue is not None else self._new_queue(spec)

    def _new_queue(self, spec: Spec) -> Queue:
        if len(self.queues) >= max(_MAX_QUEUES, 2 * self._queues_after_drop):
            self.drop_empty_queues()
        candidates = self.candidates(spec)
        queue = self.queues[spec] = Queue(spec, candidates, self.usable(spec, candidates), self.tickets)
        self._index(queue)
        return queue

    def drop_empty_queues(self) -> None:
        self.queues = {spec: queue for spec, queue in self.queues.items() if queue.members}
        self._queues_after_drop = len(self.queues)
        self._drop_ended_sessions()
        self.index_queues()

    def index_queues(self) -> None:
        """Find queues by the accounts of their candidates again; none is found through another queue any more."""
        self.by_account = {}
        for queue in self.queues.values():
            queue.home_queues = {}
            self._index(queue)

    def _drop_ended_sessions(self) -> None:
        """A session is named by a client, and most make their last call soon: only pools in use are kept."""
        needed = {pool.key for queue in self.queues.values() for pool in queue.pools}
        needed |= {pool.key for candidate in self.lease_candidates.values() for pool, _ in candidate.needs}
        ended = [key for key, pool in self.pools.items() if pool.is_of_session and not pool.paused_until]
        for key in ended:
            if key not in needed:
                del self.pools[key]

    def _index(self, queue: Queue) -> None:
        for candidate in queue.candidates:
            if candidate.name is not None:
                self.by_account.setdefault(account_of(candidate.name), {})[queue.spec] = queue

    def usable(self, spec: Spec, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """The candidates to try: not backed off, and only those of the first model unless `spec.any_candidate`."""
        free = tuple(candidate for candidate in candidates if not self.backoffs_on(candidate))
        if spec.any_candidate or len(free) < 2:
            return free
        return tuple(candidate for candidate in free if candidate.group == free[0].group)

    def backoffs_on(self, candidate: Candidate) -> list[Backoff]:
        """The backoffs that hold a candidate back."""
        name = candidate.name
        if name is None or not self.backoffs:
            return []
        return [backoff for backoff in self.backoffs.values() if concerns(backoff.key, name)]

    def candidates_to_try(self, queue: Queue, now: int) -> tuple[Candidate, ...]:
        """The candidates that the head of a queue may enter with: those to probe, then the usable ones."""
        if (self.draining or now < self.recovers_until) and self.is_closed(queue.spec, now):
            return ()
        usable = self.usable_now(queue, now)
        if not self.backoffs:
            return usable
        probes = [
            candidate
            for candidate in queue.candidates
            if (held := self.backoffs_on(candidate)) and all(backoff.lets_probe(now) for backoff in held)
        ]
        return (*probes, *usable)

    def usable_now(self, queue: Queue, now: int) -> tuple[Candidate, ...]:
        """The usable candidates; if they are paused, those of the next models too, up to one that is not.

        A request would take the last of them.
        """
        usable = queue.usable
        if not queue.has_fallback or not all(candidate.is_paused(now) for candidate in usable):
            return usable
        found: list[Candidate] = []
        open_group = -1  # the first model that is not paused
        for candidate in queue.candidates:
            if 0 <= open_group < candidate.group:
                break
            if not self.backoffs_on(candidate):
                found.append(candidate)
                if not candidate.is_paused(now):
                    open_group = candidate.group
        return tuple(found)

    def is_closed(self, spec: Spec, now: int) -> bool:
        """Whether no request like this is admitted at all: its host is drained, or the log recovers."""
        return now < self.recovers_until or (spec.kind == "agents" and spec.host in self.draining)

    def pool(self, need: Need) -> Pool:
        """The pool of this need, made on first use."""
        key = f"{need.cap.kind} {need.pool}"
        pool = self.pools.get(key)
        if pool is None:
            pool = self.pools[key] = Pool(need, self.rules.weights)
            self.apply_observations(pool)
            if need.cap.usage_gate:
                self.gates.append(pool)
        return pool

    def budget(self, need: BudgetNeed) -> Budget:
        """The budget of this need, made on first use."""
        budget = self.budgets.get(need.key)
        if budget is None:
            budget = self.budgets[need.key] = Budget(need, self.zone, self.at, self.rules.weights)
        return budget

    def resource(self, key: str) -> Resource | None:
        """The pool, budget or plan window of this key."""
        return self.pools.get(key) or self.budgets.get(key) or self.plans.windows.get(key) or self.accounts.ramp_of(key)

    def apply_observations(self, pool: Pool) -> None:
        """Apply what was observed on a pool's host: automatic cap and foreign agents."""
        pool.limiter.auto_cap = self.auto_caps.get(pool.host, 1)
        pool.foreign = self.foreign_slots.get(pool.id, 0) if pool.kind == "agents" else 0
        pool.refresh()

    def named(self, kind: str, pool: str) -> Pool | None:
        """The pool of this name, if some cap makes one."""
        known = self.pools.get(f"{kind} {pool}")
        if known is not None:
            return known
        need = self.rules.find(kind, pool)
        return self.pool(need) if need is not None else None

    def expected_hold_ms(self, spec: Spec) -> int:
        return self.holds.get(hold_key(spec), DEFAULT_HOLD_MS)

    def candidates(self, spec: Spec) -> tuple[Candidate, ...]:
        return self.candidate_maker.of_request(spec)

    def candidate_of_lease(self, spec: Spec, model: str) -> Candidate:
        """What a lease uses slots of: a candidate of requests like it, or one of a set that has changed since."""
        return self.queue(spec).by_model.get(model) or self.candidate_maker.make(spec, parse_model(model))

    # Tickets.

    def put(self, ticket: Ticket) -> None:
        """Add a ticket, or replace it."""
        old = self.tickets.get(ticket.id)
        if old is not None:
            self._unindex_ticket(old)
        self.tickets[ticket.id] = ticket
        self.index_ticket(ticket)

    def pop_ticket(self, ident: str) -> Ticket:
        """Take a ticket out."""
        ticket = self.tickets.pop(ident)
        self._unindex_ticket(ticket)
        return ticket

    def index_ticket(self, ticket: Ticket) -> None:
        self.ticket_index.add(ticket)
        self.queue(ticket.spec).members[ticket.id] = None

    def _unindex_ticket(self, ticket: Ticket) -> None:
        self.ticket_index.remove(ticket)
        del self.queues[ticket.spec].members[ticket.id]

    def _queued(self, event: ev.Queued, at: int) -> None:
        ticket = event.ticket
        self.arrivals = ticket.arrival if ticket.arrival > self.arrivals else self.arrivals
        self.put(ticket)
        if ticket.key or ticket.session:
            self.take_keys(ticket)
        if not ticket.away:
            self.join_queue(ticket)
        elif ticket.job:
            self.waiting_jobs.put(ticket, at)

    def join_queue(self, ticket: Ticket) -> None:
        """A ticket takes its place among those that ask for slots."""
        queue = self.queues.get(ticket.spec) or self._new_queue(ticket.spec)
        if not queue.waiting:
            self._activate(queue)
        asks = ticket.asks
        for pool in queue.pools if asks else ():
            if pool.account in asks:
                pool.usage_gate.joined(self.at)
        if queue.push(ticket):
            self.recheck_queue(queue)

    def _activate(self, queue: Queue) -> None:
        """A queue has a ticket again: its project waits for its pools and budgets."""
        self.active_queues[queue.spec] = queue
        project, people = queue.project, queue.spec.work_class == INTERACTIVE
        for pool in queue.pools:
            pool.shares.settled(project).waiting += 1
            pool.people += people
        for budget in queue.budgets:
            budget.shares.settled(project).waiting += 1

    def _deactivate(self, queue: Queue) -> None:
        """The last ticket of a queue is gone."""
        del self.active_queues[queue.spec]
        project, people = queue.project, queue.spec.work_class == INTERACTIVE
        for pool in queue.pools:
            pool.shares.projects[project].waiting -= 1
            pool.people -= people
            if people and pool.cap.lendable:  # others may use what is kept for people (rule W5)
                self.recheck_pool(pool)
        for budget in queue.budgets:
            budget.shares.projects[project].waiting -= 1

    def leave_queue(self, ticket: Ticket, queue: Queue | None = None) -> None:
        """A ticket no longer asks for slots. It is already out of `tickets`, or away."""
        if queue is None:
            queue = self.queue(ticket.spec)
        if queue.remove(ticket):
            self.recheck_queue(queue)
        if not queue.waiting:
            self._deactivate(queue)
        asks = ticket.asks
        for pool in queue.pools if asks else ():
            if pool.account in asks:
                pool.usage_gate.left()
                if pool.cap.usage_gate and not pool.usage_gate.askers:
                    self.recheck_pool(pool)  # no process can ask any more: the others go by the free slots
        if ticket.id in self.reserved:
            self.reservations.end(ticket.id)

    def _ticket_gone(self, event: ev.Cancelled | ev.Expired | ev.Dropped, at: int) -> None:
        ticket = self.pop_ticket(event.id)
        self.drop_keys(ticket)
        if not ticket.away:
            self.leave_queue(ticket)

    def _bumped(self, event: ev.Bumped, at: int) -> None:
        old = self.tickets[event.id]
        self.front = min(self.front, event.order)
        new = replace(old, order=event.order, priority=event.priority)
        self.put(new)
        if not old.away:
            self.leave_queue(old)
            self.join_queue(new)
        elif new.job:
            self.waiting_jobs.put(new, at)

    def _asked(self, event: ev.Asked, at: int) -> None:
        ticket = replace(self.tickets[event.id], away=False)
        self.put(ticket)
        self.join_queue(ticket)

    def take_keys(self, ticket: Ticket) -> None:
        if ticket.key:
            self.keys[ticket.key] = ticket.id
        if ticket.session:
            self.sessions[ticket.spec.host, ticket.session] = ticket.id

    def drop_keys(self, ticket: Ticket) -> None:
        if ticket.key and self.keys.get(ticket.key) == ticket.id:
            del self.keys[ticket.key]
        session = (ticket.spec.host, ticket.session)
        if ticket.session and self.sessions.get(session) == ticket.id:
            del self.sessions[session]

    # The to-do list of admission.

    def recheck_all(self) -> None:
        """Whether tickets may enter has changed, for a reason outside the pools."""
        for queue in self.active_queues.values():
            self.recheck_queue(queue)

    def recheck_queue(self, queue: Queue) -> None:
        queue.parking_id = queue.timer_at = 0  # it is no longer parked anywhere
        self.changed_queues[queue.spec] = queue
        if queue.parked_budgets:
            self.left_budgets(queue)

    def left_budgets(self, queue: Queue) -> None:
        """A queue is no longer parked on its budgets: others may have waited behind it."""
        for budget in queue.parked_budgets:
            self.changed_pools[budget.key] = budget
        queue.parked_budgets = []

    def recheck_pool(self, pool: Pool) -> None:
        """Something changed in a pool: the queues parked there must be looked at."""
        self.changed_pools[pool.key] = pool
        if pool.reservation is not None:
            self.recheck_queue(pool.reservation.queue)

    # Snapshots.

    def export(self, now: int | None = None) -> Snapshot:
        """The state as data, as of `now` (default: the last event). Equal states then export equal snapshots."""
        return export_state(self, self.at if now is None else now)

    @classmethod
    def restore(cls, snapshot: Snapshot) -> State:
        """The state that this snapshot was exported from."""
        state = cls()
        restore_state(state, snapshot)
        return state
