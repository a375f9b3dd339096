"""Commands about access keys: create, with caps and budgets of its own; rotate; remove (rule E1)."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from fleetgate.core import events as ev
from fleetgate.core.access.keys import AGENT, ROLES, AccessKey, CreateKey, RemoveKey, RotateKey, key_selector
from fleetgate.core.entities import CLASSES
from fleetgate.core.errors import BadRequest
from fleetgate.core.handlers.budgets import check_budget
from fleetgate.core.handlers.cap_validation import check_rule
from fleetgate.core.model_names import MOST_KEY_NAME, is_key_name, shown
from fleetgate.core.queue.order import MAX_PRIORITY
from fleetgate.core.state.state import State

MOST_KEYS = 10_000
_MOST_PROJECT = 200


class AccessKeyHandler:
    """The access keys of one state."""

    def __init__(self, state: State, record: Callable[[ev.Event], None]) -> None:
        self._state = state
        self._record = record

    def create(self, command: CreateKey, now: int) -> None:
        key = command.key
        if not is_key_name(key.name):
            raise BadRequest(f"name {shown(key.name)}: valid are up to {MOST_KEY_NAME} letters, digits, - and _")
        if key.name in self._state.access_keys:
            raise BadRequest(f"there is a key {shown(key.name)} already: remove it first, or rotate it")
        if len(self._state.access_keys) >= MOST_KEYS:
            raise BadRequest(f"there are {MOST_KEYS} keys already: remove some first")
        if key.role not in ROLES:
            raise BadRequest(f"role {shown(key.role)}: valid are {', '.join(ROLES)}")
        if key.work_class and key.work_class not in CLASSES:
            raise BadRequest(f"class {shown(key.work_class)}: valid are {', '.join(CLASSES)}")
        if key.max_priority is not None and abs(key.max_priority) > MAX_PRIORITY:
            raise BadRequest(f"max-priority {key.max_priority}: valid is -{MAX_PRIORITY} to {MAX_PRIORITY}")
        if len(key.project) > _MOST_PROJECT or not key.project.isprintable():
            raise BadRequest(f"project {shown(key.project)}: valid are up to {_MOST_PROJECT} printable characters")
        if key.role == AGENT and not key.project:
            raise BadRequest("an agent's key needs a project: add --project NAME")
        if key.expires_at and key.expires_at <= now:
            raise BadRequest("the key would have expired already")
        selector = key_selector(key.name)
        for given in [*(rule.selector for rule in command.rules), *(budget.selector for budget in command.budgets)]:
            if given != selector:
                raise BadRequest(f"selector {shown(given)}: the key's own is {selector}")
        for rule in command.rules:
            check_rule(rule)
        for budget in command.budgets:
            check_budget(budget)
        self._record(ev.KeySet(replace(key, created_at=now), command.by))
        for rule in command.rules:
            self._record(ev.RuleSet(rule, cap_set=True))
        for budget in command.budgets:
            self._record(ev.BudgetSet(budget))

    def rotate(self, command: RotateKey, now: int) -> None:
        key = self._find(command.name)
        self._record(ev.KeySet(replace(key, digest=command.digest), command.by, rotated=True))

    def remove(self, command: RemoveKey, now: int) -> None:
        """End a key. What was set at run time for it alone ends too: a later key of this name begins with nothing."""
        self._find(command.name)
        state, selector = self._state, key_selector(command.name)
        self._record(ev.KeyRemoved(command.name, command.by))
        for kind, text in list(state.rules.runtime):
            if text == selector:
                self._record(ev.CapReset(kind, text))
        for text, unit, per in list(state.budget_rules.runtime):
            if text == selector:
                self._record(ev.BudgetUnset(text, unit, per))

    def _find(self, name: str) -> AccessKey:
        key = self._state.access_keys.get(name)
        if key is None:
            known = ", ".join(sorted(self._state.access_keys)[:20]) or "none yet"
            raise BadRequest(f"no key {shown(name)}; keys: {known}")
        return key
