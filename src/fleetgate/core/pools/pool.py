"""A pool: a named scarce resource, its slots, and the queues that wait for them.

Theory of operation
===================

*What it is made of.* A cap makes a pool for each instance it applies to: `host:alpha`, `umans`, `umans@work/coder`.
The pool has one part for each subject:

| part | subject | file |
| --- | --- | --- |
| `used`, `foreign` | slots of leases, and of agents that were started outside Fleetgate | here |
| `cooldown` | slots that were released a moment ago and may still count at the provider | cooldown.py |
| `limiter` | how many slots there are: the cap, lowered by rate limits, or what was learned | limiter.py |
| `shares` | which project is next | fair_share.py |
| `parking` | the queues that wait for a change here | parking.py |
| `hold_times` | how long leases last, for estimates | hold_times.py |
| `usage_gate` | what the provider itself says is in flight | usage_gate.py |
| `reservation` | slots kept for one overtaken head | core/queue/reservations.py |

*Invariant.* `used` is the sum of the slots of all leases that need this pool. `grant_slots`, `release_slots`
and `undo_grant` change it, which follow events; after a change of caps all leases are counted again. core/invariants.py
checks it. It may exceed the limit: a cap that is lowered takes nothing away from running agents, and an adopted process
counts whatever the limit is.

*The question.* `opens_at(slots, own_limit, queue, now)` decides everything. The *level* of a request is what is used,
cooling and foreign, and its own slots. It may enter now if all of this holds:

1. the pool is not paused;
2. the level is within the limit; where the limit is learned, the adaptive limit also has to agree (it may let only one
   unproven call go at a time, or let one probe go above the limit);
3. with a reservation, the level plus the reserved slots is within the limit, or the request is the one it is for.

If not, the answer is the moment at which time alone may change that: the end of the pause, the end of the first
cooldown, or when the adaptive limit agrees; NEVER if only an event can. The admission pass sets a deadline for that
moment, so no request waits for a slot that is free, and nothing has to poll.

*Why it is exact.* Cooled-down slots are dropped whenever the pool is looked at, so the counts are those of `now`. All
other inputs change by events, and each such event has the pool looked at again (`State.touch`).

*Shortcut.* `full_at` is a level at which no parked queue can enter whatever else is true. Most releases in a full pool
only start a cooldown; `first_admissible` and `stays_full` see that by one comparison. It is NEVER, which means unknown,
where a probe, a usage answer or a request's own limit may decide otherwise.

*Example.* `umans` has the limit 3 and a cooldown of 350 ms. Three calls run: used 3. One is released at t = 1000: used
2, cooling 1, so the level of a new call is 4, and `opens_at` is 1350. At 1350 the cooldown ends, the level is 3, and
the head of the first parked queue enters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fleetgate.core.limits import NEVER, REFUSED, Policy
from fleetgate.core.pools.cooldown import Cooldown
from fleetgate.core.pools.effective_caps import HELD_BACK, UNLIMITED, Need
from fleetgate.core.pools.hold_times import HoldTimes
from fleetgate.core.pools.limiter import Limiter
from fleetgate.core.pools.parking import ParkingLot
from fleetgate.core.pools.resource import Resource
from fleetgate.core.pools.usage_gate import APART_MS, UsageGate

if TYPE_CHECKING:
    from fleetgate.core.queue.queue import Queue

# Where the limit is learned, the usage gate is off for calls shorter than this, and for pools that release slots more
# often than this: each answer admits one call, so the queue would only wait for answers.
SHORT_MS: Final = 3_000
TURN_MS: Final = 700

FOREVER: Final = 1 << 53  # a pause without an end; fits every JSON reader


class Reservation:
    """Slots of a pool that are kept for the head of one queue."""

    __slots__ = ("own_limit", "queue", "slots")

    def __init__(self, queue: Queue, own_limit: int) -> None:
        self.queue = queue
        self.slots = queue.slots
        self.own_limit = own_limit


class Pool(Resource):
    """A named scarce resource."""

    __slots__ = (
        "account",
        "cap",
        "cooldown",
        "foreign",
        "full_at",
        "hold_times",
        "host",
        "incident_seq",
        "kind",
        "limiter",
        "pause_cause",
        "paused_until",
        "people",
        "project",
        "reservation",
        "usage_gate",
        "used",
    )

    def __init__(self, need: Need, weights: dict[str, int] | None = None) -> None:
        self.kind = need.cap.kind
        super().__init__(f"{self.kind} {need.pool}", need.pool, weights)
        self.account = need.account
        self.host = need.host
        self.project = need.project
        self.cap = need.cap
        self.used = 0  # slots of leases
        self.foreign = 0  # slots of agents started outside Fleetgate
        self.people = 0  # queues of interactive requests that wait here
        self.paused_until = 0
        self.pause_cause = ""
        self.incident_seq = 0  # the number of the event that last paused it for a rate limit
        self.cooldown = Cooldown()
        self.limiter = Limiter()
        self.hold_times = HoldTimes()
        self.usage_gate = UsageGate()
        self.reservation: Reservation | None = None
        self.full_at = NEVER  # with this many slots taken no parked queue can enter; NEVER: unknown
        self.refresh()

    def __repr__(self) -> str:
        extra = f", {self.cooldown.slots} cooling" if self.cooldown.slots else ""
        paused = f", paused until {self.paused_until}" if self.paused_until else ""
        limit = "unlimited" if self.limit >= UNLIMITED else str(self.limit)
        return f"<Pool {self.key}: {self.used} of {limit}{extra}{paused}>"

    @property
    def is_of_session(self) -> bool:
        """Whether it counts the calls of one session: there are many, and none lasts."""
        return self.cap.selector.scope == "session"

    # The limit.

    def refresh(self) -> None:
        """Work out the limit again, after the cap or what was learned has changed."""
        self.limiter.configure(self.cap)
        self.usage_gate.apart_ms = APART_MS if self.cap.learns else 0
        self._update_full_at()

    def _update_full_at(self) -> None:
        undecided = self.limiter.may_probe or self.cap.usage_gate or self.parking.has_own_limits
        self.full_at = NEVER if undecided else self.limiter.limit

    @property
    def limit(self) -> int:
        """The limit in force; UNLIMITED: none."""
        return self.limiter.limit

    def limit_for(self, own_limit: int) -> int:
        """The limit in force for a request: its own, or the pool's, without what it must leave to others."""
        if own_limit != HELD_BACK:
            return self.limiter.limit_for(own_limit)
        limit, cap = self.limiter.limit, self.cap
        return limit if cap.lendable and not self.people else limit - cap.held_back(limit)

    @property
    def configured_cap(self) -> int | None:
        """The cap, or what follows from free memory where it is automatic; None: there is none."""
        return self.limiter.auto_cap if self.cap.auto else self.cap.cap

    @property
    def policy(self) -> Policy:
        return self.limiter.policy(self.cap)

    @property
    def cooldown_ms(self) -> int:
        """How long a released slot stays taken: what was learned, unless a person set it."""
        return self.cap.cooldown_ms if self.limiter.adaptive is None else self.limiter.adaptive.lag_ms

    # Whether a request may enter.

    def occupied(self, now: int) -> int:
        """Slots that cannot be granted now: granted, cooling, or taken by foreign agents."""
        self.cooldown.expire(now)
        return self.used + self.cooldown.slots + self.foreign

    def blocks(self, slots: int, own_limit: int, queue: Queue | None, now: int) -> bool:
        """Whether a request of `queue` cannot have `slots` here now; `own_limit` 0 means the pool's."""
        return self.opens_at(slots, own_limit, queue, now) > now

    def opens_at(self, slots: int, own_limit: int, queue: Queue | None, now: int) -> int:
        """From when on it can have them, 0: now; else when to look again (NEVER: time alone opens nothing)."""
        if now < self.paused_until:
            return self.paused_until
        cooldown, limiter, used = self.cooldown, self.limiter, self.used
        cooling = cooldown.heap
        if cooling and cooling[0][0] <= now:
            cooldown.expire(now)
        level = used + cooldown.slots + self.foreign + slots
        if level > self.full_at and not own_limit:
            return cooling[0][0] if cooling else NEVER
        limit, adaptive = limiter.limit, limiter.adaptive
        if own_limit:
            limit = self.limit_for(own_limit)
        if adaptive is None or (own_limit and limit >= UNLIMITED):
            moment = 0 if level <= limit else NEVER
        elif self.usage_gate.answered_at == now and (count := self.provider_count(now)) is not None:
            moment = adaptive.admits_at(max(count, used) + slots, limit, now, used, counted=True)
        else:
            moment = adaptive.admits_at(level, limit, now, used, cooldown.slots)
        if moment <= now:
            kept = self.reservation
            if kept is None or kept.queue is queue or own_limit >= UNLIMITED:
                return 0
            if level + kept.slots <= self.limit_for(kept.own_limit):
                return 0
            moment = NEVER
        return cooling[0][0] if cooling and cooling[0][0] < moment else moment

    def stays_full(self, now: int) -> bool:
        """Whether a slot that was just released opens nothing for the parked queues, and a look is due when one may.

        All slots are taken or cooling, and the deadline is set for the end of the first cooldown.
        """
        cooling = self.cooldown.heap
        if not cooling or self.used + self.cooldown.slots + self.foreign < self.full_at:
            return False
        return now < self.parking.timer_at <= cooling[0][0] and self.reservation is None

    def can_keep(self, slots: int, own_limit: int, now: int) -> bool:
        """Whether it is of use to keep slots for a request until others have released theirs.

        A request whose environment allows it less than others waits for a quiet moment; nothing is held back for it.
        """
        limit = self.limit_for(own_limit)
        lower = limit < self.limit and own_limit != HELD_BACK
        return now >= self.paused_until and not lower and limit - self.foreign >= slots

    def changes_at(self, now: int) -> int:
        if now < self.paused_until:
            return self.paused_until
        taken, cooling = self.occupied(now), self.cooldown.heap
        adaptive = self.limiter.adaptive
        first = cooling[0][0] if cooling else NEVER
        if adaptive is not None:
            for (slots, own_limit), lot in self.parking.lots.items():
                if lot.projects:
                    limit = self.limit_for(own_limit)
                    moment = adaptive.admits_at(taken + slots, limit, now, self.used, self.cooldown.slots)
                    if now < moment < first:
                        first = moment
        return first

    # The usage gate.

    @property
    def gated(self) -> bool:
        """Whether waiting requests enter only by the provider's own count, and a waiting process can ask for it."""
        if not self.usage_gate.askers or not self.cap.usage_gate or self.limit >= UNLIMITED:
            return False
        if self.limiter.adaptive is None or self.hold_times.count < 8:
            return True
        mean_ms = self.hold_times.mean_ms
        return mean_ms >= SHORT_MS and mean_ms >= TURN_MS * self.limit

    def provider_count(self, now: int) -> int | None:
        """What the provider says is in flight, at this very moment; None: it says nothing, or is not asked."""
        return self.usage_gate.seen(now) if self.gated else None

    def awaits_answer(self, slots: int, queue: Queue, now: int) -> bool:
        """Whether the usage gate keeps a request of `queue` from slots that are free here (rules G1, G5)."""
        if not self.gated or self.usage_gate.room >= slots:
            return False
        return queue.waiting > 0 or self._has_admissible(now)

    def _has_admissible(self, now: int) -> bool:
        """Whether a queue is parked here that there is room for: it waits for the provider's answer, then."""
        return any(
            lot.first() is not None
            for (slots, own_limit), lot in self.parking.lots.items()
            if lot.projects and not self.blocks(slots, own_limit, None, now)
        )

    # Leases.

    def grant_slots(self, ident: str, slots: int, project: str, charge_ms: int, order: int, now: int) -> None:
        """Count a lease, and charge its project what it is expected to hold."""
        used, adaptive, usage_gate = self.used, self.limiter.adaptive, self.usage_gate
        if adaptive is not None:
            if usage_gate.answered_at == now and (count := self.provider_count(now)) is not None:
                adaptive.admitted(ident, max(count, used) + slots, now, used, counted=True)
            else:
                adaptive.admitted(ident, self.occupied(now) + slots, now, used)
        if usage_gate.askers or usage_gate.asked_by:
            usage_gate.granted += slots
        self.used = used + slots
        self.shares.charge(project, charge_ms * slots, order, now)

    def release_slots(
        self, ident: str, slots: int, project: str, charge_ms: int, held_ms: int, outcome: str, now: int, tokens: int
    ) -> None:
        """A lease ended after `held_ms`: its slots cool down, and its project is charged what it really took.

        `charge_ms` was charged for a slot when it was granted. Where its tokens are known (not 0), they count
        instead of its time.
        """
        self.used -= slots
        limiter = self.limiter
        adaptive = limiter.adaptive
        if adaptive is None:
            cooldown = self.cap.cooldown_ms
        else:
            adaptive.released(ident, slots, outcome, now)
            cooldown = 0 if outcome in REFUSED else adaptive.lag_ms  # a refused call was never counted
            if adaptive.limit != limiter.limit:
                limiter.limit = adaptive.limit
                self._update_full_at()
        if cooldown:
            self.cooldown.add(now + cooldown, slots)
        if self.usage_gate.askers:
            self.usage_gate.freed(now, cooldown)
        cost_ms = (held_ms if held_ms > 0 else 1) * slots
        if tokens:
            cost_ms = self.shares.cost_of(tokens, cost_ms, now)
        self.shares.adjust(project, cost_ms - charge_ms * slots + cooldown * slots)
        self.hold_times.observe(held_ms)

    def undo_grant(self, ident: str, slots: int, project: str, charge_ms: int, now: int) -> None:
        """A grant was never used: nothing cools down, and nothing is learned."""
        self.used -= slots
        if self.limiter.adaptive is not None:
            self.limiter.adaptive.released(ident, slots, "rate_limited", now)
        self.shares.refund(project, charge_ms * slots)

    # Parked queues.

    def park(self, queue: Queue, own_limit: int) -> None:
        self.parking.add(queue, own_limit)
        if own_limit:
            self.full_at = NEVER

    def first_admissible(self, now: int) -> Queue | None:
        cooldown, parking = self.cooldown, self.parking
        cooling = cooldown.heap
        if cooling and cooling[0][0] <= now:
            cooldown.expire(now)
        if self.used + cooldown.slots + self.foreign >= self.full_at and now >= self.paused_until:
            parking.look_at = cooling[0][0] if cooling and parking.occupied else NEVER
            return None
        best: Queue | None = None
        look_at = NEVER
        gate, rank = self.cap.usage_gate, self.shares.rank
        for (slots, own_limit), lot in parking.lots.items():
            if not lot.projects:
                continue
            opens_at = self.opens_at(slots, own_limit, None, now)
            if opens_at > now:
                if opens_at < look_at:
                    look_at = opens_at
            elif not gate or slots <= self.usage_gate.room or not self.gated:
                first = lot.first()
                if best is None or (first is not None and rank(first) < rank(best)):
                    best = first
        if gate and parking.occupied:  # what an answer allows holds for this moment only
            look_at = self.changes_at(now)
        parking.look_at = look_at
        return best

    def first_admissible_of(self, project: str, now: int) -> Queue | None:
        if self.parking.holds_one_project():
            return None
        queues = [queue for lot in self._open_lots(now) if (queue := lot.of_project(project)) is not None]
        return min(queues, key=self.shares.rank, default=None)

    def _open_lots(self, now: int) -> list[ParkingLot]:
        """The lots that this pool has room for."""
        room = self.usage_gate.room if self.gated else UNLIMITED
        return [
            lot
            for (slots, own_limit), lot in self.parking.lots.items()
            if lot.projects and slots <= room and not self.blocks(slots, own_limit, None, now)
        ]
