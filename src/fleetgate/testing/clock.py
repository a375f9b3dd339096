"""A clock that moves only when a test moves it, in whole milliseconds, and never backwards."""

from __future__ import annotations


class FakeClock:
    """`clock.now()` and `clock()` say the time in milliseconds; only `clock.advance(ms)` changes it."""

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = _whole(start_ms)

    def now(self) -> int:
        return self._now_ms

    def __call__(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> int:
        """Move on by `ms` and return the new time."""
        self._now_ms += _whole(ms)
        return self._now_ms

    def __repr__(self) -> str:
        return f"<FakeClock at {self._now_ms} ms>"


def _whole(ms: int) -> int:
    # A float would make two clocks that should agree differ by a rounding error.
    if type(ms) is not int:
        raise TypeError(f"milliseconds are whole numbers, not {ms!r}")
    if ms < 0:
        raise ValueError(f"a clock does not go backwards: {ms} ms")
    return ms
