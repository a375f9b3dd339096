"""Access keys: what a key is allowed to do, and the roles that it can have (rules E1, E2).

The key itself is known only to its holder. The log has a salted digest of it. The commands and events about keys are
here too; readers take the events from `core/events.py`.
"""

from __future__ import annotations

from msgspec import Struct

from fleetgate.core.entities import BudgetRule, Rule

VIEWER, AGENT, OPERATOR, ADMIN = "viewer", "agent", "operator", "admin"
ROLES = (VIEWER, AGENT, OPERATOR, ADMIN)


class AccessKey(Struct, frozen=True, omit_defaults=True):
    """One key. A project, a class or a highest priority that it names holds for all requests made with it."""

    name: str
    digest: str
    role: str
    project: str = ""
    work_class: str = ""
    max_priority: int | None = None
    created_at: int = 0
    expires_at: int = 0  # 0: never

    def is_valid_at(self, now: int) -> bool:
        return not self.expires_at or now < self.expires_at


def key_selector(name: str) -> str:
    """The selector of a key's own caps and budgets."""
    return f"key:{name}"


class CreateKey(Struct, tag="create_key", omit_defaults=True):
    """Make an access key known, with caps and budgets of its own (rule E1)."""

    key: AccessKey
    by: str = ""
    rules: tuple[Rule, ...] = ()
    budgets: tuple[BudgetRule, ...] = ()


class RotateKey(Struct, tag="rotate_key"):
    """Replace the secret of an access key."""

    name: str
    digest: str
    by: str = ""


class RemoveKey(Struct, tag="remove_key"):
    """End an access key."""

    name: str
    by: str = ""


KeyCommand = CreateKey | RotateKey | RemoveKey


class KeySet(Struct, tag="key_set", omit_defaults=True):
    """There is a new access key; or, rotated, a known one has a new secret, and the old one is worth nothing."""

    key: AccessKey
    by: str
    rotated: bool = False


class KeyRemoved(Struct, tag="key_removed"):
    """An access key is worth nothing from now on."""

    name: str
    by: str
