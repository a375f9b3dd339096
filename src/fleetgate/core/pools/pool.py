"""A pool: its counts, its pause and limit, and the projects that share it.

`used` counts slots of leases and is checked against them (core/invariants.py); it is never set from elsewhere.
Time enters only as `now`: slots whose cooldown has passed are dropped when somebody looks.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

from fleetgate.core.limits import NEVER, SIMPLE_POLICIES, AdaptiveLimit, Policy
from fleetgate.core.pools.effective_caps import UNLIMITED, Need
from fleetgate.core.pools.usage_gate import APART_MS, Upstream

if TYPE_CHECKING:
    from fleetgate.core.entities import Ticket
    from fleetgate.core.queue.queue import Queue

# Where levels are learned there is no gate for calls that end so soon, nor where slots are given back more often than
# answers come, each of which lets one in: the line would wait for answers.
SHORT_MS: Final = 3_000
TURN_MS: Final = 700

FOREVER: Final = 1 << 53  # a pause without an end; fits every JSON reader

# Who is first: virtual start of the project (-1: moved to the front), order and arrival of the ticket.
Rank = tuple[int, int, int]

# A parked queue: order and arrival of its head, the parking it belongs to, the queue.
Parked = tuple[int, int, int, "Queue"]


class Share:
    """One project's part in a pool: start-time fair queueing (CONTROLLER.md, "Between projects")."""

    __slots__ = ("debit", "latest", "latest_at", "start", "waiting")

    def __init__(self, start: int = 0, debit: int = 0, latest: int = 0, latest_at: int = 0) -> None:
        self.start = start  # virtual start of its next grant
        self.debit = debit  # held longer (or shorter) than charged, settled with the next grant
        self.latest = latest  # the largest order granted while others waited, and when: who was overtaken?
        self.latest_at = latest_at
        self.waiting = 0


class Lot:
    """The queues parked on a pool that need the same of it.

    Within a project their order never changes; only the project's rank does, with each grant. So a grant costs the same
    however many queues of a project (hosts, models) are parked.
    """

    __slots__ = ("_heap", "_pool", "_ranks", "projects")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.projects: dict[str, list[Parked]] = {}
        self._ranks: dict[str, Rank] = {}  # of each project, as it stands in the heap
        self._heap: list[tuple[Rank, str]] = []

    def add(self, queue: Queue) -> None:
        project = queue.project
        _, order, arrival = rank = self._pool.rank(queue)
        heappush(self.projects.setdefault(project, []), (order, arrival, queue.parking, queue))
        if project not in self._ranks or rank < self._ranks[project]:
            self._ranks[project] = rank
            heappush(self._heap, (rank, project))

    def of_project(self, project: str) -> Queue | None:
        """The first queue of a project that is still parked here."""
        heap = self.projects.get(project)
        while heap:
            known, arrival, parking, queue = heap[0]
            if queue.parking != parking:
                heappop(heap)
                continue
            if len(heap) == 1:
                return queue
            place = queue.place
            if place[1] == arrival and place[0] == known:
                return queue
            heapreplace(heap, (place[0], place[1], parking, queue))  # its head was let in: it sinks
        self.projects.pop(project, None)
        return None

    def first(self) -> Queue | None:
        """The first of all. Starts only grow while somebody waits, so a project whose rank is stale sinks."""
        if len(self.projects) == 1:
            (project,) = self.projects
            return self.of_project(project)
        heap, ranks = self._heap, self._ranks
        while heap:
            known, project = heap[0]
            stands = ranks.get(project) == known
            queue = self.of_project(project) if stands else None
            if queue is None:
                heappop(heap)
                if stands:
                    del ranks[project]
                continue
            actual = self._pool.rank(queue)
            if actual == known:
                return queue
            ranks[project] = actual
            heapreplace(heap, (actual, project))
            if heap[0][0] == actual:
                return queue
        return None


