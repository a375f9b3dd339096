"""Which rates and budgets are in force, and which of them a request needs (rule V1).

Two sources, the later over the earlier: the config file, and what was set at run time. Beside them there are the rates
that providers report in their headers (rule V6); a request needs both, so the smaller one decides.

A selector makes one budget for each of its instances, as a cap makes pools: `project` makes one for each project.
Where two selectors make the same budget, the one that names the instance goes first: `project:web` before `project`.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from fleetgate.core.entities import BudgetRule, Spec
from fleetgate.core.model_names import Model, Selector, parse_selector, pool_id
from fleetgate.core.pools.effective_caps import makes

RATE_MS: Final = 3_600_000  # a period of up to an hour refills continuously; a longer one is a window
PROVIDER: Final = "provider"  # the source, and the period in the name, of what a provider reports
Key = tuple[str, str, str]  # selector, unit, period


class BudgetNeed(Struct, frozen=True):
    """One budget that a request needs."""

    name: str  # instance, unit and period: `project:web usd/day`
    rule: BudgetRule
    source: str  # file, run time or provider

    @property
    def key(self) -> str:
        """The key of its resource. No pool has such a key: theirs begin with a kind."""
        return budget_key(self.name)

    @property
    def is_rate(self) -> bool:
        """Whether it refills continuously. What providers report always does."""
        return self.source == PROVIDER or 0 < self.rule.per_ms <= RATE_MS


def rule_key(rule: BudgetRule) -> Key:
    return rule.selector, rule.unit, rule.per


def budget_key(name: str) -> str:
    return f"budget {name}"


def budget_name(instance: str, rule: BudgetRule) -> str:
    return f"{instance} {rule.unit}/{rule.per}"


class BudgetRules:
    """The two sources, the providers' rates, and what follows from them."""

    def __init__(self) -> None:
        self.file: dict[Key, BudgetRule] = {}
        self.runtime: dict[Key, BudgetRule | None] = {}  # None: removed, whatever the file says
        self.provider: dict[str, dict[str, BudgetRule]] = {}  # by model and unit
        self._in_force: list[tuple[Selector, BudgetRule, str]] = []

    @property
    def any(self) -> bool:
        return bool(self._in_force or self.provider)

    def merge(self) -> None:
        """Work out what is in force; after a source has changed."""
        merged: dict[Key, tuple[BudgetRule | None, str]] = {key: (rule, "file") for key, rule in self.file.items()}
        merged |= {key: (rule, "run time") for key, rule in self.runtime.items()}
        found = [
            (parse_selector(rule.selector), rule, source)
            for _, (rule, source) in sorted(merged.items())
            if rule is not None
        ]
        found.sort(key=_names_no_instance)
        self._in_force = found

    def rules(self) -> list[tuple[BudgetRule, str]]:
        """What is in force, with its source; without the providers' rates."""
        return [(rule, source) for _, rule, source in self._in_force]

    def find(self, name: str) -> BudgetNeed | None:
        """What is in force for the budget of this name; None: nothing."""
        instance, _, rest = name.rpartition(" ")
        unit, _, per = rest.partition("/")
        if per == PROVIDER:
            known = self.provider.get(instance, {}).get(unit)
            return None if known is None else BudgetNeed(name, known, PROVIDER)
        for selector, rule, kind in self._in_force:
            if (rule.unit, rule.per) == (unit, per) and makes(selector, instance):
                return BudgetNeed(name, rule, kind)
        return None

    def needs(self, spec: Spec, model: Model | None) -> list[BudgetNeed]:
        """The budgets of a request for one candidate. Rates count model calls; windows count runs as well."""
        found: dict[str, BudgetNeed] = {}
        for selector, rule, source in self._in_force:
            if not _applies(selector, spec, model):
                continue
            instance = pool_id(selector, model, spec.host, spec.project, access_key=spec.access_key)
            need = BudgetNeed(budget_name(instance, rule), rule, source)
            if need.name not in found and (spec.kind == "requests" or not need.is_rate):
                found[need.name] = need
        needs = list(found.values())
        if model is not None and spec.kind == "requests":
            for rule in self.provider.get(str(model), {}).values():
                needs.append(BudgetNeed(budget_name(str(model), rule), rule, PROVIDER))
        return needs


def _names_no_instance(entry: tuple[Selector, BudgetRule, str]) -> bool:
    return not entry[0].names_one


def _applies(selector: Selector, spec: Spec, model: Model | None) -> bool:
    if selector.scope == "host":
        return bool(spec.host)
    if selector.scope == "model":
        return model is not None and selector.matches(model)
    return selector.is_for(spec.project, spec.access_key)
