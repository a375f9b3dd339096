"""The commands about rates and budgets. `core/commands.py` has all commands; callers take them from there."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.core.entities import BudgetRule
from fleetgate.core.usage import Reading


class SetBudget(Struct, tag="set_budget", omit_defaults=True):
    """Set a rate or budget at run time; it replaces one of the same selector, unit and period."""

    rule: BudgetRule
    by: str = ""


class RemoveBudget(Struct, tag="remove_budget", omit_defaults=True):
    """No such budget, whatever the file says."""

    selector: str
    unit: str
    per: str
    by: str = ""


class UnsetBudget(Struct, tag="unset_budget", omit_defaults=True):
    """Drop what was set at run time: the file's budget applies again, or none where the file has none."""

    selector: str
    unit: str
    per: str
    by: str = ""


class ResetBudget(Struct, tag="reset_budget", omit_defaults=True):
    """Nothing of a budget is used. `budget` is the name of one, as `budget ls` shows it."""

    budget: str
    by: str = ""


class AddBudget(Struct, tag="add_budget", omit_defaults=True):
    """A budget has this much more until then: in its current window, or for a while (rule V7)."""

    budget: str
    amount: int
    until: int = 0  # log time; 0: until the window ends
    by: str = ""


class ObserveRates(Struct, tag="observe_rates"):
    """The provider's rates, by the headers of the response to this lease's call (rule V6)."""

    id: str
    readings: tuple[Reading, ...]
