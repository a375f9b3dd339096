"""The JSON of access keys, and their rights in a few words."""

from __future__ import annotations

from msgspec import Struct, field

from fleetgate.core.access.keys import AccessKey, key_selector
from fleetgate.core.model_names import KINDS
from fleetgate.core.state.state import State
from fleetgate.core.views.budget_views import budget_views
from fleetgate.core.views.share_views import FairShares
from fleetgate.present.budgets.listing import BudgetShape, budget_json
from fleetgate.present.json.projects import ShareShape, shares_json
from fleetgate.present.log_time import LogTimes


class AccessKeyShape(Struct):
    """A key as listings show it; never the key itself. `caps` are by kind: how many of its requests may run at once."""

    name: str
    role: str
    project: str | None
    work_class: str | None
    max_priority: int | None
    created_at: str | None
    expires_at: str | None
    expired: bool
    running: int = 0
    waiting: int = 0
    caps: dict[str, int] = field(default_factory=dict)
    budgets: list[BudgetShape] = field(default_factory=list)
    shares: list[ShareShape] = field(default_factory=list)  # of pools that its project shares with others


def list_keys(state: State, moments: LogTimes) -> list[AccessKeyShape]:
    """All keys by name, with what they have at the gate and what is left of their budgets."""
    shapes = {name: _key_json(key, moments) for name, key in sorted(state.access_keys.items())}
    for lease in state.leases.values():
        if (shape := shapes.get(lease.ticket.spec.access_key)) is not None:
            shape.running += 1
    for ticket in state.tickets.values():
        if (shape := shapes.get(ticket.spec.access_key)) is not None:
            shape.waiting += 1
    shares = FairShares(state).of_keys if shapes else {}
    for name, shape in shapes.items():
        shape.shares = shares_json(shares.get(name, []))
        for kind in KINDS:
            need = state.rules.find(kind, key_selector(name))
            if need is not None and need.cap.cap is not None:
                shape.caps[kind] = need.cap.cap
    for view in budget_views(state, moments.now):
        scope, _, name = view.name.rpartition(" ")[0].partition(":")
        if scope == "key" and name in shapes:
            shapes[name].budgets.append(budget_json(view, moments))
    return list(shapes.values())


def _key_json(key: AccessKey, moments: LogTimes) -> AccessKeyShape:
    return AccessKeyShape(
        key.name,
        key.role,
        key.project or None,
        key.work_class or None,
        key.max_priority,
        moments.utc(key.created_at),
        moments.utc(key.expires_at) if key.expires_at else None,
        not key.is_valid_at(moments.now),
    )


def rights_text(key: AccessKey) -> str:
    """What a key may do, in a few words: `agent for web, batch, priority up to 0`."""
    parts = [f"{key.role} for {key.project}" if key.project else key.role]
    if key.work_class:
        parts.append(key.work_class)
    if key.max_priority is not None:
        parts.append(f"priority up to {key.max_priority}")
    return ", ".join(parts)
