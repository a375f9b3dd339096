"""What a request may have to wait for: slots of a pool, or an amount of a budget.

Admission treats both alike. A queue whose head cannot enter is parked on a resource that blocks it; when the resource
changes, it names the first parked queue that it has room for, or else the moment at which time alone may make room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetgate.core.pools.fair_share import FairShare
from fleetgate.core.pools.parking import Parking

if TYPE_CHECKING:
    from fleetgate.core.queue.queue import Queue


class Resource:
    """A pool or a budget. Without `__slots__`: the compiler allows none in a class that others are made of."""

    def __init__(self, key: str, name: str, weights: dict[str, int] | None = None) -> None:
        self.key = key  # unique among all resources
        self.id = name  # for people
        self.shares = FairShare(weights)
        self.parking = Parking(self.shares)

    def park(self, queue: Queue, own_limit: int) -> None:
        """Remember a queue that this resource blocks."""
        raise NotImplementedError

    def changes_at(self, now: int) -> int:
        """When time alone next frees something for the parked queues; NEVER: it does not."""
        raise NotImplementedError

    def first_admissible(self, now: int) -> Queue | None:
        """The first parked queue that there is room for here; if none, `parking.look_at` says when to look."""
        raise NotImplementedError

    def first_admissible_of(self, project: str, now: int) -> Queue | None:
        """The first such queue of one project; also None when all queues here are of one project."""
        raise NotImplementedError
