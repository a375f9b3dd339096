"""Events about plan windows: what of them is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetgate.core import events as ev
from fleetgate.core.plans.runway import DRY

if TYPE_CHECKING:
    from fleetgate.core.state.state import State


class PlanEvents:
    """Applies them to one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def observed(self, event: ev.PlanObserved, at: int) -> None:
        state = self._state
        window = state.plans.named(event.account, event.window)
        is_new = window is None
        if window is None:
            window = state.plans.add(event.account, event.window, event.family)
        window.observe(event.used, event.resets_at, event.length_ms, event.seen_at, at)
        if is_new and (window.rule is not None or state.accounts.rules):
            state.cap_events.rebuild()  # requests of the account need it from now on
        else:
            state.changed_pools[window.key] = window
            self._recheck_homes(event.account)
        state.touched_plans[window.key] = window

    def _recheck_homes(self, account: str) -> None:
        """Conversations that wait for this account may have to move to another."""
        state = self._state
        for queue in state.by_account.get(account, {}).values() if state.accounts.rules else ():
            if queue.home is not None and queue.waiting:
                state.recheck_queue(queue)

    def runway(self, event: ev.PlanRunway, at: int) -> None:
        window = self._state.plans.named(event.account, event.window)
        assert window is not None, f"no window {event.window} of {event.account}"
        window.warned = event.level == DRY
