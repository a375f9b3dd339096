"""The events about usage, rates and budgets. `core/events.py` has all events; readers take them from there."""

from msgspec import Struct

from fleetgate.core.entities import BudgetRule
from fleetgate.core.usage import Reading, Usage, UsageRow


class Settled(Struct, tag="settled"):
    """A lease that goes on has used this much, beside what was settled before."""

    id: str
    usage: Usage


class HourClosed(Struct, tag="hour_closed"):
    """An hour is over: what was used in it is now a row beside the log, and no longer part of the state."""

    hour: int  # hours since 1970, by the clock of the log
    rows: tuple[UsageRow, ...]


class BudgetSet(Struct, tag="budget_set", omit_defaults=True):
    """A rate or budget was set at run time."""

    rule: BudgetRule
    by: str = ""


class BudgetRemoved(Struct, tag="budget_removed", omit_defaults=True):
    """There is no such budget, whatever the file says."""

    selector: str
    unit: str
    per: str
    by: str = ""


class BudgetUnset(Struct, tag="budget_unset", omit_defaults=True):
    """What was set at run time no longer applies: the file decides."""

    selector: str
    unit: str
    per: str
    by: str = ""


class BudgetReset(Struct, tag="budget_reset", omit_defaults=True):
    """A person reset a budget: nothing of it is used."""

    budget: str
    by: str = ""


class BudgetAdded(Struct, tag="budget_added", omit_defaults=True):
    """A person gave a budget more, until then."""

    budget: str
    amount: int
    until: int
    by: str = ""


class BudgetReached(Struct, tag="budget_reached"):
    """A budget is used up to this percentage of its amount: 50, 80 or 100."""

    budget: str
    percent: int
    used: int
    amount: int
    resets_at: int
    when_empty: str


class RatesObserved(Struct, tag="rates_observed", omit_defaults=True):
    """The rates of a model, as its provider reports them; written where that changes decisions.

    What is set is what is free from now on: `readings` are corrected for what was sent since.
    """

    model: str
    readings: tuple[Reading, ...]
    refused: str = ""  # the unit of the rate for which a call was refused
