"""Rates and budgets as docs/rules.md says (rules V1 to V3), with exact fractions, by the events alone."""

from __future__ import annotations

from fractions import Fraction

from fleetgate.core import events as ev
from fleetgate.core.entities import BudgetRule, Ticket
from fleetgate.core.state.state import State
from fleetgate.core.views.budget_views import budget_views
from tests.property.harness import Bench


class Account:
    """The model of one budget."""

    def __init__(self, rule: BudgetRule, now: int) -> None:
        self.rule = rule
        self.rate = 0 < rule.per_ms <= 3_600_000
        self.full = Fraction(rule.burst or rule.amount)
        self.level, self.at = self.full, now
        self.window = 0
        self.held: dict[str, tuple[int, int, int]] = {}  # by lease: amount, window, drawn from the run
        self.excess = 0  # what calls used beyond their estimates

    def _advance(self, now: int) -> None:
        if self.rate:
            self.level = min(self.full, self.level + Fraction(now - self.at) * self.rule.amount / self.rule.per_ms)
        elif now >= self.window:
            self.level = self.full
        self.at = now

    def _open(self, now: int) -> None:
        if not self.rate and now >= self.window:
            day = 86_400_000
            self.window = now + self.rule.per_ms if self.rule.per_ms else (now // day + 1) * day

    def free(self, now: int) -> int:
        self._advance(now)
        return self.level.numerator // self.level.denominator

    def _current(self, held: tuple[int, int, int] | None, now: int) -> bool:
        return held is not None and (self.rate or now < held[1] == self.window)

    def covered(self, run: str, now: int) -> int:
        held = self.held.get(run)
        return held[0] if held is not None and not self.rate and self._current(held, now) else 0

    def wanted(self, ticket: Ticket) -> int:
        usage = ticket.most if self.rule.estimate == "max" and ticket.most is not None else ticket.estimate
        return 0 if usage is None else usage.amount(self.rule.unit)

    def fits(self, ticket: Ticket, now: int) -> bool:
        self._advance(now)
        wanted, covered = self.wanted(ticket), self.covered(ticket.run, now)
        if self.rule.when_empty == "warn" or (covered and covered >= wanted):
            return True
        return self.level >= min(Fraction(max(wanted - covered, 1)), self.full) or self.level >= self.full

    def granted(self, ticket: Ticket, now: int) -> None:
        self._advance(now)
        wanted, drawn = self.wanted(ticket), 0
        if covered := self.covered(ticket.run, now):
            drawn = min(wanted, covered)
            amount, window, of_run = self.held[ticket.run]
            self.held[ticket.run] = (amount - drawn, window, of_run)
        self._open(now)
        self.level -= wanted - drawn
        self.held[ticket.id] = (wanted, self.window, drawn)

    def ended(self, ticket: Ticket, used: int | None, now: int) -> None:
        """`used` None: what is held counts as used."""
        self._advance(now)
        held = self.held.pop(ticket.id, None)
        amount, _, drawn = held or (0, 0, 0)
        if used is None:
            return
        self.excess += max(used - amount, 0)
        if not self._current(held, now) and not self.rate:
            self._open(now)
            self.level -= used
            return
        rest = amount - used
        self.level = min(self.level + rest, self.full)
        run = self.held.get(ticket.run)
        if drawn and rest > 0 and run is not None and self._current(run, now):
            back = min(drawn, rest)
            self.held[ticket.run] = (run[0] + back, run[1], run[2])
            self.level -= back

    def spent(self, ident: str, used: int, now: int) -> None:
        self._advance(now)
        held = self.held.get(ident)
        covered = min(held[0], used) if held is not None and self._current(held, now) else 0
        if held is not None and covered:
            self.held[ident] = (held[0] - covered, held[1], held[2])
        self.excess += used - covered
        if not self.rate:
            self._open(now)
        self.level -= used - covered

    def reserved(self, now: int) -> int:
        return sum(held[0] for held in self.held.values() if self._current(held, now))


class Model:
    """All budgets, by the events."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.tickets: dict[str, Ticket] = {}
        self.leases: dict[str, tuple[Ticket, list[Account], bool]] = {}  # and whether something was settled

    def read(self, event: ev.Event, now: int, state: State) -> None:
        if isinstance(event, ev.Queued):
            self.tickets[event.ticket.id] = event.ticket
        elif isinstance(event, ev.Granted):
            ticket = event.ticket or self.tickets.pop(event.id)
            found = []
            for budget in state.lease_candidates[event.id].budgets if event.id in state.lease_candidates else ():
                if budget.id not in self.accounts:
                    self.accounts[budget.id] = Account(budget.rule, now)
                found.append(self.accounts[budget.id])
                if budget.id.startswith("key:"):  # E1: a budget of a key is for that key's requests
                    assert budget.id.partition(" ")[0] == f"key:{ticket.spec.access_key}"
            for account in found:
                assert account.fits(ticket, now), f"{ticket.id} entered without {account.rule}"
                account.granted(ticket, now)
            self.leases[event.id] = (ticket, found, False)
        elif isinstance(event, ev.Settled):
            ticket, found, _ = self.leases[event.id]
            self.leases[event.id] = (ticket, found, True)
            for account in found:
                account.spent(event.id, event.usage.amount(account.rule.unit), now)
        elif isinstance(event, ev.Released | ev.Reclaimed):
            ticket, found, settled = self.leases.pop(event.id)
            usage = event.usage
            unknown = usage.source == "estimate" if usage is not None else not settled
            for account in found:
                used = None if unknown else 0 if usage is None else usage.amount(account.rule.unit)
                account.ended(ticket, used, now)
            if ticket.run in self.leases and usage is not None and (usage.calls or usage.tokens or usage.cost):
                owner, of_owner, _ = self.leases[ticket.run]
                self.leases[ticket.run] = (owner, of_owner, True)

    def check(self, bench: Bench) -> None:
        now = bench.now
        for view in budget_views(bench.state, now):
            account = self.accounts.get(view.name)
            if account is None:
                assert view.free == view.amount if not view.rate else view.free == view.burst
                continue
            assert view.free == account.free(now), view
            assert view.reserved == account.reserved(now), view
            full = view.burst if view.rate else view.amount
            assert view.used == max(full - view.free - view.reserved, 0)
            if view.when_empty != "warn" and account.free(now) < 0:
                largest = max([account.wanted(ticket) for ticket, *_ in self.leases.values()], default=0)
                assert -account.free(now) <= account.excess + max(largest - int(account.full), 0) + 1_000_000
