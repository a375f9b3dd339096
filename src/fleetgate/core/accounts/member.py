"""A member of a set: one account that a request may use, and how much is left of it (rule Z2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fleetgate.core.pools.effective_caps import UNLIMITED

if TYPE_CHECKING:
    from fleetgate.core.accounts.homes import Homes
    from fleetgate.core.accounts.ramp import Ramp
    from fleetgate.core.budgets.budget import Budget
    from fleetgate.core.entities import AccountSet
    from fleetgate.core.plans.window import PlanWindow
    from fleetgate.core.pools.pool import Pool

ALL: Final = 10_000  # of an account, in hundredths of a percent
_PART: Final = 1_000  # conversations are compared in thousandths of a slot


class Member:
    """One account of a set, as a request of one model sees it."""

    __slots__ = (
        "account",
        "budgets",
        "by_left",
        "homes",
        "name",
        "patience_ms",
        "pools",
        "ramp",
        "spill",
        "sticky",
        "windows",
    )

    def __init__(
        self,
        rule: AccountSet,
        name: str,
        account: str,
        pools: tuple[Pool, ...],
        budgets: tuple[Budget, ...],
        windows: tuple[PlanWindow, ...],
        ramp: Ramp,
        homes: Homes,
    ) -> None:
        self.name = name  # as the config has it
        self.account = account  # as `provider@account`
        self.spill = name in rule.then  # used only when none of the others has room
        self.by_left = rule.choose == "most-left"
        self.sticky = rule.sticky == "conversation"
        self.patience_ms = rule.patience_ms
        self.pools = pools  # what requests of this account need and requests of others do not
        self.budgets = budgets
        self.windows = windows
        self.ramp = ramp
        self.homes = homes

    def left(self, now: int) -> int:
        """How much of the account is left: of its slots, its budgets or its plan windows, whichever is the least."""
        least = ALL
        for pool in self.pools:
            if now < pool.paused_until:
                return 0
            taken = pool.occupied(now) if pool.cooldown.heap else pool.used + pool.foreign
            if taken:
                limit = pool.limiter.limit
                part = ALL - taken * ALL // limit  # of an unlimited one, all
                if part < least:
                    least = part
        if not self.windows and not self.budgets:
            return least if least > 0 else 0
        for window in self.windows:
            part = ALL - window.used(now)
            if part < least:
                least = part
        for budget in self.budgets:
            part = budget.free(now) * ALL // max(budget.amount(now), 1)
            if part < least:
                least = part
        return least if least > 0 else 0

    def crowd(self) -> int:
        """How many conversations the account is the home of, for each slot that it has."""
        number = self.homes.numbers.get(self.account, 0)
        if not number:
            return 0
        least = UNLIMITED
        for pool in self.pools:
            limit = pool.limiter.limit
            least = limit if limit < least else least
        return number * _PART // (1 if least >= UNLIMITED else least)
