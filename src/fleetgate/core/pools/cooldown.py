"""Cooldown: slots that were released and cannot be granted again yet."""

from __future__ import annotations

from heapq import heappop, heappush


class Cooldown:
    """The slots of one pool that cool down."""

    __slots__ = ("heap", "slots")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int]] = []  # (until, slots), the first to end on top
        self.slots = 0  # their sum

    def add(self, until: int, slots: int) -> None:
        heappush(self.heap, (until, slots))
        self.slots += slots

    def expire(self, now: int) -> None:
        """Drop the slots whose cooldown has passed. Callers on the decision path look at the first one themselves."""
        heap = self.heap
        while heap and heap[0][0] <= now:
            self.slots -= heappop(heap)[1]

    def restore(self, cooling: list[tuple[int, int]]) -> None:
        """Take over what a snapshot has, in order."""
        self.heap = list(cooling)
        self.slots = sum(slots for _, slots in cooling)
