"""A pool: its counts, its pause and limit, and the flows that share it.

`used` counts seats of leases and is checked against them (core/invariants.py); it is never set from elsewhere.
Time enters only as `now`: seats whose cooldown has passed are dropped when somebody looks.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from headgate.core.rules import UNLIMITED, Need

if TYPE_CHECKING:
    from headgate.core.line import Queue
    from headgate.core.records import Ticket

# Entry of a parked queue: virtual start, order and arrival of its head, the parking it belongs to, the queue.
Parked = tuple[int, int, int, int, "Queue"]


class Share:
    """One flow's part in a pool: start-time fair queueing (CONTROLLER.md, "Between flows")."""

    __slots__ = ("debit", "latest", "latest_at", "start", "waiting")

    def __init__(self, start: int = 0, debit: int = 0, latest: int = 0, latest_at: int = 0) -> None:
        self.start = start  # virtual start of its next grant
        self.debit = debit  # held longer (or shorter) than charged, settled with the next grant
        self.latest = latest  # the largest order granted so far, and when: who was overtaken?
        self.latest_at = latest_at
        self.waiting = 0


class Pool:
    """A named scarce resource."""

    __slots__ = (
        "account",
        "auto_cap",
        "cap",
        "cooling",
        "cooling_seats",
        "foreign",
        "hold_dev_ms",
        "hold_mean_ms",
        "holds",
        "host",
        "id",
        "incident_seq",
        "key",
        "kind",
        "limit",
        "parked",
        "pause_cause",
        "paused_until",
        "project",
        "reduced",
        "reserved_for",
        "reserved_seats",
        "shares",
        "timer_at",
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
        self.cooling: list[tuple[int, int]] = []  # heap of (until, seats)
        self.cooling_seats = 0
        self.foreign = 0
        self.paused_until = 0
        self.pause_cause = ""
        self.incident_seq = 0  # the last pause for a rate limit began here in the log
        self.reduced = 0  # the limit after rate limits; 0: not reduced
        self.auto_cap = 1
        self.limit = UNLIMITED
        self.virtual = 0  # virtual time: start of the latest grant
        self.shares: dict[str, Share] = {}
        self.holds = 0
        self.hold_mean_ms = 0
        self.hold_dev_ms = 0
        self.reserved_for: Queue | None = None
        self.reserved_seats = 0
        self.parked: dict[tuple[int, int], list[Parked]] = {}  # by what they need: seats and own limit
        self.timer_at = 0
        self.refresh()

    def __repr__(self) -> str:
        extra = f", {self.cooling_seats} cooling" if self.cooling_seats else ""
        paused = f", paused until {self.paused_until}" if self.paused_until else ""
        limit = "unlimited" if self.limit >= UNLIMITED else str(self.limit)
        return f"<Pool {self.key}: {self.used} of {limit}{extra}{paused}>"

    def refresh(self) -> None:
        """Work out the limit from cap and reduction."""
        if self.cap.auto:
            limit = self.auto_cap
        else:
            limit = UNLIMITED if self.cap.cap is None else self.cap.cap
        self.limit = min(limit, self.reduced) if self.reduced else limit

    def occupied(self, now: int) -> int:
        """Seats that cannot be lent now: lent, cooling, or taken by foreign agents."""
        cooling = self.cooling
        while cooling and cooling[0][0] <= now:
            self.cooling_seats -= heappop(cooling)[1]
        return self.used + self.cooling_seats + self.foreign

    def blocks(self, seats: int, own_limit: int, queue: Queue | None, now: int) -> bool:
        """Whether a request of `queue` cannot have `seats` here now; `own_limit` 0 means the pool's."""
        if now < self.paused_until:
            return True
        limit = own_limit or self.limit
        if self.reduced and limit > self.reduced and own_limit < UNLIMITED:
            limit = self.reduced
        free = limit - self.used - self.foreign
        if self.cooling:
            free = limit - self.occupied(now)
        if self.reserved_seats and self.reserved_for is not queue:
            free -= self.reserved_seats
        return free < seats

    def changes_at(self, now: int) -> int:
        """When time alone next frees something here; 0: never."""
        if now < self.paused_until:
            return self.paused_until
        self.occupied(now)
        return self.cooling[0][0] if self.cooling else 0

    def share(self, flow: str) -> Share:
        share = self.shares.get(flow)
        if share is None:
            share = self.shares[flow] = Share(self.virtual)
        return share

    def lend(self, seats: int, flow: str, charge_ms: int, order: int, now: int) -> None:
        """Count a lease, and charge its flow what it is expected to hold."""
        self.used += seats
        share = self.shares.get(flow)
        if share is None:
            share = self.shares[flow] = Share(self.virtual)
        elif share.start < self.virtual and not share.waiting:
            share.start = self.virtual  # back from idle: no credit for the time it asked for nothing
        if share.start > self.virtual:
            self.virtual = share.start
        cost = charge_ms * seats + share.debit
        if cost > 0:
            share.start += cost
            share.debit = 0
        else:
            share.debit = cost
        if order >= share.latest:
            share.latest = order
            share.latest_at = now

    def take_back(self, seats: int, flow: str, settle_ms: int, held_ms: int, now: int) -> None:
        """A lease ended after `held_ms`: its seats cool down, and its flow is charged what it really held."""
        self.used -= seats
        cooldown = self.cap.cooldown_ms
        if cooldown:
            heappush(self.cooling, (now + cooldown, seats))
            self.cooling_seats += seats
        self.share(flow).debit += settle_ms
        # Running mean and mean deviation; the first few count in full.
        self.holds += 1
        weight = self.holds if self.holds < 8 else 8
        error = held_ms - self.hold_mean_ms
        self.hold_mean_ms += error // weight
        self.hold_dev_ms += (abs(error) - self.hold_dev_ms) // weight

    def give_back(self, seats: int, flow: str, settle_ms: int) -> None:
        """A grant that was never used: nothing to cool down, nothing learned."""
        self.used -= seats
        self.share(flow).debit += settle_ms

    def top(self, now: int) -> Queue | None:
        """The first of the queues parked here that this pool has room for."""
        best: Parked | None = None
        for (seats, own_limit), heap in self.parked.items():
            if heap and not self.blocks(seats, own_limit, None, now):
                entry = self._first(heap)
                if entry is not None and (best is None or entry[:3] < best[:3]):
                    best = entry
        return best[4] if best is not None else None

    def first_parked(self) -> Ticket | None:
        """The head of the first queue parked here, room or not."""
        entries = [entry for heap in self.parked.values() if (entry := self._first(heap)) is not None]
        return min(entries)[4].head() if entries else None

    def _first(self, heap: list[Parked]) -> Parked | None:
        """The heap's first entry that still stands. Starts and orders only grow, so a stale one sinks."""
        while heap:
            entry = heap[0]
            queue = entry[4]
            head = queue.head() if queue.parking == entry[3] else None
            if head is None:
                heappop(heap)
                continue
            actual = self.rank(queue)
            if actual == entry[:3]:
                return entry
            heappop(heap)
            heappush(heap, (*actual, entry[3], queue))
        return None

    def rank(self, queue: Queue) -> tuple[int, int, int]:
        """Who is first here: the flow with the smallest virtual start, then the oldest. A bump beats both."""
        head = queue.head()
        assert head is not None
        if head.order < 0:
            return (-1, head.order, head.arrival)
        return (self.share(queue.flow).start, head.order, head.arrival)

    def park(self, queue: Queue, seats: int, own_limit: int) -> None:
        heap = self.parked.setdefault((seats, own_limit), [])
        heappush(heap, (*self.rank(queue), queue.parking, queue))

    @property
    def has_parked(self) -> bool:
        return any(self.parked.values())
