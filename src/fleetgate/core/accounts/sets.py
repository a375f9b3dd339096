"""The account sets of one state: their rules, the homes of conversations, and the ramps of accounts."""

from __future__ import annotations

from typing import Final

from fleetgate.core.accounts.homes import Home, Homes
from fleetgate.core.accounts.ramp import QUIET_MS, Ramp
from fleetgate.core.entities import AccountSet
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import DEFAULT_ACCOUNT, Model, canonical, parse_model, shown

MOST_ACCOUNTS: Final = 32  # of a set
MOST_PATIENCE_MS: Final = 86_400_000
CHOICES = ("most-left", "first")
STICKY = ("conversation", "none")


class AccountSets:
    """Sets by provider."""

    def __init__(self, rules: tuple[AccountSet, ...] = ()) -> None:
        self.rules = {rule.provider: rule for rule in rules}
        self.homes = Homes()
        self.ramps: dict[str, Ramp] = {}  # by account, as `provider@account`

    def of_model(self, model: Model) -> AccountSet | None:
        """The set that a request for this model may use: it names no account."""
        if model.account != DEFAULT_ACCOUNT or not self.rules:
            return None
        return self.rules.get(canonical(model.provider))

    def members_of(self, model: Model, only: tuple[str, ...] = ()) -> list[Model]:
        """The model at each account that a request for it may use; with `only`, of these accounts."""
        rule = self.of_model(model)
        if rule is None:
            return [model]
        names = [name for name in (*rule.use, *rule.then) if not only or name in only]
        return [Model(model.provider, account, model.name) for account in names or only]

    def expand(self, models: tuple[str, ...], only: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The same for the names of models."""
        if not self.rules:
            return models
        return tuple({str(each): None for text in models for each in self.members_of(parse_model(text), only)})

    def accounts_for(self, models: tuple[str, ...], only: tuple[str, ...] = ()) -> list[str]:
        """The accounts of sets that requests for these models may use, in the order of the config."""
        found = [each for text in models for each in self._names(text) if not only or each in only]
        return list(dict.fromkeys(found))

    def left_out(self, models: tuple[str, ...], only: tuple[str, ...]) -> list[str]:
        """The accounts of sets that these requests may not use, as they have no credential for them."""
        if not only or only == (DEFAULT_ACCOUNT,):  # the latter brings the key of that account
            return []
        return list(dict.fromkeys(each for text in models for each in self._names(text) if each not in only))

    def _names(self, text: str) -> tuple[str, ...]:
        rule = self.of_model(parse_model(text))
        return () if rule is None else (*rule.use, *rule.then)

    def ramp_of(self, key: str) -> Ramp | None:
        """The ramp of this key, if it is one."""
        return self.ramps.get(key.partition(" ")[2]) if key.startswith("ramp ") else None

    def ramp(self, account: str) -> Ramp:
        ramp = self.ramps.get(account)
        if ramp is None:
            ramp = self.ramps[account] = Ramp(account)
        return ramp

    def export_ramps(self, now: int) -> list[tuple[str, int, int, int]]:
        """What of the ramps matters at `now`."""
        return [
            (account, ramp.began_at, ramp.moved_at, ramp.moved)
            for account, ramp in sorted(self.ramps.items())
            if ramp.moved and now - ramp.moved_at < QUIET_MS
        ]

    def restore(self, rules: list[AccountSet], homes: list[Home], ramps: list[tuple[str, int, int, int]]) -> None:
        """Restore what a snapshot has."""
        self.rules = {rule.provider: rule for rule in rules}
        self.homes.restore(homes)
        for account, began_at, moved_at, moved in ramps:
            ramp = self.ramp(account)
            ramp.began_at, ramp.moved_at, ramp.moved = began_at, moved_at, moved


def check_set(rule: AccountSet) -> None:
    """Raise BadRequest for a set that cannot be one."""
    accounts = (*rule.use, *rule.then)
    name = f"the set of {shown(rule.provider)}"
    if not rule.use or len(accounts) > MOST_ACCOUNTS:
        raise BadRequest(f"{name} has {len(rule.use)} accounts to use: valid is 1 to {MOST_ACCOUNTS}")
    if len(set(accounts)) < len(accounts):
        raise BadRequest(f"{name} names an account twice")
    for account in accounts:
        parse_model(f"{rule.provider}@{account}/model")
    if rule.choose not in CHOICES:
        raise BadRequest(f"choose {shown(rule.choose)}: valid are {', '.join(CHOICES)}")
    if rule.sticky not in STICKY:
        raise BadRequest(f"sticky {shown(rule.sticky)}: valid are {', '.join(STICKY)}")
    if not 0 <= rule.patience_ms <= MOST_PATIENCE_MS:
        raise BadRequest(f"a patience of {rule.patience_ms} ms: valid is 0 to {MOST_PATIENCE_MS}")
