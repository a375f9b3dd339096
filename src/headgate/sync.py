"""The gate for synchronous programs (SPEC Y2): `with headgate.sync.open_gate() as gate: with gate.lease(…): …`.

From any thread. One background thread runs the asyncio gate, so that leases of all threads share transactions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from headgate.core import events as ev
from headgate.core.errors import HeadgateError
from headgate.core.views import PoolView, TicketView
from headgate.gate import opening, service
from headgate.gate.handles import Deferred, RateLimited

T = TypeVar("T")


def open_gate(store: str | None = None, config: opening.Config = None) -> Gate:
    """A gate, to be entered with `with`. The arguments are those of `headgate.open_gate`."""
    return Gate(store, config)


class Gate:
    """An open gate for threads."""

    def __init__(self, store: str | None = None, config: opening.Config = None) -> None:
        self._store = store
        self._config = config
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        ready: Future[service.Gate] = Future()
        self._thread = threading.Thread(target=self._serve, args=(ready,), name="headgate", daemon=True)
        self._thread.start()
        self._gate = ready.result()
        return self

    def _serve(self, ready: Future[service.Gate]) -> None:
        loop = asyncio.new_event_loop()
        try:
            gate = opening.open_gate(self._store, self._config)
            loop.run_until_complete(gate.__aenter__())
        except BaseException as error:
            loop.close()
            ready.set_exception(error)
            return
        self._loop = loop
        ready.set_result(gate)
        loop.run_forever()
        loop.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give everything back and let go of the store. Harmless when done twice."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            self._call(self._gate.close())
        finally:
            self._loop = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise HeadgateError("this gate is not open: use it inside `with headgate.sync.open_gate() as gate:`")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # Interrupted here (Ctrl-C): what was asked for must not be given to nobody.
            future.cancel()
            raise

    def lease(
        self,
        model: str | Sequence[str],
        *,
        kind: str = "requests",
        since: service.Since = None,
        priority: int = 0,
        flow: str = "default",
        seats: int = 1,
        any: bool = False,  # noqa: A002 - the word of the command line
        timeout_s: float | None = None,
        key: str = "",
    ) -> Leased:
        """A lease, to be entered with `with`: waits in line for it. See `headgate.Gate.lease`."""
        leased = self._gate.lease(
            model,
            kind=kind,
            since=since,
            priority=priority,
            flow=flow,
            seats=seats,
            any=any,
            timeout_s=timeout_s,
            key=key,
        )
        return Leased(self, leased)

    def try_lease(
        self,
        model: str | Sequence[str],
        *,
        kind: str = "requests",
        since: service.Since = None,
        priority: int = 0,
        flow: str = "default",
        seats: int = 1,
        any: bool = False,  # noqa: A002
        key: str = "",
    ) -> Leased | Deferred:
        """Answer at once: a lease, or a Deferred with the reason."""
        work = self._gate.try_lease(
            model, kind=kind, since=since, priority=priority, flow=flow, seats=seats, any=any, key=key
        )
        got = self._call(work)
        return got if isinstance(got, Deferred) else Leased(self, got)

    def set_cap(self, selector: str, cap: int, *, kind: str = "requests", **options: Any) -> None:
        """Set a cap; on disk when this returns. Options as in `headgate.Gate.set_cap`."""
        self._call(self._gate.set_cap(selector, cap, kind=kind, **options))

    def remove_cap(self, selector: str, *, kind: str = "requests") -> None:
        """No cap on this selector any more."""
        self._call(self._gate.remove_cap(selector, kind=kind))

    def set_cooldown(self, selector: str, cooldown_s: float, *, kind: str = "requests") -> None:
        """How long a released seat stays taken, from the next release on."""
        self._call(self._gate.set_cooldown(selector, cooldown_s, kind=kind))

    def pause(self, pool: str, *, kind: str = "requests", for_s: float | None = None) -> None:
        """Nobody new enters a pool, for a while or until `resume`."""
        self._call(self._gate.pause(pool, kind=kind, for_s=for_s))

    def resume(self, pool: str, *, kind: str = "requests") -> None:
        """End a pause."""
        self._call(self._gate.resume(pool, kind=kind))

    def cancel(self, ident: str) -> None:
        """Take a ticket out of the line."""
        self._call(self._gate.cancel(ident))

    def report(self, outcome: RateLimited, *, pool: str = "", lease: str = "", kind: str = "requests") -> None:
        """A rate limit that was seen, for a lease or for a pool."""
        self._call(self._gate.report(outcome, pool=pool, lease=lease, kind=kind))

    def status(self) -> list[PoolView]:
        """Every capped pool."""
        return self._call(self._gate.status())

    def queue(self) -> list[TicketView]:
        """The whole line, by position."""
        return self._call(self._gate.queue())

    def events(self, since: int | None = None) -> Iterator[tuple[int, int, ev.Event]]:
        """(seq, log time in ms, event) of everything after `since` (default: from now on), without end."""
        stream = self._gate.events(since)
        try:
            while True:
                yield self._call(_next(stream))
        finally:
            if self._loop is not None:
                self._call(_close(stream))


class Leased:
    """Seats of a gate while the block lasts. `model` is the candidate that was chosen."""

    def __init__(self, gate: Gate, leased: service.Leased) -> None:
        self._gate = gate
        self._leased = leased

    @property
    def id(self) -> str:
        return self._leased.id

    @property
    def model(self) -> str:
        return self._leased.model

    def release(self, outcome: str = "ok") -> None:
        """Give the seats back. Harmless when done twice."""
        self._gate._call(self._leased.release(outcome))

    def report(self, outcome: RateLimited) -> None:
        """Tell the gate what the provider said to this call."""
        self._gate._call(self._leased.report(outcome))

    def __enter__(self) -> Self:
        self._gate._call(self._leased.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release("ok" if error is None else "local_error")


async def _next(stream: Any) -> Any:
    return await anext(stream)


async def _close(stream: Any) -> None:
    await stream.aclose()


__all__ = ["Gate", "Leased", "open_gate"]
