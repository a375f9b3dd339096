"""Commands about rates and budgets: what a person sets, and what providers report (rules V1, V6 to V8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.budgets.budget import NOTHING, Budget
from fleetgate.core.budgets.calendar import UNITS as CALENDAR
from fleetgate.core.budgets.calendar import next_boundary
from fleetgate.core.budgets.rules import PROVIDER, RATE_MS, budget_name, rule_key
from fleetgate.core.entities import BudgetRule, Lease
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.model_names import parse_selector, shown
from fleetgate.core.state.budget_events import MINUTE_MS, provider_rule
from fleetgate.core.state.state import State
from fleetgate.core.usage import UNITS, Reading

WHEN_EMPTY: Final = ("hold", "stop", "fallback", "warn")
ESTIMATES: Final = ("expected", "max")
MOST: Final = 10**15
MOST_MODELS: Final = 256  # whose rates are kept
LONGEST_MS: Final = 366 * 86_400_000


class BudgetHandler:
    """The budgets of one state."""

    def __init__(self, state: State, record: Callable[[ev.Event], None]) -> None:
        self._state = state
        self._record = record

    def set(self, command: cmd.SetBudget, now: int) -> None:
        check_budget(command.rule)
        self._record(ev.BudgetSet(command.rule))

    def remove(self, command: cmd.RemoveBudget, now: int) -> None:
        key = (command.selector, command.unit, command.per)
        in_force = [rule_key(rule) for rule, _ in self._state.budget_rules.rules()]
        if key not in in_force:
            raise NotFound(f"no budget of {command.selector} in {command.unit} per {command.per}{_listed(in_force)}")
        self._record(ev.BudgetRemoved(*key))

    def unset(self, command: cmd.UnsetBudget, now: int) -> None:
        key = (command.selector, command.unit, command.per)
        runtime = self._state.budget_rules.runtime
        if key not in runtime:
            raise NotFound(
                f"no budget of {command.selector} in {command.unit} per {command.per} was set at run time"
                f"{_listed(list(runtime))}"
            )
        self._record(ev.BudgetUnset(*key))

    def reset(self, command: cmd.ResetBudget, now: int) -> None:
        self._record(ev.BudgetReset(self._named(command.budget).id))

    def add(self, command: cmd.AddBudget, now: int) -> None:
        budget = self._named(command.budget)
        if not 0 < command.amount <= MOST:
            raise BadRequest(f"add {command.amount}: valid is 1 to {MOST}")
        if command.until and command.until <= now:
            raise BadRequest("until a moment that is over: name one that is to come")
        self._record(ev.BudgetAdded(budget.id, command.amount, command.until or self._window_end(budget, now)))

    def _window_end(self, budget: Budget, now: int) -> int:
        if now < budget.ends_at:
            return budget.ends_at
        rule = budget.rule
        return now + rule.per_ms if rule.per_ms else next_boundary(rule.per, now, self._state.zone)

    def _named(self, name: str) -> Budget:
        """The budget of this name, whether something of it was used or not."""
        state = self._state
        need = state.budget_rules.find(name)
        if need is None:
            known = sorted(budget.id for budget in state.budgets.values())
            listed = f"; there are: {', '.join(known[:20])}" if known else ""
            raise NotFound(f"no budget {shown(name)}{listed} (set one with `fleetgate budget set`)")
        return state.budget(need)

    def report_reached(self, now: int) -> None:
        """Record which windows are used up to a percentage that is reported."""
        state = self._state
        touched, state.touched_budgets = state.touched_budgets, {}
        for budget in touched.values():
            percent = budget.percent_reached(now)
            if percent > budget.reached:
                used, amount = budget.used(now), budget.amount(now)
                when_empty = budget.rule.when_empty
                self._record(ev.BudgetReached(budget.id, percent, used, amount, budget.ends_at, when_empty))

    # What providers report.

    def observe_rates(self, command: cmd.ObserveRates, now: int) -> None:
        lease = self._state.leases.get(command.id)
        if lease is not None:
            self.observe(lease, command.readings, now)

    def observe(self, lease: Lease, readings: tuple[Reading, ...], now: int) -> None:
        """Record the rates that a response reports, where that changes decisions."""
        news = [seen for reading in readings if (seen := self._news(lease, reading, now)) is not None]
        if news:
            self._record(ev.RatesObserved(lease.model, tuple(news)))

    def _news(self, lease: Lease, reading: Reading, now: int) -> Reading | None:
        """A reading, corrected for what was sent since; None where it says nothing new."""
        if not _is_valid(reading) or not lease.model:
            return None
        budget = self._rate_of(lease.model, reading.unit)
        if budget is None:
            provider = self._state.budget_rules.provider
            return reading if lease.model in provider or len(provider) < MOST_MODELS else None
        reading = replace(reading, expected=_is_not_reserved(reading, budget, lease, now))
        free = budget.free(now)
        least, most = budget.bounds(lease.id, reading.remaining)
        seen = replace(reading, remaining=min(max(free, least), most))
        if reading.limit != budget.rule.amount or (reading.expected and budget.rule.estimate == "max"):
            return seen
        # More than we think matters little; less than we think means refusals, unless there is plenty.
        has_plenty = min(seen.remaining, free) * 2 > reading.limit
        is_close = -reading.limit // 64 <= free - seen.remaining <= reading.limit // 128
        return None if has_plenty or is_close else seen

    def _rate_of(self, model: str, unit: str) -> Budget | None:
        rule = self._state.budget_rules.provider.get(model, {}).get(unit)
        return None if rule is None else self._state.budget_events.named(budget_name(model, rule))

    def refused(self, command: cmd.Release, lease: Lease, now: int) -> bool:
        """A provider refused a call because of one rate. Returns True if that rate is known: then only it is emptied.

        The call fits again when the provider says so; if it does not say when, as soon as the rate has refilled.
        """
        unit = command.refused_rate
        readings = {reading.unit: reading for reading in command.readings if _is_valid(reading)}
        budget = self._rate_of(lease.model, unit)
        if budget is not None:
            known = readings.get(unit, Reading(unit, budget.rule.amount, 0))
        elif unit in readings:
            known = readings[unit]
        else:
            return False
        rule = provider_rule(lease.model, known, None if budget is None else budget.rule)
        estimate = lease.ticket.estimate
        wanted = 1 if estimate is None else max(estimate.amount(unit), 1)
        portion = 0
        if budget is not None:
            wanted, portion = max(budget.wanted(lease.ticket), 1), budget.held.get(lease.id, NOTHING).amount
        wanted = min(wanted, known.limit)
        free = known.remaining if known.remaining < wanted else 0
        if command.retry_after_ms:
            free = min(free, wanted - rule.amount * command.retry_after_ms // rule.per_ms)
        if budget is not None:
            free = min(free, budget.free(now) + portion)
        # What the refused call reserved is given back when its lease ends, in a moment.
        known = replace(known, remaining=max(free, -known.limit) - portion, age_ms=0)
        others = [reading for reading in readings.values() if self._rate_of(lease.model, reading.unit) is None]
        others = [reading for reading in others if reading.unit != unit]
        self._record(ev.RatesObserved(lease.model, (known, *others), unit))
        return True


def _is_not_reserved(reading: Reading, budget: Budget, lease: Lease, now: int) -> bool:
    """Whether more remains than could, if the provider had reserved all the output that this call allows."""
    allowed, portion = lease.ticket.max_tokens, budget.held.get(lease.id)
    if reading.unit not in ("output", "tokens") or portion is None:
        return False
    if allowed * 32 < reading.limit or allowed > reading.limit:
        return False
    # Since the call was granted, time has refilled the bucket, and calls that ended have given back.
    refilled = reading.limit * (now - lease.granted_at) // (reading.per_ms or MINUTE_MS)
    returned = budget.returned - portion.returned
    return reading.remaining - refilled - returned > reading.limit - allowed // 2


def _is_valid(reading: Reading) -> bool:
    return (
        reading.unit in UNITS
        and reading.unit != "usd"
        and 0 < reading.limit <= MOST
        and -MOST <= reading.remaining <= MOST
        and 0 <= reading.reset_ms <= LONGEST_MS
        and 0 <= reading.per_ms <= LONGEST_MS
        and 0 <= reading.age_ms <= LONGEST_MS
    )


def check_budget(rule: BudgetRule) -> None:
    """Raise BadRequest or BadName for a budget that cannot be."""
    if parse_selector(rule.selector).scope == "session":
        raise BadRequest("session: only the calls in flight of a session are limited, with a cap; it has no budget")
    if rule.unit not in UNITS:
        raise BadRequest(f"unit {shown(rule.unit)}: valid are {', '.join(UNITS)}")
    if not 0 < rule.amount <= MOST:
        raise BadRequest(f"amount {rule.amount} for {rule.selector}: valid is 1 to {MOST}")
    if rule.per_ms:
        if rule.per in (*CALENDAR, PROVIDER) or not 1_000 <= rule.per_ms <= LONGEST_MS:
            raise BadRequest(f"per {shown(rule.per)}: valid is a duration of 1s to 366d")
    elif rule.per not in CALENDAR:
        raise BadRequest(f"per {shown(rule.per)}: valid are {', '.join(CALENDAR)}, or a duration such as 1m or 5h")
    if rule.burst and not (0 < rule.burst <= MOST and 0 < rule.per_ms <= RATE_MS):
        raise BadRequest(f"burst {rule.burst} per {rule.per}: only a rate, per hour or less, has a burst of 1 or more")
    if rule.when_empty not in WHEN_EMPTY:
        raise BadRequest(f"when_empty {shown(rule.when_empty)}: valid are {', '.join(WHEN_EMPTY)}")
    if rule.estimate not in ESTIMATES:
        raise BadRequest(f"estimate {shown(rule.estimate)}: valid are {', '.join(ESTIMATES)}")


def _listed(keys: list[tuple[str, str, str]]) -> str:
    known = [f"{selector} {unit}/{per}" for selector, unit, per in keys]
    return f"; there are: {', '.join(known)}" if known else ""
