"""The ramp of an account: how quickly conversations may move to it (rule Z5).

When an account is used up, all of its conversations want to move at once, and each has to be read again in full where
it goes, since nothing of it is in the cache there. So an account takes one of them, then as many again with every step
of time: 1, 2, 4, 8 in all. After a quiet while it begins again with one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fleetgate.core.limits.adaptive_tuning import NEVER
from fleetgate.core.pools.parking import ParkingLot
from fleetgate.core.pools.resource import Resource

if TYPE_CHECKING:
    from fleetgate.core.queue.queue import Queue

STEP_MS: Final = 250  # twice as many may have moved after each step
QUIET_MS: Final = 2_000  # without a move for this long, it begins again
_MOST_STEPS: Final = 16


class Ramp(Resource):
    """The conversations that move to one account."""

    def __init__(self, account: str) -> None:
        super().__init__(ramp_key(account), account)
        self.account = account
        self.began_at = 0
        self.moved_at = 0
        self.moved = 0  # since it began
        self._lot = self.parking.lots[0, 0] = ParkingLot(self.shares)

    def opens_at(self, now: int) -> int:
        """When one more conversation may move here, 0: now."""
        if now - self.moved_at >= QUIET_MS or not self.moved:
            return 0
        steps = self.moved.bit_length()
        moment = self.began_at + steps * STEP_MS
        return 0 if moment <= now or steps > _MOST_STEPS else moment

    def move(self, now: int) -> None:
        """A conversation moved here."""
        if now - self.moved_at >= QUIET_MS or not self.moved:
            self.began_at, self.moved = now, 0
        self.moved_at = now
        self.moved += 1

    # Parked queues.

    def park(self, queue: Queue, own_limit: int) -> None:
        self._lot.add(queue)

    def changes_at(self, now: int) -> int:
        return max(self.opens_at(now), now + 1) if self._lot.projects else NEVER

    def first_admissible(self, now: int) -> Queue | None:
        moment = self.opens_at(now)
        if moment <= now:
            self.parking.look_at = NEVER
            return self._lot.first()
        self.parking.look_at = moment if self._lot.projects else NEVER
        return None

    def first_admissible_of(self, project: str, now: int) -> Queue | None:
        if len(self._lot.projects) < 2 or self.opens_at(now) > now:
            return None
        return self._lot.of_project(project)


def ramp_key(account: str) -> str:
    """The key of its resource. No pool, budget or plan window has such a key."""
    return f"ramp {account}"
