"""`Gate`: the public API for asyncio programs.

Many requests in one process share its transactions. Leaving a `lease` block in any way releases the lease: an
exception, a cancellation, even one that comes before the slot does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import islice
from types import TracebackType
from typing import Self

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.core.model_names import canonical
from fleetgate.core.usage import Usage
from fleetgate.core.views.budget_views import BudgetView, budget_views
from fleetgate.core.views.pool_and_lease_views import PoolView, TicketView, pool_views, ticket_views
from fleetgate.gate.library import background_tasks
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.library.lease_handles import (
    Deferred,
    Leased,
    RateLimited,
    Since,
    milliseconds,
    number,
    rate_limit_report,
)

_EVENTS_AT_ONCE = 500


class Gate:
    """An open gate. Made by `fleetgate.open_gate`; belongs to one event loop."""

    def __init__(self, core: GateCore) -> None:
        self.core = core  # for what else is built on this gate; not part of the public API
        self.host = core.host

    def __repr__(self) -> str:
        return repr(self.core).replace("GateCore", "Gate", 1)

    async def __aenter__(self) -> Self:
        await self.core.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.core.close()

    async def close(self) -> None:
        """Release everything and close the store. Closing twice is harmless."""
        await self.core.close()

    # Leases.

    def lease(
        self,
        model: str | Sequence[str],
        *,
        kind: str = "requests",
        since: Since = None,
        priority: int = 0,
        project: str = "default",
        slots: int = 1,
        any_candidate: bool = False,
        timeout_s: float | None = None,
        key: str = "",
        conversation: str = "",
        estimate: Usage | None = None,
        work_class: str | None = None,
    ) -> Leased:
        """Return a lease to enter with `async with`, which waits in the queue until there is a slot.

            async with gate.lease(["anthropic/claude-opus-4", "openai/gpt-5"], project="website") as lease:
                answer = await call(lease.model)

        Leaving the block releases the slots, however it is left: by its end, by an exception or by a cancellation. If
        the block is cancelled while it waits, the request leaves the queue.

        Args:
          model: `provider/model` or `provider@account/model`, or several of these in order of preference.
          kind: `"requests"` for a model call, or `"agents"` for a process, which also takes a slot of the host.
          since: When the prompt started, as epoch seconds or an aware datetime. The older request goes first. The
              default is now.
          priority: From -100 to 100. Each point counts as much as 12 s of waiting.
          project: The group that shares slots fairly with the other groups.
          slots: How many slots to take in every pool.
          any_candidate: Use the next candidate even when the first one's pools are only full. Without it, the next is
              used only when the first is rate limited or cannot be used.
          timeout_s: How long to wait in the queue. With 0 the request enters if there is room now. The default is to
              wait without a limit.
          key: An idempotency key: the request is refused while another one with this key is waiting or running.
          conversation: What the request belongs to, such as the id of a chat. With a set of accounts, requests of one
              conversation use one account while it has room. Requests without one use the account with the most left.
          estimate: What the call is expected to use. It is reserved in its rates and budgets until the call is
              settled. The default is what Fleetgate has learned about calls of this model and project.
          work_class: `"interactive"`, `"normal"` or `"batch"`: which work gives way to which. The default is what
              `[classes]` in the config file says of the project, else normal.

        Raises:
          NotAdmitted: On entering the block, when there is no slot within `timeout_s`, the key is taken, or the
              ticket was cancelled or has expired.
          BadName, BadRequest: When an argument is not valid.
        """
        acquisition = self.core.acquisition
        spec = acquisition.spec(model, kind, slots, project, any_candidate, work_class=work_class)
        return acquisition.new_lease(spec, True, since, priority, key, conversation, estimate, timeout_s)

    async def try_lease(
        self,
        model: str | Sequence[str],
        *,
        kind: str = "requests",
        since: Since = None,
        priority: int = 0,
        project: str = "default",
        slots: int = 1,
        any_candidate: bool = False,
        key: str = "",
        conversation: str = "",
        estimate: Usage | None = None,
        work_class: str | None = None,
    ) -> Leased | Deferred:
        """Return a lease if there is a slot now, and a `Deferred` with the reason if there is none. Never waits.

            lease = await gate.try_lease("umans/coder")
            if not lease:
                print(lease.reason.text)
                return
            async with lease:
                answer = await call(lease.model)

        Use the lease with `async with`, or release it with `await lease.release()`. The arguments are those of
        `lease`, without `timeout_s`. Being deferred costs nothing: try again whenever you like.
        """
        acquisition = self.core.acquisition
        spec = acquisition.spec(model, kind, slots, project, any_candidate, work_class=work_class)
        return await acquisition.new_lease(spec, False, since, priority, key, conversation, estimate).acquire()

    # Caps, pauses and the queue.

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
        refusals: str | None = None,
    ) -> None:
        """Set a cap. It is on disk when this returns, and requests that fit now are admitted."""
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
            refusals=refusals,
        )
        await self.core.send(cmd.SetRule(rule), durable=True)

    async def remove_cap(self, selector: str, *, kind: str = "requests") -> None:
        """Remove the cap of a selector, with its pause and its reduction."""
        await self.core.send(cmd.RemoveCap(kind, _canonical(selector)), durable=True)

    async def set_cooldown(self, selector: str, cooldown_s: float, *, kind: str = "requests") -> None:
        """Set how long a released slot stays in use, from the next release on."""
        cooldown_ms = int(number("cooldown_s", cooldown_s, 0) * 1000)
        rule = Rule(kind, _canonical(selector), cooldown_ms=cooldown_ms)
        await self.core.send(cmd.SetRule(rule), durable=True)

    async def pause(self, pool: str, *, kind: str = "requests", for_s: float | None = None) -> None:
        """Admit nothing new to a pool, for `for_s` seconds or until `resume`."""
        await self.core.send(cmd.Pause(kind, _canonical(pool), milliseconds("for_s", for_s)), durable=True)

    async def resume(self, pool: str, *, kind: str = "requests") -> None:
        """End a pause."""
        await self.core.send(cmd.Resume(kind, _canonical(pool)), durable=True)

    async def cancel(self, ident: str) -> None:
        """Take a ticket out of the queue."""
        await self.core.send(cmd.Cancel(ident))

    async def report(self, outcome: RateLimited, *, pool: str = "", lease: str = "", kind: str = "requests") -> None:
        """Report a rate limit, for a lease or for a pool."""
        await self.core.send(rate_limit_report(outcome, lease=lease, kind=kind, pool=_canonical(pool)))

    # Reading.

    async def status(self) -> list[PoolView]:
        """Every capped pool."""
        state = await self.core.read_state()
        return pool_views(state, self.core.now(), self.host)

    async def budgets(self) -> list[BudgetView]:
        """Every rate and budget, with what is used, reserved and free."""
        state = await self.core.read_state()
        return budget_views(state, self.core.now())

    async def queue(self) -> list[TicketView]:
        """The whole queue, by position."""
        state = await self.core.read_state()
        return ticket_views(state, self.core.now())

    async def events(self, since: int | None = None) -> AsyncGenerator[tuple[int, int, ev.Event], None]:
        """Yield (sequence number, log time in ms, event) for everything after `since` (default: from now on).

        The stream has no end.
        """
        core = self.core
        seq = (await core.read_state()).seq if since is None else since
        while True:
            changed = core.changed
            since = seq
            found = await core.read_log(lambda log, since=since: list(islice(log.history(since), _EVENTS_AT_ONCE)))  # type: ignore[misc]
            for seq, at, event in found:
                yield seq, at, event
            if not found:
                try:
                    async with asyncio.timeout(background_tasks.POLL_S / 2):
                        await changed.wait()
                except TimeoutError:
                    pass


def _canonical(text: str) -> str:
    """The name that is used here. A value that is not text stays as it is: the engine names the valid ones."""
    return canonical(text) if isinstance(text, str) else text
