"""A request for an access key, as the command line and HTTP have it: its rights, its own caps and its budgets (E1)."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.core.access.keys import AccessKey, CreateKey, key_selector
from fleetgate.core.entities import BudgetRule, Rule
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import KINDS, is_key_name, shown
from fleetgate.gate.access_keys import key_digest, new_key
from fleetgate.present.budgets.listing import read_budget


class KeyRequest(Struct):
    """What a new key may do. `max_running` caps its agents and its calls; a budget is `UNIT=AMOUNT/PERIOD`."""

    name: str
    role: str = "agent"
    project: str = ""
    work_class: str = ""
    max_priority: int | None = None
    expires_ms: int = 0  # 0: never
    max_running: int | None = None
    budgets: tuple[str, ...] = ()


class NewKey(Struct):
    """The command that makes a key known, and the key itself, which is shown once."""

    command: CreateKey
    text: str


def create_command(asked: KeyRequest, salt: bytes, now: int) -> NewKey:
    """BadRequest where the name or a budget cannot be; the engine checks the rest."""
    if not is_key_name(asked.name):
        raise BadRequest(f"name {shown(asked.name)}: valid are up to 40 letters, digits, - and _")
    text = new_key()
    key = AccessKey(
        asked.name,
        key_digest(salt, text),
        asked.role,
        asked.project,
        asked.work_class,
        asked.max_priority,
        expires_at=now + asked.expires_ms if asked.expires_ms else 0,
    )
    selector = key_selector(asked.name)
    caps = () if asked.max_running is None else tuple(Rule(kind, selector, cap=asked.max_running) for kind in KINDS)
    budgets = tuple(_read_budget(selector, each) for each in asked.budgets)
    return NewKey(CreateKey(key, "", caps, budgets), text)


def _read_budget(selector: str, text: str) -> BudgetRule:
    unit, equals, rest = text.partition("=")
    amount, slash, per = rest.rpartition("/")
    if not equals or not slash:
        raise BadRequest(f"budget {shown(text)}: valid is UNIT=AMOUNT/PERIOD, for example usd=5/day")
    return read_budget(selector, unit.strip(), amount.strip(), per.strip())
