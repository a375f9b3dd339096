"""What the engine cannot see for itself: processes that are gone, agents started elsewhere, memory that is left.

Each is looked for outside the lock and handed to the engine as a command, only when it would change something.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from time import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fleetgate.config.settings import Settings
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from fleetgate.core.state.state import State
from fleetgate.gate.liveness import process_identity

if TYPE_CHECKING:
    from fleetgate.gate.liveness.foreign_agents import Seen
    from fleetgate.gate.store_users import StoreUsers

_EVERY_S = 0.9  # a little less than the waiters' poll, or one that waits alone would look at every second poll


class Turns:
    """Whose turn it is to look around: whoever finds that nobody at this gate has for a second.

    Not the head of the queue's: it may be stopped, and does not know that it is the head when the line moves fast.
    """

    def __init__(self, path: str, every_s: float = _EVERY_S) -> None:
        self._path = path  # a file whose age tells; "" where nobody else is
        self._every_s = every_s

    def take(self) -> bool:
        """Whether it is ours; then it is nobody else's for a second."""
        if not self._path:
            return True
        try:
            if 0 <= time() - os.stat(self._path).st_mtime < self._every_s:
                return False
            os.utime(self._path)
        except FileNotFoundError:
            self._make()
        except OSError:
            pass  # somebody else's file: better two that look than none
        return True

    def give_back(self) -> None:
        """It came to nothing: somebody else may try."""
        try:
            os.utime(self._path, (0, 0))
        except OSError:
            pass

    def _make(self) -> None:
        from fleetgate.log.store_files import make_file

        try:
            os.close(make_file(self._path, exclusive=False))
        except OSError:
            pass


def _certainly(process: str) -> bool:
    return process_identity.is_gone(process) is True


def lost(state: State, judge: Callable[[str], bool] = _certainly) -> cmd.Lost | None:
    """The processes in the books that are gone; None when all live or cannot be judged from here.

    Not an agent whose wrapper lives: that one is about to say how the agent ended, and only it can.
    """
    judged: dict[str, bool] = {}

    def is_gone(process: str) -> bool:
        known = judged.get(process)
        if known is None:
            known = judged[process] = judge(process)
        return known

    gone = set()
    for lease in state.leases.values():
        if lease.ticket.renew_ms:
            continue  # judged by its client's renewals
        if is_gone(lease.lives_with) and not (lease.child and _speaks(lease.ticket.holder)):
            gone.add(lease.lives_with)
    gone.update(pool.usage_gate.asked_by for pool in state.gates if is_gone(pool.usage_gate.asked_by))
    for process, tickets in state.ticket_index.processes.items():
        if is_gone(process) and not all(state.tickets[ident].renew_ms for ident in tickets):
            gone.add(process)
    return cmd.Lost(tuple(sorted(gone))) if gone else None


def _speaks(process: str) -> bool:
    """Whether a process lives and is not stopped."""
    pid = process_identity.local_pid(process)
    if pid is None or process_identity.is_gone(process) is not False:
        return False
    try:
        stat = process_identity.read(f"/proc/{pid}/stat", most=1)
    except OSError:
        return True  # no /proc here, or gone in this instant
    return stat[stat.rindex(b")") + 2 :][:1] not in (b"T", b"t")


def free_memory(settings: Settings, state: State, host: str) -> cmd.Observe:
    """What the free memory of this host allows now; foreign agents as they are known."""
    from fleetgate.gate.liveness import free_memory as liveness_free_memory

    auto = settings.host_auto
    room = liveness_free_memory.room(auto.reserve_bytes, auto.per_agent_bytes)
    return cmd.Observe(host, state.foreign.get(host, ()), room, auto.max)


def first_look(settings: Settings, rules: Iterable[Rule], state: State, host: str) -> list[cmd.Observe]:
    """For `host = "auto"` of these rules, or of those in force, where this host's memory was never looked at."""
    follows = any(rule.auto for rule in rules) or any(cap.auto for cap in state.rules.caps.values())
    return [free_memory(settings, state, host)] if follows and host not in state.auto_caps else []


class Observer:
    """This host, as the config says to look at it."""

    def __init__(self, settings: Settings, folder: str = "") -> None:
        self._settings = settings
        self._folder = folder
        self._users: StoreUsers | None = None  # looked up at the first count
        self.trouble = ""  # what a census could not do

    def observe(self, current: Callable[[], State], host: str) -> cmd.Observe | None:
        """What is to be told of this host; None when there is nothing to look at. `current` reads the state."""
        seen = self._look()
        state = current()  # after the look, so that no lease younger than it is taken for foreign
        follows_memory = any(cap.auto for cap in state.rules.caps.values())
        if not self._settings.census and not follows_memory and host not in state.foreign:
            return None
        foreign = self._foreign(state, seen)
        if not follows_memory:
            return cmd.Observe(host, foreign)
        return replace(free_memory(self._settings, state, host), foreign=foreign)

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
