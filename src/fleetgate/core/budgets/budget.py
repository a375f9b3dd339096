"""A budget: an amount of calls, tokens or money, and the queues that wait for a part of it (rules V1 to V5).

Theory of operation
===================

*Reserve, then settle.* When a request enters, what it is expected to use is taken out of each of its budgets; when it
ends, the difference to what it really used is given back, or taken as well. Both happen in the step that grants and
that ends the lease, so requests that run at the same time cannot all spend the same remainder. A lease that ends
without a word about its usage keeps what was reserved: it counts as used (rule V3).

*The question.* `opens_at(ticket, queue, now)` answers when a request fits: now, or at a moment that is exact for rates
(core/budgets/rate.py) and the end of the window for windows (core/budgets/window.py).

*Order.* A smaller request does not overtake a larger one that waits (rule V4), or a large one might wait for ever. In a
rate, no request enters past the first queue that is parked here; since nothing else is taken then, that queue enters at
the moment that was promised. In a window this holds within a project only: time frees nothing before the end of the
window, so what one project's head cannot use is left to the others.

*Runs.* A run reserves what runs like it used; its calls, which the proxy sees, draw on this reservation before they
take anything more. What is left at the end of the run is given back. A call that this covers takes nothing that others
wait for, so it enters past them.

*Invariant.* What is reserved is the sum of what the leases in `held` still hold. What is used, reserved and free adds
up to the amount.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fleetgate.core.budgets.amounts import amount_of
from fleetgate.core.budgets.rate import Rate
from fleetgate.core.budgets.rules import PROVIDER, BudgetNeed
from fleetgate.core.budgets.window import Window
from fleetgate.core.limits.adaptive_tuning import NEVER
from fleetgate.core.pools.parking import ParkingLot
from fleetgate.core.pools.resource import Resource

if TYPE_CHECKING:
    from fleetgate.core.budgets.calendar import Zone
    from fleetgate.core.entities import BudgetRule, Ticket
    from fleetgate.core.queue.queue import Queue

REACHED: Final = (50, 80, 100)  # percentages of a window that are reported


class Portion:
    """What a lease holds of a budget."""

    __slots__ = ("amount", "drawn", "returned", "taken", "window")

    def __init__(self, amount: int, window: int = 0, drawn: int = 0, taken: int = 0, returned: int = 0) -> None:
        self.amount = amount
        self.window = window  # the end of the window that it belongs to; 0: the budget is a rate
        self.drawn = drawn  # how much of it came from the reservation of its run
        self.taken = taken  # how much had been taken, in all, when it was granted
        self.returned = returned  # how much had been given back then


NOTHING: Final = Portion(0)  # never changed


class Budget(Resource):
    """An amount of one unit per period, for the requests of one selector's instance."""

    __slots__ = ("_lot", "_reserved", "held", "rate", "reached", "returned", "rule", "source", "taken", "window")

    def __init__(self, need: BudgetNeed, zone: Zone, at: int, weights: dict[str, int] | None = None) -> None:
        super().__init__(need.key, need.name, weights)
        rule = need.rule
        self.rule = rule
        self.source = need.source
        self.rate: Rate | None = None
        self.window: Window | None = None
        if need.is_rate:
            self.rate = Rate(rule.amount, rule.per_ms, rule.burst or rule.amount, at)
        else:
            self.window = Window(rule.amount, "" if rule.per_ms else rule.per, rule.per_ms, zone)
        self._lot = self.parking.lots[0, 0] = ParkingLot(self.shares)  # one for all: each head needs something else
        self.held: dict[str, Portion] = {}  # by lease
        self._reserved = 0  # of the current window, or of the rate
        self.taken = 0  # what was taken, in all
        self.returned = 0  # what was given back, in all
        self.reached = 0  # the highest percentage that was reported in this window

    def __repr__(self) -> str:
        return f"<Budget {self.id}: {self._reserved} reserved by {len(self.held)}>"

    def configure(self, rule: BudgetRule, source: str, zone: Zone, now: int) -> None:
        """Give the budget other numbers; what was used stays used."""
        self.rule, self.source = rule, source
        if self.rate is not None:
            burst = rule.burst or rule.amount
            if (self.rate.amount, self.rate.per_ms, self.rate.burst) != (rule.amount, rule.per_ms, burst):
                self.rate.change(rule.amount, rule.per_ms, burst, now)
        if self.window is not None:
            self.window.amount, self.window.zone = rule.amount, zone

    # What is left.

    def free(self, now: int) -> int:
        """What no lease has used or reserved; negative: overdrawn."""
        if self.rate is not None:
            return self.rate.free(now)
        assert self.window is not None
        return self.window.free(now)

    def amount(self, now: int) -> int:
        """How much there is in all: of a rate, what it can save up."""
        if self.rate is not None:
            return self.rate.burst
        assert self.window is not None
        return self.window.amount_at(now)

    def used(self, now: int) -> int:
        """What leases used that are over, or that settled it; of a rate, as far as it has not refilled."""
        return max(self.amount(now) - self.free(now) - self.reserved(now), 0)

    def reserved(self, now: int) -> int:
        """What running leases hold of the present window, or of the rate."""
        return self._reserved if self.rate is not None or now < self.ends_at else 0

    def is_spent(self, now: int) -> bool:
        """Whether nothing is left."""
        return self.free(now) <= 0

    @property
    def ends_at(self) -> int:
        """The end of the current window; 0 for a rate, and before a window's first use."""
        return self.window.ends_at if self.window is not None else 0

    def percent_reached(self, now: int) -> int:
        """The highest of the reported percentages that is used; 0 for rates, which refill all the time."""
        if self.window is None:
            return 0
        used, amount = self.used(now), self.window.amount_at(now)
        return max((percent for percent in REACHED if used * 100 >= amount * percent), default=0)

    # Whether a request may enter.

    def wanted(self, ticket: Ticket) -> int:
        """What is reserved for a request."""
        usage, unit = ticket.estimate, self.rule.unit
        if usage is None:
            return 0
        if self.rule.estimate == "max":
            if self.source != PROVIDER:
                return amount_of(ticket.most or usage, unit)
            if unit in ("output", "tokens"):  # providers reserve all the output that a call allows
                return amount_of(usage, unit) + max(ticket.max_tokens - usage.output, 0)
        return amount_of(usage, unit)

    def bounds(self, ident: str, remaining: int) -> tuple[int, int]:
        """The least and the most that can be free, if so much remained when the response to a lease's call began.

        What was taken since the lease was granted may not have reached the provider yet; what was given back since
        then may not have been known to it.
        """
        portion = self.held.get(ident, NOTHING)
        return remaining - (self.taken - portion.taken), remaining + (self.returned - portion.returned)

    def opens_at(self, ticket: Ticket, queue: Queue, now: int) -> int:
        """When the request `ticket` of `queue` fits, 0: now; NEVER: when the one before it has entered."""
        if self.rule.when_empty == "warn":
            return 0
        if self._is_covered(ticket, now):
            return 0  # it takes nothing that others wait for
        if self._is_behind(queue, now):
            return NEVER
        return self._fits_at(ticket, now)

    def _is_covered(self, ticket: Ticket, now: int) -> bool:
        """Whether this is a call of a run that holds enough of the window for it."""
        if not ticket.run or self.window is None:
            return False
        return self._current(ticket.run, now).amount >= max(self.wanted(ticket), 1)

    def _is_behind(self, queue: Queue, now: int) -> bool:
        """Whether another queue is parked here that goes first.

        In a window, one for which there is enough from now on is about to be looked at, and waits here no longer.
        """
        lot = self._lot
        if not lot.projects:
            return False
        first = lot.first() if self.rate is not None else lot.of_project(queue.project)
        if first is None or first is queue or (self.rate is None and not self._fits_at(first.first(), now)):
            return False
        return not queue.waiting or self.shares.rank(first) < self.shares.rank(queue)

    def _fits_at(self, ticket: Ticket, now: int) -> int:
        wanted = self.wanted(ticket)
        if self.rate is not None:
            moment = self.rate.fits_at(wanted or 1, now)
        else:
            assert self.window is not None
            covered = self._current(ticket.run, now).amount if ticket.run else 0
            moment = self.window.fits_at((wanted - covered) or 1, now)
        return 0 if moment <= now or self._is_covered(ticket, now) else moment

    def _current(self, ident: str, now: int) -> Portion:
        """What a lease holds of the present window; nothing if that is another one."""
        held = self.held.get(ident, NOTHING)
        return held if self._is_current(held, now) else NOTHING

    def _is_current(self, held: Portion, now: int) -> bool:
        return self.rate is not None or now < held.window == self.ends_at

    def start_of(self, ticket: Ticket, now: int) -> tuple[int, int]:
        """In how many ms a request is expected to fit, and how long a rate takes to refill as much."""
        wait_ms = max(self._fits_at(ticket, now) - now, 0)
        if self.rate is None:
            return wait_ms, 0
        return wait_ms, -(-max(self.wanted(ticket), 1) * self.rate.per_ms // self.rate.amount)

    # Leases.

    def reserve(self, ticket: Ticket, project: str, now: int) -> None:
        """A request entered: take what it is expected to use."""
        wanted = self.wanted(ticket)
        drawn = window = 0
        if ticket.run and self.window is not None:
            run = self._current(ticket.run, now)
            drawn = min(wanted, run.amount)
            if drawn:
                run.amount -= drawn
        if self.rate is not None:
            self.rate.take(wanted, now)
        else:
            window = self._take(wanted - drawn, now)
        self.taken += wanted
        self._reserved += wanted - drawn
        self.held[ticket.id] = Portion(wanted, window, drawn, self.taken, self.returned)
        self.shares.charge(project, wanted, ticket.order, now)

    def settle(self, ticket: Ticket, project: str, amount: int, now: int) -> None:
        """A lease is over, and used this much beside what it spent before."""
        if self.source == PROVIDER and ticket.id not in self.held:
            return  # it began before the provider reported this rate, which counts it already
        held = self.held.pop(ticket.id, NOTHING)
        excess = amount - held.amount
        if excess > 0:
            self.taken += excess
        else:
            self.returned -= excess
        self.shares.adjust(project, excess)
        if not self._is_current(held, now):  # what it used counts in the present window
            self._take(amount, now)
            return
        self._reserved -= held.amount
        if self.rate is not None:
            self.rate.take(amount - held.amount, now)
        else:
            self._give_back(ticket, held, held.amount - amount, now)

    def _give_back(self, ticket: Ticket, held: Portion, rest: int, now: int) -> None:
        """Return the rest of a reservation, first to the run that it came from; a negative rest is taken."""
        assert self.window is not None
        self.window.give_back(rest, held.window)
        run = self._current(ticket.run, now) if held.drawn and rest > 0 else NOTHING
        if run.window:
            returned = min(held.drawn, rest)
            run.amount += returned
            self._take(returned, now)
            self._reserved += returned

    def spend(self, ident: str, amount: int, now: int) -> None:
        """A lease that goes on used this much: first of what it holds, then beyond it."""
        held = self._current(ident, now)
        covered = min(held.amount, amount)
        if covered:
            held.amount -= covered
            self._reserved -= covered
        self.taken += amount - covered
        if self.rate is not None:
            self.rate.take(amount - covered, now)
        else:
            self._take(amount - covered, now)

    def keep(self, ident: str, now: int) -> None:
        """A lease is over and its usage is not known: what it still holds counts as used."""
        held = self.held.pop(ident, NOTHING)
        if self._is_current(held, now):
            self._reserved -= held.amount

    def _take(self, amount: int, now: int) -> int:
        """Count an amount in the window. A new window has nothing reserved, and has reached nothing."""
        assert self.window is not None
        if now >= self.window.ends_at:
            self.reached = self._reserved = 0
        return self.window.take(amount, now)

    def reset(self, now: int) -> None:
        """Nothing is used but what running leases hold."""
        self.reached = 0
        if self.rate is not None:
            self.rate.set_free(self.rate.burst - self._reserved, now)
        else:
            assert self.window is not None
            self.window.used = self.reserved(now)

    def recount(self, held: dict[str, Portion], now: int) -> None:
        """Restore what leases hold, after a snapshot; what is taken of the rate or window is restored apart."""
        self.held = held
        self._reserved = sum(each.amount for each in held.values() if self._is_current(each, now))

    # Parked queues.

    @property
    def is_awaited(self) -> bool:
        """Whether a queue is parked here, or was."""
        return bool(self._lot.projects)

    def park(self, queue: Queue, own_limit: int) -> None:
        self._lot.add(queue)

    def changes_at(self, now: int) -> int:
        if self.window is not None:
            return self.window.ends_at
        queue = self._lot.first()
        return NEVER if queue is None else max(self._fits_at(queue.first(), now), now + 1)

    def first_admissible(self, now: int) -> Queue | None:
        self.parking.look_at = NEVER
        if not self._lot.projects:
            return None
        return self._first_of_rate(now) if self.rate is not None else self._first_of_window(now)

    def _first_of_rate(self, now: int) -> Queue | None:
        first = self._lot.first()
        if first is None:
            return None
        moment = self._fits_at(first.first(), now)
        if not moment:
            return first
        self.parking.look_at = moment
        return None

    def _first_of_window(self, now: int) -> Queue | None:
        best: Queue | None = None
        for project in list(self._lot.projects):
            queue = self._lot.of_project(project)
            if queue is None:
                continue
            if self._fits_at(queue.first(), now):
                self.parking.look_at = self.ends_at
            elif best is None or self.shares.rank(queue) < self.shares.rank(best):
                best = queue
        return best

    def first_admissible_of(self, project: str, now: int) -> Queue | None:
        if self.rate is not None or len(self._lot.projects) < 2:
            return None
        queue = self._lot.of_project(project)
        return queue if queue is not None and not self._fits_at(queue.first(), now) else None
