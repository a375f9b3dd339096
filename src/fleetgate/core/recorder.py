"""The recorder of events: the one place where a decision becomes a fact.

An event that is recorded changes the state, sets the deadlines that follow from it, and is collected for the log.
Every handler gets `record` and nothing else to change the state with.
"""

from __future__ import annotations

from typing import Any

from fleetgate.core import events as ev
from fleetgate.core.access.authorship import SIGNED
from fleetgate.core.deadlines import Deadlines
from fleetgate.core.state.state import State


class Recorder:
    """Records the events of one state."""

    def __init__(self, state: State, deadlines: Deadlines) -> None:
        self._state = state
        self._deadlines = deadlines
        self.now = 0
        self.by = ""  # the author of the command that is decided
        self.events: list[ev.Event] = []  # recorded since the command began
        self._effects = {kind: (apply, deadlines.arming.get(kind)) for kind, apply in state.applying.items()}

    def record(self, event: ev.Event) -> None:
        state, now = self._state, self.now
        if self.by and type(event) in SIGNED:
            signed: Any = event
            signed.by = signed.by or self.by
        state.seq += 1
        state.at = now
        apply, arm = self._effects[type(event)]
        apply(event, now)
        if arm is not None:
            arm(event, now)
        if state.gates:
            self._deadlines.watch_gates(now)
        self.events.append(event)
