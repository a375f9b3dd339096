"""The JSON of access keys, and their rights in a few words."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.core.access.keys import AccessKey
from fleetgate.present.log_time import LogTimes


class AccessKeyShape(Struct):
    """A key as listings show it; never the key itself."""

    name: str
    role: str
    project: str | None
    work_class: str | None
    max_priority: int | None
    created_at: str | None
    expires_at: str | None
    expired: bool


def key_json(key: AccessKey, moments: LogTimes) -> AccessKeyShape:
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
