"""Observations of this host: agents that were started without Fleetgate, and free memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fleetgate.config.settings import Settings
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from fleetgate.core.state.state import State

if TYPE_CHECKING:
    from fleetgate.gate.liveness.foreign_agents import Seen
    from fleetgate.gate.store_users import StoreUsers


def observe_memory(settings: Settings, state: State, host: str) -> cmd.Observe:
    """What the free memory of this host allows now, with the foreign agents that are already known."""
    from fleetgate.gate.liveness import free_memory

    auto = settings.host_auto
    room = free_memory.room(auto.reserve_bytes, auto.per_agent_bytes)
    return cmd.Observe(host, state.foreign.get(host, ()), room, auto.max)


def first_look(settings: Settings, rules: Iterable[Rule], state: State, host: str) -> list[cmd.Observe]:
    """The memory of this host, if it was never looked at and `host = "auto"` is among these rules or those in force."""
    follows = any(rule.auto for rule in rules) or any(cap.auto for cap in state.rules.caps.values())
    return [observe_memory(settings, state, host)] if follows and host not in state.auto_caps else []


class HostObserver:
    """Observes this host as the config says."""

    def __init__(self, settings: Settings, folder: str = "") -> None:
        self._settings = settings
        self._folder = folder
        self._users: StoreUsers | None = None  # read at the first census
        self.trouble = ""  # what a census could not do

    def observe(self, current: Callable[[], State], host: str) -> cmd.Observe | None:
        """What the engine should know about this host; None when there is nothing to look at."""
        seen = self._look()
        state = current()  # read after the look, so that no lease younger than that is taken for foreign
        follows_memory = any(cap.auto for cap in state.rules.caps.values())
        if not self._settings.census and not follows_memory and host not in state.foreign:
            return None
        foreign = self._foreign(state, seen)
        if not follows_memory:
            return cmd.Observe(host, foreign)
        return replace(observe_memory(self._settings, state, host), foreign=foreign)

    def _look(self) -> list[Seen]:
        if not self._settings.census:
            return []
        from fleetgate.gate.liveness import foreign_agents
        from fleetgate.gate.store_users import StoreUsers

        if self._users is None:
            self._users = StoreUsers(self._folder, self._settings.census_users)
        cache_path = f"{self._folder}/census.cache" if self._folder else ""
        taken = foreign_agents.take(cache_path, self._settings.census, self._users)
        self.trouble = taken.trouble
        return taken.seen

    def _foreign(self, state: State, seen: list[Seen]) -> tuple[tuple[str, int], ...]:
        if not seen:
            return ()
        from fleetgate.gate.liveness import foreign_agents

        own = {lease.lives_with for lease in state.leases.values()}
        own.update(lease.ticket.holder for lease in state.leases.values())
        own.update(state.ticket_index.processes)
        return foreign_agents.tally(seen, own)
