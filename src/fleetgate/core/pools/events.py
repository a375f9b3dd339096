"""The events about caps and the config file. `core/events.py` has all events; readers take them from there."""

from msgspec import Struct

from fleetgate.core.budgets.calendar import UTC, Zone
from fleetgate.core.entities import AccountSet, BudgetRule, PlanRule, Rule


class RuleSet(Struct, tag="rule_set", omit_defaults=True):
    """A cap or cooldown was set at run time; `rule` is all that is now set at run time for its selector."""

    rule: Rule
    cap_set: bool = False  # a person set the cap, and not only its options (rule P3)
    by: str = ""


class CapRemoved(Struct, tag="cap_removed", omit_defaults=True):
    """A selector has no cap, whatever the file says."""

    kind: str
    selector: str
    by: str = ""


class CapReset(Struct, tag="cap_reset", omit_defaults=True):
    """What was set at run time for a selector is forgotten."""

    kind: str
    selector: str
    by: str = ""


class SelectorSeen(Struct, tag="selector_seen"):
    """The environment of a request caps a selector that nothing else caps: it is counted from now on."""

    kind: str
    selector: str


class FileLoaded(Struct, tag="file_loaded", omit_defaults=True):
    """The config file's caps came into force."""

    path: str
    digest: str
    modified: int
    rules: tuple[Rule, ...]
    seniority_ms: int | None = None
    budgets: tuple[BudgetRule, ...] = ()
    zone: Zone = UTC
    plans: tuple[PlanRule, ...] = ()
    preempt_after_ms: int = 0
    weights: tuple[tuple[str, int], ...] = ()
    by: str = ""
    account_sets: tuple[AccountSet, ...] = ()
