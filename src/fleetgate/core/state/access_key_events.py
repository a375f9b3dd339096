"""Events about access keys: which there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetgate.core import events as ev

if TYPE_CHECKING:
    from fleetgate.core.state.state import State


class AccessKeyEvents:
    """Applies them to one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def key_set(self, event: ev.KeySet, at: int) -> None:
        self._state.access_keys[event.key.name] = event.key

    def removed(self, event: ev.KeyRemoved, at: int) -> None:
        del self._state.access_keys[event.name]
