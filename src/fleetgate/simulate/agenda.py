"""The planned steps, in the order of time; steps at the same time in the order in which they were planned.

A heap would compare for every step that is taken out. Here a step waits in the slot of its second, and a slot is sorted
once, when its turn comes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Any, Final

_ORDER: Final = 32  # bits
_SLOT: Final = 10  # bits: slots of 1024 ms

Step = Callable[[Any, int], None]  # what happens: to an agent, if any, with a value of its own


class Agenda:
    def __init__(self, end: int) -> None:
        """Up to a moment: nothing after it happens, and everything at it does."""
        # A moment is a number: the time, and then how many were planned before.
        last = (end << _ORDER) + (1 << _ORDER) - 1
        self.steps: dict[int, tuple[Step, Any, int]] = {}
        self._planned = 0
        self._later: dict[int, list[int]] = {end >> _SLOT: [last]}
        self._slot = -1  # the one whose turn it is
        self._soon: list[int] = []  # its moments
        self._taken = 0  # so many of them were taken out

    def push(self, at: int, step: Step, agent: Any = None, value: int = 0) -> None:
        self._planned = number = self._planned + 1
        moment = (at << _ORDER) + number
        self.steps[moment] = (step, agent, value)
        slot = at >> _SLOT
        if slot <= self._slot:
            insort(self._soon, moment, self._taken)
            return
        later = self._later.get(slot)
        if later is None:
            self._later[slot] = [moment]
        else:
            later.append(moment)

    def next_at(self) -> int:
        """When the next step is; at the latest the end."""
        if self._taken == len(self._soon):
            self._slot = slot = min(self._later)
            self._soon = soon = self._later.pop(slot)
            soon.sort()
            self._taken = 0
        return self._soon[self._taken] >> _ORDER

    def pop(self) -> tuple[Step, Any, int] | None:
        """The step of `next_at`; None: the end."""
        moment = self._soon[self._taken]
        self._taken += 1
        return self.steps.pop(moment, None)
