"""Rules for plans: how much of a window is kept for people, and how batch work is paced (rule W2)."""

from __future__ import annotations

from fleetgate.core.entities import PlanRule


class PlanRules:
    """What the config file says, by provider or account."""

    def __init__(self) -> None:
        self.file: dict[str, PlanRule] = {}

    def of(self, account: str) -> PlanRule | None:
        """The rule for an account: its own, else that of its provider; None: its windows hold nothing back."""
        if not self.file:
            return None
        return self.file.get(account) or self.file.get(account.partition("@")[0])
