"""Calls as a provider counts them: from arrival until the end plus an accounting lag; refused at the limit.

Pure: time is an argument in milliseconds. The rule: `counted(now)` is always the live calls, plus those that
ended less than their lag ago, plus the neighbours' calls; and an unscripted call enters only below the limit.
"""

from __future__ import annotations


class CallCount:
    """The count of one provider account. `limit=None` refuses no call."""

    def __init__(self, limit: int | None = None, others: int = 0) -> None:
        self.limit = limit
        self.others = others  # calls of neighbours on the same account, which are not seen here
        self.calls = 0
        self.refused = 0
        self.live = 0
        self.most_at_once = 0
        self.most_counted = 0
        self._lagging_until_ms: tuple[int, ...] = ()  # ended calls that still count

    def counted(self, now_ms: int) -> int:
        """Changes nothing, so a test may ask from another thread."""
        return self.live + sum(until > now_ms for until in self._lagging_until_ms) + self.others

    def arrive(self, now_ms: int) -> bool:
        """Whether a call that arrives now is accepted; if so it counts until it leaves."""
        self.calls += 1
        if self.limit is not None and self.counted(now_ms) >= self.limit:
            self.refused += 1
            return False
        self._enter(now_ms)
        return True

    def refuse(self) -> None:
        """A call that is refused at another limit: seen, but never in flight."""
        self.calls += 1
        self.refused += 1

    def arrive_scripted(self, now_ms: int) -> None:
        """A call that enters whatever the count says."""
        self.calls += 1
        self._enter(now_ms)

    def turn_away(self) -> None:
        """A call that is answered with an error of another cause: seen, but never in flight."""
        self.calls += 1

    def leave(self, now_ms: int, lag_ms: int) -> None:
        """An accepted call ended, in any way."""
        self.live -= 1
        still = (until for until in (*self._lagging_until_ms, now_ms + lag_ms) if until > now_ms)
        self._lagging_until_ms = tuple(still)

    def _enter(self, now_ms: int) -> None:
        self.live += 1
        self.most_at_once = max(self.most_at_once, self.live)
        self.most_counted = max(self.most_counted, self.counted(now_ms))
