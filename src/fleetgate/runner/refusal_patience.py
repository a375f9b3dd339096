"""The patience with an agent that was refused and retries: how long it may go on before it is ended.

Many agents hit a rate limit and recover: they wait, call again, and continue. So an agent that reports that it will
call again is left alone for a while, and every step of progress gives it all of that time again. An agent without
progress is ended, as its slot is better used by another.

| the agent | and the refusal | it is ended |
| --- | --- | --- |
| has done nothing yet | a rate limit or overload, over within its patience, and it calls again | after its patience |
| has done nothing yet | a login that was refused, and it calls again | after 3 s: it may get a new token |
| has done nothing yet | any other limit, or it does not call again, or another candidate is free | at once |
| has worked | any, and it calls again | after its patience |
"""

from __future__ import annotations

from fleetgate.signals.outcome import AUTH, LIMITS, OVERLOADED, QUOTA, RATE_LIMITED, USAGE_WINDOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from fleetgate.signals.classify_process import AgentRefusal

    class Told(Protocol):
        """What the agent's records told up to now; see `signals.process.Reader`."""

        @property
        def activity(self) -> bool: ...
        @property
        def refusal(self) -> AgentRefusal | None: ...


PATIENCE_S = 120.0
_NEW_TOKEN_MS = 3_000
_NEVER = float("inf")


class Patience:
    """Of one agent. `has_other` says whether it could be tried on another model at once."""

    def __init__(self, told: Told, patience_s: float, has_other: Callable[[], bool]) -> None:
        self._told = told
        self._patience_ms = patience_s * 1000
        self._has_other = has_other
        self._mark: tuple[object, ...] = ()
        self._since = 0.0
        self._allowed_ms = _NEVER

    def deadline(self, now_ms: float) -> float:
        """When the agent is to be ended if it does not get on before."""
        refusal = self._told.refusal
        if refusal is None or refusal.outcome.kind not in LIMITS:
            self._mark = ()
            return _NEVER
        outcome = refusal.outcome
        mark = (refusal.mark, refusal.again, outcome.kind, outcome.wait_ms, self._told.activity)
        if mark != self._mark:
            if self._mark[:1] != mark[:1]:
                self._since = now_ms
            self._mark, self._allowed_ms = mark, self._allows_ms(refusal)
        return self._since + self._allowed_ms

    def stood_still(self, for_ms: float) -> None:
        """Time passed that was not the agent's."""
        self._since += for_ms

    def _allows_ms(self, refusal: AgentRefusal) -> float:
        kind, wait_ms = refusal.outcome.kind, refusal.outcome.wait_ms
        if self._told.activity or (kind == OVERLOADED and not refusal.again):
            return self._patience_ms if refusal.again else _NEVER  # it gives up by itself
        if not refusal.again or kind == QUOTA:
            return 0
        if kind == AUTH:
            return min(self._patience_ms, _NEW_TOKEN_MS)
        lasts_ms = _NEVER if wait_ms is None and kind == USAGE_WINDOW else wait_ms or 0
        if lasts_ms > self._patience_ms or (kind == RATE_LIMITED and self._has_other()):
            return 0
        return self._patience_ms
