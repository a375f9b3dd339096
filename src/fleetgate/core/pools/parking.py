"""Parking: the queues that wait for a change in a pool, in the order in which they would enter."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from fleetgate.core.limits.adaptive_tuning import NEVER
from fleetgate.core.pools.fair_share import FairShare, Rank

if TYPE_CHECKING:
    from fleetgate.core.entities import Ticket
    from fleetgate.core.queue.queue import Queue

# A parked queue: order and arrival of its head, the number of the parking, the queue.
Parked = tuple[int, int, int, "Queue"]


class ParkingLot:
    """The queues parked on a pool that need the same of it.

    Within a project their order never changes; only the project's rank does, with each grant. So a grant costs the same
    however many queues of a project (hosts, models) are parked. A queue that left is not searched for: its entry has
    the number of an older parking and is dropped when it comes to the top.
    """

    __slots__ = ("_heap", "_ranks", "_shares", "projects")

    def __init__(self, shares: FairShare) -> None:
        self._shares = shares
        self.projects: dict[str, list[Parked]] = {}
        self._ranks: dict[str, Rank] = {}  # of each project, as it is in the heap
        self._heap: list[tuple[Rank, str]] = []

    def add(self, queue: Queue) -> None:
        project = queue.project
        _, order, arrival = rank = self._shares.rank(queue)
        heappush(self.projects.setdefault(project, []), (order, arrival, queue.parking_id, queue))
        if project not in self._ranks or rank < self._ranks[project]:
            self._ranks[project] = rank
            heappush(self._heap, (rank, project))

    def of_project(self, project: str) -> Queue | None:
        """The first queue of a project that is still parked here."""
        heap = self.projects.get(project)
        while heap:
            known, arrival, parking, queue = heap[0]
            if queue.parking_id != parking:
                heappop(heap)
                continue
            if len(heap) == 1:
                return queue
            place = queue.place
            if place[1] == arrival and place[0] == known:
                return queue
            heapreplace(heap, (place[0], place[1], parking, queue))  # its head was admitted: it sinks
        self.projects.pop(project, None)
        return None

    def first(self) -> Queue | None:
        """The first of all. Starts only grow while a ticket waits, so a project whose rank is stale sinks."""
        if len(self.projects) == 1:
            (project,) = self.projects
            return self.of_project(project)
        heap, ranks = self._heap, self._ranks
        while heap:
            known, project = heap[0]
            current = ranks.get(project) == known
            queue = self.of_project(project) if current else None
            if queue is None:
                heappop(heap)
                if current:
                    del ranks[project]
                continue
            actual = self._shares.rank(queue)
            if actual == known:
                return queue
            ranks[project] = actual
            heapreplace(heap, (actual, project))
            if heap[0][0] == actual:
                return queue
        return None


class Parking:
    """All queues that are parked on one pool."""

    __slots__ = ("_shares", "look_at", "lots", "timer_at")

    def __init__(self, shares: FairShare) -> None:
        self._shares = shares
        self.lots: dict[tuple[int, int], ParkingLot] = {}  # by what they need: slots and own limit
        self.look_at = NEVER  # when time alone opens the pool for a queue parked here, as `first_admissible` found
        self.timer_at = 0  # a deadline is set for then

    def add(self, queue: Queue, own_limit: int) -> None:
        needed = (queue.slots, own_limit)
        lot = self.lots.get(needed)
        if lot is None:
            lot = self.lots[needed] = ParkingLot(self._shares)
        lot.add(queue)

    @property
    def occupied(self) -> bool:
        for lot in self.lots.values():  # noqa: SIM110  (runs with every decision; `any` costs three times as much)
            if lot.projects:
                return True
        return False

    @property
    def has_own_limits(self) -> bool:
        """Whether a queue here has a limit of its own, from its environment."""
        return any(own_limit for _, own_limit in self.lots)

    def holds_one_project(self) -> bool:
        return len(self.lots) == 1 and all(len(lot.projects) < 2 for lot in self.lots.values())

    def first_ticket(self) -> Ticket | None:
        """The head of the first queue parked here, room or not."""
        queues = [queue for lot in self.lots.values() if (queue := lot.first()) is not None]
        return min(queues, key=self._shares.rank).first() if queues else None
