"""Events that close and open admission: for all while a log recovers, for one host while it is drained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetgate.core import events as ev

if TYPE_CHECKING:
    from fleetgate.core.state.state import State


class HostEvents:
    """Applies them to one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def recovering(self, event: ev.Recovering, at: int) -> None:
        state = self._state
        state.recovers_until, state.recovers_since = event.until, state.seq
        state.recheck_all()

    def draining(self, event: ev.Draining, at: int) -> None:
        state = self._state
        state.draining[event.host] = at
        for ident in [ident for ident in state.reserved if state.tickets[ident].spec.host == event.host]:
            state.reservations.end(ident)

    def drain_ended(self, event: ev.DrainEnded, at: int) -> None:
        del self._state.draining[event.host]
        self._state.recheck_all()
