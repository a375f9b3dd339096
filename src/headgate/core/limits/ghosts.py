"""Seats that were given back, and that the provider may still count: how many there are at a moment.

Asked with every admission, a thousand times a second in a busy pool. So the answer is kept, and moved on with the
time; it follows from the releases alone, and is no part of the state.
"""

from __future__ import annotations


class Ghosts:
    """Counts over the releases of a pool, (when, seats) in order."""

    __slots__ = ("_end", "_releases", "_seats", "_span", "_start")

    def __init__(self) -> None:
        self._releases: list[tuple[int, int]] = []
        self._span = (0, 0)
        self._start = self._end = self._seats = 0  # those from start to end are counted

    def count(self, releases: list[tuple[int, int]], now: int, youngest: int, oldest: int) -> tuple[int, int]:
        """The seats that were given back at least `youngest` and less than `oldest` ms ago; the age of the last."""
        if releases is not self._releases or self._span != (youngest, oldest):
            self.forget()
            self._releases, self._span = releases, (youngest, oldest)
        start, end, seats, size = self._start, self._end, self._seats, len(releases)
        edge = now - youngest
        while end < size and releases[end][0] <= edge:
            seats += releases[end][1]
            end += 1
        edge = now - oldest
        while start < end and releases[start][0] <= edge:
            seats -= releases[start][1]
            start += 1
        self._start, self._end, self._seats = start, end, seats
        return (seats, now - releases[end - 1][0]) if start < end else (0, 0)

    def forget(self) -> None:
        """Releases were taken out of the list: count anew."""
        self._start = self._end = self._seats = 0
