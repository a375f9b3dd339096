"""The plans of one state: the windows of every account, and the rules for them."""

from __future__ import annotations

from typing import Final

from fleetgate.core.entities import INTERACTIVE, Spec
from fleetgate.core.model_names import Model, account_of
from fleetgate.core.plans.rules import PlanRules
from fleetgate.core.plans.window import PlanWindow, window_key

MOST_ACCOUNTS: Final = 256
MOST_WINDOWS: Final = 16  # of one account


class Plans:
    """Windows by the key of their resource, and by account."""

    def __init__(self) -> None:
        self.rules = PlanRules()
        self.windows: dict[str, PlanWindow] = {}
        self.by_account: dict[str, list[PlanWindow]] = {}

    def named(self, account: str, window: str) -> PlanWindow | None:
        return self.windows.get(window_key(account, window))

    def add(self, account: str, window: str, family: str) -> PlanWindow:
        """A window that is not known yet."""
        made = PlanWindow(account, window, family, self.rules.of(account))
        self.windows[made.key] = made
        self.by_account.setdefault(account, []).append(made)
        self.by_account[account].sort(key=_length_first)
        return made

    def has_room(self, account: str) -> bool:
        """Whether one more window of an account is kept."""
        known = self.by_account.get(account)
        return len(self.by_account) < MOST_ACCOUNTS if known is None else len(known) < MOST_WINDOWS

    def of_request(self, spec: Spec, model: Model | None) -> tuple[PlanWindow, ...]:
        """The windows that may hold a request back."""
        if model is None or not self.rules.file or spec.work_class == INTERACTIVE:
            return ()
        found = self.by_account.get(account_of(model), ())
        return tuple(window for window in found if window.rule is not None and window.concerns(model.name))

    def of_model(self, model: Model) -> list[PlanWindow]:
        """All windows in which calls of a model count."""
        return [window for window in self.by_account.get(account_of(model), ()) if window.concerns(model.name)]

    def configure(self, now: int) -> None:
        """The rules have changed."""
        for window in self.windows.values():
            window.configure(self.rules.of(window.account), now)


def _length_first(window: PlanWindow) -> tuple[int, str]:
    return len(window.window), window.window
