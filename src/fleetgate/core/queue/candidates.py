"""The candidates of a request: each of its models, at each account of a set where it names no account (rule Z1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetgate.core.accounts.member import Member
from fleetgate.core.entities import AccountSet, Spec
from fleetgate.core.model_names import Model, account_of, parse_model, parse_selector
from fleetgate.core.queue.queue import Candidate

if TYPE_CHECKING:
    from fleetgate.core.state.state import State


class CandidateMaker:
    """Makes the candidates of one state's requests."""

    def __init__(self, state: State) -> None:
        self._state = state

    def of_request(self, spec: Spec) -> tuple[Candidate, ...]:
        """The candidates in order; those of a conversation begin with its home, if that is of the first model."""
        models = [parse_model(text) for text in spec.models]
        accounts = self._state.accounts
        if not accounts.rules or not models:
            return tuple([self.make(spec, model, group) for group, model in enumerate(models or (None,))])
        found: dict[str, Candidate] = {}
        for group, model in enumerate(models):
            rule = accounts.of_model(model)
            for each in accounts.members_of(model, spec.accounts):
                if str(each) not in found:
                    candidate = found[str(each)] = self.make(spec, each, group)
                    if rule is not None and (each.account in rule.use or each.account in rule.then):
                        candidate.member = self._member(rule, each, candidate)
        candidates = list(found.values())
        if spec.home:
            candidates.sort(key=lambda each: (each.group, each.group > 0 or _account(each) != spec.home))
        return tuple(candidates)

    def make(self, spec: Spec, model: Model | None, group: int = 0) -> Candidate:
        """One candidate of a request."""
        state = self._state
        needs = tuple([(state.pool(need), need.limit) for need in state.rules.needs(spec, model)])
        rules = state.budget_rules
        budgets = tuple([state.budget(need) for need in rules.needs(spec, model)]) if rules.any else ()
        return Candidate(model, needs, hold_key(spec), budgets, state.plans.of_request(spec, model), group)

    def _member(self, rule: AccountSet, model: Model, candidate: Candidate) -> Member:
        state, account = self._state, account_of(model)
        pools = tuple(pool for pool, _ in candidate.needs if pool.account)
        budgets = tuple(each for each in candidate.budgets if parse_selector(each.rule.selector).scope == "model")
        windows = tuple(state.plans.of_model(model))
        return Member(
            rule, model.account, account, pools, budgets, windows, state.accounts.ramp(account), state.accounts.homes
        )


def _account(candidate: Candidate) -> str:
    return account_of(candidate.name) if candidate.name is not None else ""


def hold_key(spec: Spec) -> str:
    """The key under which the state has the hold time of a request's project."""
    return f"{spec.kind} {spec.project}"
