"""Queues: one for each distinct set of needs, in order, parked on what blocks it.

All tickets of a queue need the same slots of the same pools, so only its head matters. A queue whose head is
blocked is parked on one pool that blocks each candidate, and looked at again only when one of these pools
changes. So the cost of a decision depends neither on the length of a queue nor on how many hosts are waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from fleetgate.core.entities import Spec, Ticket
from fleetgate.core.errors import InternalError
from fleetgate.core.model_names import Model

if TYPE_CHECKING:
    from fleetgate.core.accounts.member import Member
    from fleetgate.core.budgets.budget import Budget
    from fleetgate.core.plans.window import PlanWindow
    from fleetgate.core.pools.pool import Pool
    from fleetgate.core.pools.resource import Resource

Place = tuple[int, int, str]  # of a ticket in its queue: order, arrival, id


class Candidate:
    """One model that a request may use, and the pools and budgets that it needs then."""

    __slots__ = (
        "budgets",
        "fallback_budgets",
        "gates",
        "group",
        "hold_key",
        "max_hold_ms",
        "member",
        "model",
        "name",
        "needs",
        "plans",
    )

    def __init__(
        self,
        name: Model | None,
        needs: tuple[tuple[Pool, int], ...],
        hold_key: str,
        budgets: tuple[Budget, ...] = (),
        plans: tuple[PlanWindow, ...] = (),
        group: int = 0,
        member: Member | None = None,
    ) -> None:
        self.name = name  # None: only host and project count
        self.group = group  # the number of the model that it stands for, among those that the request names
        self.member = member  # set where it is one account of a set
        self.hold_key = hold_key  # the key under which `State.holds` has the project's hold time
        self.model = "" if name is None else str(name)
        self.needs = needs  # narrowest first; (pool, own limit or 0)
        self.gates = tuple(pool for pool, _ in needs if pool.cap.usage_gate)
        self.budgets = budgets
        self.plans = plans  # the plan windows that may hold its requests back
        # Those whose end makes the request use its next candidate (rule V7).
        self.fallback_budgets = tuple(budget for budget in budgets if budget.rule.when_empty == "fallback")
        self.max_hold_ms = min((pool.cap.max_hold_ms for pool, _ in needs if pool.cap.max_hold_ms), default=0)

    def closed_plan(self, work_class: str, now: int, run: str = "") -> PlanWindow | None:
        """The plan window that holds requests of a class back the longest, or the calls of a `run`; None: none does."""
        found, longest = None, now
        for plan in self.plans:
            opens_at = plan.opens_for_runs_at(work_class, now) if run else plan.opens_at(work_class, now)
            if opens_at > longest:
                found, longest = plan, opens_at
        return found

    def is_paused(self, now: int) -> bool:
        """Whether one of its pools is paused, or a budget is spent that has requests use their next candidate."""
        if any(now < pool.paused_until for pool, _ in self.needs):
            return True
        return any(budget.is_spent(now) for budget in self.fallback_budgets)


class Queue:
    """The tickets of one project that need the same, in order."""

    __slots__ = (
        "_heap",
        "_tickets",
        "budgets",
        "by_model",
        "candidates",
        "full_text",
        "has_fallback",
        "has_plans",
        "has_sets",
        "has_windows",
        "home",
        "home_queues",
        "members",
        "moves_for",
        "obstacles",
        "parked_budgets",
        "parking_id",
        "pools",
        "project",
        "reserves_most",
        "review_at",
        "slots",
        "sole_candidate",
        "spec",
        "timer_at",
        "usable",
        "valid",
        "waiting",
    )

    def __init__(
        self,
        spec: Spec,
        candidates: tuple[Candidate, ...],
        usable: tuple[Candidate, ...],
        tickets: dict[str, Ticket],
    ) -> None:
        self.spec = spec
        self.project = spec.project
        self.slots = spec.slots
        self.members: dict[str, None] = {}  # all tickets that need this, including those that ask for nothing now
        self.waiting = 0  # tickets that ask for slots
        self.parked_budgets: list[Resource] = []  # the budgets and plan windows that it is parked on
        self.obstacles: list[tuple[Resource, int, Candidate]] = []  # what it is parked on, where it may use a set
        self.full_text = ""  # why it waits, where all accounts that it may use are full; "": not worked out yet
        self.home_queues: dict[str, Queue] = {}  # by account: requests like these of conversations that use it
        self.bind(candidates, usable)
        self.review_at = 0  # when to check whether its head is being overtaken
        self.timer_at = 0  # a deadline is set for then or earlier; 0: none for this parking
        self.parking_id = 0  # number of the current parking; entries of an older one are obsolete
        self._heap: list[Place] = []  # its first place belongs to a ticket that asks
        self._tickets = tickets

    def __repr__(self) -> str:
        return f"<Queue {'|'.join(self.by_model)} for {self.project}: {self.waiting} waiting>"

    def bind(self, candidates: tuple[Candidate, ...], usable: tuple[Candidate, ...]) -> None:
        """From now on its tickets enter with one of these."""
        self.candidates = candidates
        self.usable = usable  # those to try: not backed off, and only the first unless `spec.any_candidate`
        # Whether another model may be used while something that the first needs is paused.
        self.has_fallback = not self.spec.any_candidate and bool(usable) and usable[0].group < candidates[-1].group
        several = len(candidates) > 1 or bool(self.spec.home)
        self.has_sets = several and any(candidate.member is not None for candidate in candidates)
        self.home = self._home(candidates)
        self.moves_for = ""  # the head for which a deadline to leave its home is set
        self.budgets = list({budget.key: budget for candidate in usable for budget in candidate.budgets}.values())
        self.has_plans = any(candidate.plans for candidate in candidates)
        self.has_windows = any(each.window is not None for candidate in candidates for each in candidate.budgets)
        self.reserves_most = any(budget.rule.estimate == "max" for budget in self.budgets)
        # Set where there is one candidate that needs one pool, no usage gate, no budget: then only that pool decides.
        alone = usable == candidates and len(candidates) == len(candidates[0].needs) == 1
        alone = alone and not (candidates[0].gates or self.budgets or self.has_plans or self.has_sets)
        self.sole_candidate = candidates[0] if alone else None
        self.by_model = {candidate.model: candidate for candidate in candidates}
        self.pools = list({pool.key: pool for candidate in usable for pool, _ in candidate.needs}.values())
        self.valid = False  # requests like this were checked

    def _home(self, candidates: tuple[Candidate, ...]) -> Candidate | None:
        """The account that conversations of this queue use."""
        first = candidates[0]
        member = first.member if self.has_sets and self.spec.home else None
        return first if member is not None and member.account == self.spec.home else None

    def leaves_home_at(self, ticket: Ticket) -> int:
        """When a ticket of this queue has waited long enough for its home; 0: it has none."""
        home = self.home
        return 0 if home is None or home.member is None else ticket.queued_at + home.member.patience_ms

    @property
    def preferred(self) -> Candidate:
        """The candidate that the head would enter with if all had room."""
        return self.usable[0] if self.usable else self.candidates[0]

    def push(self, ticket: Ticket) -> bool:
        """Add a ticket. Returns True if it is the head now."""
        self.waiting += 1
        heap, ident = self._heap, ticket.id
        heappush(heap, (ticket.order, ticket.arrival, ident))
        return heap[0][2] == ident

    def fill(self, tickets: list[Ticket]) -> None:
        """Add many at once."""
        self.waiting += len(tickets)
        self._heap.extend((ticket.order, ticket.arrival, ticket.id) for ticket in tickets)
        heapify(self._heap)

    def remove(self, ticket: Ticket) -> bool:
        """A ticket no longer asks. Returns True if it was the head; another place is dropped later."""
        heap = self._heap
        self.waiting -= 1
        was_head = heap[0][2] == ticket.id
        places = len(heap)
        if places > 64 and places > 4 * self.waiting:
            self._tidy()
        elif was_head:
            heappop(heap)
            while len(heap) > self.waiting and not self._is_current(heap[0]):  # else there are no obsolete places
                heappop(heap)
        return was_head

    def _tidy(self) -> None:
        """Drop all obsolete places."""
        self._heap = [place for place in self._heap if self._is_current(place)]
        heapify(self._heap)

    def head(self) -> Ticket | None:
        """The first ticket that asks, or None."""
        return self._tickets[self._heap[0][2]] if self._heap else None

    def first(self) -> Ticket:
        """The head; the queue must have one."""
        if not self._heap:
            raise InternalError(f"{self!r} has no head")
        return self._tickets[self._heap[0][2]]

    @property
    def place(self) -> Place:
        """The place of the head; the queue must have one."""
        if not self._heap:
            raise InternalError(f"{self!r} has no head")
        return self._heap[0]

    def _is_current(self, place: Place) -> bool:
        """Whether this is the current place of a ticket that asks."""
        order, arrival, ident = place
        ticket = self._tickets.get(ident)
        return ticket is not None and ticket.order == order and ticket.arrival == arrival and not ticket.away

    def entries(self) -> list[Place]:
        """A copy of the places, for `in_order`."""
        return self._heap.copy()

    def in_order(self, entries: list[Place]) -> Iterator[Ticket]:
        """The tickets at these places that ask, from the head on. The cost is that of the tickets taken."""
        ahead = [(entry, 0) for entry in entries[:1]]
        last = None
        while ahead:
            entry, index = heappop(ahead)
            for below in range(2 * index + 1, min(2 * index + 3, len(entries))):
                heappush(ahead, (entries[below], below))
            if entry != last and self._is_current(entry):
                yield self._tickets[entry[2]]
            last = entry

    def can_keep(self, now: int) -> bool:
        """Whether slots kept for the head would admit it with its preferred candidate."""
        if not self.usable:
            return False
        first = self.usable[0]
        plan = first.closed_plan(self.spec.work_class, now, self.first().run) if first.plans else None
        return plan is None and all(pool.can_keep(self.spec.slots, own, now) for pool, own in first.needs)
