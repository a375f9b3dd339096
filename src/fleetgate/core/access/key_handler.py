"""Commands about access keys: create, rotate, remove (rule E1)."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from fleetgate.core import events as ev
from fleetgate.core.access.keys import AGENT, ROLES, AccessKey, CreateKey, RemoveKey, RotateKey
from fleetgate.core.entities import CLASSES
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.core.queue.order import MAX_PRIORITY
from fleetgate.core.state.state import State

MOST_KEYS = 10_000
_MOST_NAME = 40
_MOST_PROJECT = 200


class AccessKeyHandler:
    """The access keys of one state."""

    def __init__(self, state: State, record: Callable[[ev.Event], None]) -> None:
        self._state = state
        self._record = record

    def create(self, command: CreateKey, now: int) -> None:
        key = command.key
        if not is_key_name(key.name):
            raise BadRequest(f"name {shown(key.name)}: valid are up to {_MOST_NAME} letters, digits, - and _")
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
        self._record(ev.KeySet(replace(key, created_at=now), command.by))

    def rotate(self, command: RotateKey, now: int) -> None:
        key = self._find(command.name)
        self._record(ev.KeySet(replace(key, digest=command.digest), command.by, rotated=True))

    def remove(self, command: RemoveKey, now: int) -> None:
        self._find(command.name)
        self._record(ev.KeyRemoved(command.name, command.by))

    def _find(self, name: str) -> AccessKey:
        key = self._state.access_keys.get(name)
        if key is None:
            known = ", ".join(sorted(self._state.access_keys)[:20]) or "none yet"
            raise BadRequest(f"no key {shown(name)}; keys: {known}")
        return key


def is_key_name(name: str) -> bool:
    """Whether this can be the name of a key: it is part of selectors, addresses and listings."""
    word = name.replace("-", "a").replace("_", "a")
    return 0 < len(name) <= _MOST_NAME and word.isascii() and word.isalnum()