class Pool:
    """A named scarce resource."""

    __slots__ = (
        "account",
        "adapt",
        "auto_cap",
        "cap",
        "cooling",
        "cooling_slots",
        "foreign",
        "full_at",
        "hold_dev_ms",
        "hold_mean_ms",
        "holds",
        "host",
        "id",
        "incident_seq",
        "key",
        "kind",
        "limit",
        "looks_at",
        "parked",
        "pause_cause",
        "paused_until",
        "project",
        "reduced",
        "reserved_for",
        "reserved_own",
        "reserved_slots",
        "shares",
        "timer_at",
        "upstream",
        "usage_timer_at",
        "used",
        "virtual",
    )

    def __init__(self, need: Need) -> None:
        self.kind = need.cap.kind
        self.id = need.pool
        self.key = f"{self.kind} {self.id}"
        self.account = need.account
        self.host = need.host
        self.project = need.project
        self.cap = need.cap
        self.used = 0
        self.cooling: list[tuple[int, int]] = []  # heap of (until, slots)
        self.cooling_slots = 0
        self.foreign = 0
        self.paused_until = 0
        self.pause_cause = ""
        self.incident_seq = 0  # the last pause for a rate limit began here in the log
        self.reduced = 0  # the limit after rate limits; 0: not reduced
        self.adapt: AdaptiveLimit | None = None  # where the limit is learned
        self.auto_cap = 1
        self.limit = UNLIMITED
        self.full_at = NEVER  # with so many slots taken nobody parked here enters, whatever was learned; NEVER: unknown
        self.virtual = 0  # virtual time: start of the latest grant
        self.shares: dict[str, Share] = {}
        self.holds = 0
        self.hold_mean_ms = 0
        self.hold_dev_ms = 0
        self.reserved_for: Queue | None = None
        self.reserved_slots = 0
        self.reserved_own = 0
        self.parked: dict[tuple[int, int], Lot] = {}  # by what they need: slots and own limit
        self.looks_at = NEVER  # when time alone opens it for somebody parked here, as `top` found
        self.timer_at = 0
        self.upstream = Upstream()
        self.usage_timer_at = 0
        self.refresh()

    def __repr__(self) -> str:
        extra = f", {self.cooling_slots} cooling" if self.cooling_slots else ""
        paused = f", paused until {self.paused_until}" if self.paused_until else ""
        limit = "unlimited" if self.limit >= UNLIMITED else str(self.limit)
        return f"<Pool {self.key}: {self.used} of {limit}{extra}{paused}>"

    def refresh(self) -> None:
        """Work out the limit from cap and reduction, or from what was learned."""
        if self.cap.learns:
            if self.adapt is None:
                self.adapt = AdaptiveLimit()
            assert self.cap.cap is not None
            by_hand = self.cap.cooldown_ms if self.cap.cooldown_by_hand else None
            self.adapt.configure(self.cap.cap, self.cap.explore, by_hand, self.cap.usage_gate)
            self.upstream.apart_ms = APART_MS
            self._set_limit(self.adapt.limit)
            return
        self.adapt = None
        self.upstream.apart_ms = 0
        if self.cap.auto:
            limit = self.auto_cap
        else:
            limit = UNLIMITED if self.cap.cap is None else self.cap.cap
        self._set_limit(min(limit, self.reduced) if self.reduced else limit)

    def _set_limit(self, limit: int) -> None:
        self.limit = limit
        may_probe = self.adapt is not None and limit < self.adapt.ceiling
        others_decide = self.cap.usage_gate or any(own_limit for _, own_limit in self.parked)
        self.full_at = NEVER if may_probe or others_decide else limit

    def occupied(self, now: int) -> int:
        """Slots that cannot be lent now: lent, cooling, or taken by foreign agents."""
        if self.cooling and self.cooling[0][0] <= now:
            self._cool_down(now)
        return self.used + self.cooling_slots + self.foreign

    def _cool_down(self, now: int) -> None:
        cooling = self.cooling
        while cooling and cooling[0][0] <= now:
            self.cooling_slots -= heappop(cooling)[1]

    @property
    def policy(self) -> Policy:
        return SIMPLE_POLICIES[self.cap.on_429] if self.adapt is None else self.adapt

    @property
    def is_reduced(self) -> bool:
        """Whether rate limits hold the limit below the cap."""
        return bool(self.reduced) if self.adapt is None else self.adapt.reduced

    @property
    def cooldown_ms(self) -> int:
        """How long a released slot stays taken: what was learned, unless a person said it."""
        return self.cap.cooldown_ms if self.adapt is None else self.adapt.lag_ms

    def limit_for(self, own_limit: int) -> int:
        """The limit in force for a request whose environment says `own_limit`; 0: nothing."""
        if not own_limit:
            return self.limit
        if self.adapt is not None:
            return min(own_limit, self.limit) if self.adapt.reduced and own_limit < UNLIMITED else own_limit
        return min(own_limit, self.reduced) if self.reduced and own_limit < UNLIMITED else own_limit

    def blocks(self, slots: int, own_limit: int, queue: Queue | None, now: int) -> bool:
        """Whether a request of `queue` cannot have `slots` here now; `own_limit` 0 means the pool's."""
        return self.opens_at(slots, own_limit, queue, now) > now

    def opens_at(self, slots: int, own_limit: int, queue: Queue | None, now: int) -> int:
        """From when on it can have them; if later, when it is worth a look again (NEVER: time alone opens nothing)."""
        if now < self.paused_until:
            return self.paused_until
        cooling, adapt, used = self.cooling, self.adapt, self.used
        if cooling and cooling[0][0] <= now:
            self._cool_down(now)
        level = used + self.cooling_slots + self.foreign + slots
        if level > self.full_at and not own_limit:
            return cooling[0][0] if cooling else NEVER
        limit = self.limit_for(own_limit) if own_limit else self.limit
        if adapt is None or (own_limit and limit >= UNLIMITED):
            moment = 0 if level <= limit else NEVER
        elif self.upstream.answered_at == now and (seen := self.seen(now)) is not None:
            moment = adapt.admits_at(max(seen, used) + slots, limit, now, used, counted=True)
        else:
            moment = adapt.admits_at(level, limit, now, used, self.cooling_slots)
        if moment <= now:
            if self.reserved_for is None or self.reserved_for is queue or own_limit >= UNLIMITED:
                return 0
            if level + self.reserved_slots <= self.limit_for(self.reserved_own):
                return 0
            moment = NEVER
        return cooling[0][0] if cooling and cooling[0][0] < moment else moment

    def stays_full(self, now: int) -> bool:
        """Whether a slot that was released opens nothing for those parked here, and a look is due when one may.

        It cools down, all slots are taken with it, and the timer is set for the one that is cool first.
        """
        cooling = self.cooling
        if not cooling or self.used + self.cooling_slots + self.foreign < self.full_at:
            return False
        return now < self.timer_at <= cooling[0][0] and self.reserved_for is None

    def seen(self, now: int) -> int | None:
        """What the provider says is in flight, at this very moment; None: it says nothing, or is not asked."""
        return self.upstream.seen(now) if self.gated else None

    def most_now(self, now: int) -> int:
        """The limit, and one more when a probe is due."""
        if self.adapt is None or self.limit >= UNLIMITED:
            return self.limit
        return self.limit + (0 < self.adapt.probe_at() <= now)

    @property
    def gated(self) -> bool:
        """Whether those in the queue here enter only by the provider's own count, and somebody can ask for it."""
        if not self.upstream.askers or not self.cap.usage_gate or self.limit >= UNLIMITED:
            return False
        if self.adapt is None or self.holds < 8:
            return True
        return self.hold_mean_ms >= SHORT_MS and self.hold_mean_ms >= TURN_MS * self.limit

    def awaits_answer(self, slots: int, queue: Queue, now: int) -> bool:
        """Whether the usage gate keeps a request of `queue` from slots that are free here (SPEC G1, G5)."""
        if not self.gated or self.upstream.room >= slots:
            return False
        return queue.waiting > 0 or self._holds_someone(now)

    def _holds_someone(self, now: int) -> bool:
        """Whether somebody stands here for whom there is room: for the provider's answer, then."""
        return any(
            lot.first() is not None
            for (slots, own_limit), lot in self.parked.items()
            if lot.projects and not self.blocks(slots, own_limit, None, now)
        )

    def _open_lots(self, now: int) -> list[Lot]:
        """The lots that this pool has room for."""
        room = self.upstream.room if self.gated else UNLIMITED
        return [
            lot
            for (slots, own_limit), lot in self.parked.items()
            if lot.projects and slots <= room and not self.blocks(slots, own_limit, None, now)
        ]

    def can_keep(self, slots: int, own_limit: int, now: int) -> bool:
        """Whether it is of use to keep slots for a request until others have given theirs back.

        One whose environment allows it less than others waits for a quiet moment; others are not held back for it.
        """
        limit = self.limit_for(own_limit)
        return now >= self.paused_until and limit >= self.limit and limit - self.foreign >= slots

    def changes_at(self, now: int) -> int:
        """When time alone next frees something for those who are parked here; NEVER: not at all."""
        if now < self.paused_until:
            return self.paused_until
        taken, adapt = self.occupied(now), self.adapt
        first = self.cooling[0][0] if self.cooling else NEVER
        if adapt is not None:
            for (slots, own_limit), lot in self.parked.items():
                if lot.projects:
                    limit = self.limit_for(own_limit) if own_limit else self.limit
                    moment = adapt.admits_at(taken + slots, limit, now, self.used, self.cooling_slots)
                    if now < moment < first:
                        first = moment
        return first

    def share(self, project: str) -> Share:
        share = self.shares.get(project)
        if share is None:
            share = self.shares[project] = Share(self.virtual)
        return share

    def settled(self, project: str) -> Share:
        """A project's share to be charged. While nobody of it waits it is settled, and gets no credit for that time."""
        share = self.shares.get(project)
        if share is None:
            share = self.shares[project] = Share(self.virtual)
        elif not share.waiting:
            start = share.start + share.debit
            share.start = start if start > self.virtual else self.virtual
            share.debit = share.latest = share.latest_at = 0
        return share

    def lend(self, ident: str, slots: int, project: str, charge_ms: int, order: int, now: int) -> None:
        """Count a lease, and charge its project what it is expected to hold."""
        used, adapt, upstream = self.used, self.adapt, self.upstream
        if adapt is not None:
            if upstream.answered_at == now and (seen := self.seen(now)) is not None:
                adapt.admitted(ident, max(seen, used) + slots, now, used, counted=True)
            else:
                if self.cooling and self.cooling[0][0] <= now:
                    self._cool_down(now)
                adapt.admitted(ident, used + self.cooling_slots + self.foreign + slots, now, used)
        if upstream.askers or upstream.asked_by:
            upstream.lent += slots
        self.used = used + slots
        share = self.shares.get(project)
        if share is None or not share.waiting:
            share = self.settled(project)
        elif order >= share.latest:
            share.latest = order
            share.latest_at = now
        start = share.start
        if start > self.virtual:
            self.virtual = start
        else:  # it was behind, waiting for something else, while this pool went to others: that is no credit either
            start = self.virtual
        cost = charge_ms * slots + share.debit
        if cost > 0:
            share.start = start + cost
            share.debit = 0
        else:
            share.start = start
            share.debit = cost

    def take_back(
        self, ident: str, slots: int, project: str, settle_ms: int, held_ms: int, outcome: str, now: int
    ) -> None:
        """A lease ended after `held_ms`: its slots cool down, and its project is charged what it really took."""
        self.used -= slots
        adapt = self.adapt
        if adapt is None:
            cooldown = self.cap.cooldown_ms
        else:
            cooldown = 0 if outcome == "rate_limited" else adapt.lag_ms  # a refused call was never counted
            adapt.released(ident, slots, outcome, now)
            if adapt.limit != self.limit:
                self._set_limit(adapt.limit)
        if cooldown:
            heappush(self.cooling, (now + cooldown, slots))
            self.cooling_slots += slots
        if self.upstream.askers:
            self.upstream.freed(now, cooldown)
        share = self.shares.get(project)
        if share is None or not share.waiting:
            share = self.settled(project)
        share.debit += settle_ms + cooldown * slots
        # Running mean and mean deviation; the first few count in full.
        weight = self.holds = self.holds + 1
        if weight > 8:
            weight = 8
        error = held_ms - self.hold_mean_ms
        self.hold_mean_ms += error // weight
        self.hold_dev_ms += (abs(error) - self.hold_dev_ms) // weight

    def give_back(self, ident: str, slots: int, project: str, settle_ms: int, now: int) -> None:
        """A grant that was never used: nothing to cool down, nothing learned."""
        self.used -= slots
        if self.adapt is not None:
            self.adapt.released(ident, slots, "rate_limited", now)
        self.settled(project).debit += settle_ms

    def top(self, now: int) -> Queue | None:
        """The first queue parked here that this pool has room for; if none, `looks_at` says when to ask again."""
        cooling = self.cooling
        if cooling and cooling[0][0] <= now:
            self._cool_down(now)
        if self.used + self.cooling_slots + self.foreign >= self.full_at and now >= self.paused_until:
            self.looks_at = cooling[0][0] if cooling and self.has_parked else NEVER
            return None
        best: Queue | None = None
        looks_at = NEVER
        gate = self.cap.usage_gate
        for (slots, own_limit), lot in self.parked.items():
            if not lot.projects:
                continue
            opens_at = self.opens_at(slots, own_limit, None, now)
            if opens_at > now:
                if opens_at < looks_at:
                    looks_at = opens_at
            elif not gate or slots <= self.upstream.room or not self.gated:
                first = lot.first()
                if best is None or (first is not None and self.rank(first) < self.rank(best)):
                    best = first
        if gate and self.has_parked:  # what an answer allows holds for this moment only
            looks_at = self.changes_at(now)
        self.looks_at = looks_at
        return best

    def top_of(self, project: str, now: int) -> Queue | None:
        """The first such queue of one project; None too when nobody else is parked here: then it is the top."""
        if len(self.parked) == 1 and all(len(lot.projects) < 2 for lot in self.parked.values()):
            return None
        queues = [queue for lot in self._open_lots(now) if (queue := lot.of_project(project)) is not None]
        return min(queues, key=self.rank, default=None)

    def first_parked(self) -> Ticket | None:
        """The head of the first queue parked here, room or not."""
        queues = [queue for lot in self.parked.values() if (queue := lot.first()) is not None]
        return min(queues, key=self.rank).first() if queues else None

    def rank(self, queue: Queue) -> Rank:
        """Who is first here: the project with the smallest virtual start, then the oldest. A bump beats both."""
        order, arrival, _ = queue.place
        return (self.share(queue.project).start if order >= 0 else -1, order, arrival)

    def park(self, queue: Queue, own_limit: int) -> None:
        needed = (queue.slots, own_limit)
        lot = self.parked.get(needed)
        if lot is None:
            lot = self.parked[needed] = Lot(self)
            if own_limit:
                self.full_at = NEVER
        lot.add(queue)

    @property
    def has_parked(self) -> bool:
        for lot in self.parked.values():  # noqa: SIM110  (asked with every decision; `any` costs three times as much)
            if lot.projects:
                return True
        return False
