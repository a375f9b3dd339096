"""What a program can do to the whole gate, and see of it: caps, pauses, the line (SPEC Y1)."""

from __future__ import annotations

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from fleetgate.core.model_names import canonical
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import PoolView, TicketView, pool_views, ticket_views
from fleetgate.gate.library.lease_handles import RateLimited, milliseconds, number
from fleetgate.gate.replica.replica import Decided


class Managing:
    """A part of `Gate`, which has the store and the state."""

    host: str

    async def set_cap(
        self,
        selector: str,
        cap: int,
        *,
        kind: str = "requests",
        cooldown_s: float | None = None,
        on_429: str | None = None,
        max_hold_s: float | None = None,
        name: str | None = None,
        usage_gate: bool | None = None,
        explore: bool | None = None,
    ) -> None:
        """Set a cap; on disk when this returns. Whoever fits now enters."""
        rule = Rule(
            kind,
            _canonical(selector),
            cap,
            cooldown_ms=milliseconds("cooldown_s", cooldown_s),
            on_429=on_429,
            max_hold_ms=milliseconds("max_hold_s", max_hold_s),
            name=name,
            usage_gate=usage_gate,
            explore=explore,
        )
        await self._ask(cmd.SetRule(rule), durable=True)

    async def remove_cap(self, selector: str, *, kind: str = "requests") -> None:
        """No cap on this selector any more; its pause and reduction are forgotten."""
        await self._ask(cmd.RemoveCap(kind, _canonical(selector)), durable=True)

    async def set_cooldown(self, selector: str, cooldown_s: float, *, kind: str = "requests") -> None:
        """How long a released slot stays taken, from the next release on."""
        cooldown_ms = int(number("cooldown_s", cooldown_s, 0) * 1000)
        await self._ask(cmd.SetRule(Rule(kind, _canonical(selector), cooldown_ms=cooldown_ms)), durable=True)

    async def pause(self, pool: str, *, kind: str = "requests", for_s: float | None = None) -> None:
        """Nobody new enters a pool, for a while or until `resume`."""
        await self._ask(cmd.Pause(kind, _canonical(pool), milliseconds("for_s", for_s)), durable=True)

    async def resume(self, pool: str, *, kind: str = "requests") -> None:
        """End a pause."""
        await self._ask(cmd.Resume(kind, _canonical(pool)), durable=True)

    async def cancel(self, ident: str) -> None:
        """Take a ticket out of the queue."""
        await self._ask(cmd.Cancel(ident, "library"))

    async def report(self, outcome: RateLimited, *, pool: str = "", lease: str = "", kind: str = "requests") -> None:
        """A rate limit that was seen, for a lease or for a pool."""
        after = outcome.retry_after_s
        if after is not None:
            after = max(number("retry_after_s", after), 0)  # a moment that has passed is now
        await self._ask(cmd.Report(lease, kind, _canonical(pool), milliseconds("retry_after_s", after)))

    async def status(self) -> list[PoolView]:
        """Every capped pool."""
        state = await self._current()
        return pool_views(state, self._now(), self.host)

    async def queue(self) -> list[TicketView]:
        """The whole queue, by position."""
        state = await self._current()
        return ticket_views(state, self._now())

    # Of the gate.

    async def _ask(self, command: cmd.Command, *, durable: bool = False) -> Decided:
        raise NotImplementedError

    async def _current(self) -> State:
        raise NotImplementedError

    def _now(self) -> int:
        raise NotImplementedError


def _canonical(text: str) -> str:
    """The name that is used here. What is no text stays as it is: the engine says what is valid."""
    return canonical(text) if isinstance(text, str) else text
