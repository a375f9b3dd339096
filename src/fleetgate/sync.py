"""The gate for synchronous programs, from any thread.

    with fleetgate.sync.open_gate() as gate:
        with gate.lease("umans/coder") as lease:
            answer = call(lease.model)

One background thread runs the asyncio gate, so that the leases of all threads share transactions. A thread that is
interrupted while it waits (Ctrl-C) leaves the queue. A release is never interrupted.

A gate belongs to the process that opened it. A forked child (multiprocessing's `fork`) must open its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Self, TypeVar

from fleetgate.core import events as ev
from fleetgate.core.errors import FleetgateError
from fleetgate.core.usage import Usage
from fleetgate.core.views.budget_views import BudgetView
from fleetgate.core.views.pool_and_lease_views import PoolView, TicketView
from fleetgate.gate.library import gate as library_gate
from fleetgate.gate.library import lease_handles
from fleetgate.gate.library import open_gate as async_gate
from fleetgate.gate.library.acquisition import Acquisition
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.library.lease_handles import Deferred, RateLimited
from fleetgate.gate.providers.usage_questions import UsageCallable
from fleetgate.log import fork_safety

T = TypeVar("T")

_UNOPENED = "this gate is not open: use it inside `with fleetgate.sync.open_gate() as gate:`"
_CLOSED = "this gate is closed"


def open_gate(
    store: str | None = None, config: async_gate.Config = None, usage: Mapping[str, UsageCallable] | None = None
) -> Gate:
    """Return a gate to enter with `with`. The arguments are those of `fleetgate.open_gate`."""
    return Gate(store, config, usage)


class GateThread:
    """The thread that runs the asyncio gate, and the way for other threads to call it."""

    def __init__(self, core: Callable[[], GateCore]) -> None:
        self._make_core = core
        self._thread: threading.Thread | None = None
        self._mutex = threading.Lock()  # nothing is given to the loop after it was told to stop
        self._why_closed = _CLOSED
        self.closed = False
        self.gate: library_gate.Gate
        self.acquisition: Acquisition
        self.loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        fork_safety.on_fork(self, type(self).forget)

    def forget(self) -> None:
        """In a forked child, which has neither the thread nor the leases."""
        self._thread, self._mutex = None, threading.Lock()
        self.closed, self._why_closed = True, fork_safety.BEFORE_FORK

    def start(self) -> None:
        """Open the gate in a new thread; raises what is wrong with the store or the config."""
        if self._thread is not None or self.closed:
            raise FleetgateError("a gate is opened once: make another with `fleetgate.sync.open_gate(…)`")
        ready: Future[GateCore] = Future()
        self._thread = threading.Thread(target=self._serve, args=(ready,), name="fleetgate", daemon=True)
        self._thread.start()
        try:
            core = ready.result()
        except BaseException:
            if not ready.cancel() and ready.exception() is None:
                self.stop()  # interrupted when it had just been opened
            self.closed = True
            raise
        self.gate, self.acquisition = library_gate.Gate(core), core.acquisition

    def _serve(self, ready: Future[GateCore]) -> None:
        try:
            asyncio.run(self._run(ready))
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)

    async def _run(self, ready: Future[GateCore]) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with self._make_core() as core:
            if ready.set_running_or_notify_cancel():
                ready.set_result(core)
                await self._stop.wait()

    def stop(self) -> None:
        """Close the gate and end the thread. Stopping twice is harmless."""
        if self._thread is None:
            return
        with self._mutex:
            if not self.closed:
                self.closed = True
                self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def check_open(self) -> None:
        if self.closed:
            raise FleetgateError(self._why_closed)
        if self._thread is None:
            raise FleetgateError(_UNOPENED)

    def call(self, work: Coroutine[Any, Any, T], *, withdraw: str = "", finish: bool = False) -> T:
        """Run a coroutine in the gate's thread, and wait for its result.

        When this thread is interrupted (Ctrl-C), the coroutine is cancelled, unless it is to `finish`; a lease with
        the id `withdraw` that it may have acquired is released.
        """
        try:
            with self._mutex:
                self.check_open()
                future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except CancelledError:
            raise FleetgateError(_CLOSED) from None
        except BaseException:
            if not future.done() and not finish:
                future.cancel()
            if withdraw:
                self._withdraw(withdraw)
            raise

    def _withdraw(self, ident: str) -> None:
        with self._mutex:
            if not self.closed:
                self.loop.call_soon_threadsafe(self.acquisition.give_up_if_held, ident)


class Gate:
    """An open gate for threads."""

    def __init__(
        self,
        store: str | None = None,
        config: async_gate.Config = None,
        usage: Mapping[str, UsageCallable] | None = None,
    ) -> None:
        # For what else is built on this gate; not part of the public API.
        self.thread = GateThread(lambda: async_gate.open_core(store, config, usage))

    @property
    def _gate(self) -> library_gate.Gate:
        self.thread.check_open()
        return self.thread.gate

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release everything and close the store. Closing twice is harmless."""
        self.thread.stop()

    def lease(
        self,
        model: str | Sequence[str],
        *,
        kind: str = "requests",
        since: lease_handles.Since = None,
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
        """Return a lease to enter with `with`, which waits in the queue until there is a slot.

        The arguments are those of `fleetgate.Gate.lease`.
        """
        leased = self._gate.lease(
            model,
            kind=kind,
            since=since,
            priority=priority,
            project=project,
            slots=slots,
            any_candidate=any_candidate,
            timeout_s=timeout_s,
            key=key,
            conversation=conversation,
            estimate=estimate,
            work_class=work_class,
        )
        return Leased(self.thread, leased)

    def try_lease(
        self,
        model: str | Sequence[str],
        *,
        kind: str = "requests",
        since: lease_handles.Since = None,
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

        The arguments are those of `fleetgate.Gate.try_lease`.
        """
        self.thread.check_open()
        acquisition = self.thread.acquisition
        spec = acquisition.spec(model, kind, slots, project, any_candidate, work_class=work_class)
        leased = acquisition.new_lease(spec, False, since, priority, key, conversation, estimate)
        got = self.thread.call(leased.acquire(), withdraw=leased.id)
        return got if isinstance(got, Deferred) else Leased(self.thread, leased)

    def set_cap(self, selector: str, cap: int, *, kind: str = "requests", **options: Any) -> None:
        """Set a cap. It is on disk when this returns. The options are those of `fleetgate.Gate.set_cap`."""
        self.thread.call(self._gate.set_cap(selector, cap, kind=kind, **options))

    def remove_cap(self, selector: str, *, kind: str = "requests") -> None:
        """Remove the cap of a selector, with its pause and its reduction."""
        self.thread.call(self._gate.remove_cap(selector, kind=kind))

    def set_cooldown(self, selector: str, cooldown_s: float, *, kind: str = "requests") -> None:
        """Set how long a released slot stays in use, from the next release on."""
        self.thread.call(self._gate.set_cooldown(selector, cooldown_s, kind=kind))

    def pause(self, pool: str, *, kind: str = "requests", for_s: float | None = None) -> None:
        """Admit nothing new to a pool, for `for_s` seconds or until `resume`."""
        self.thread.call(self._gate.pause(pool, kind=kind, for_s=for_s))

    def resume(self, pool: str, *, kind: str = "requests") -> None:
        """End a pause."""
        self.thread.call(self._gate.resume(pool, kind=kind))

    def cancel(self, ident: str) -> None:
        """Take a ticket out of the queue."""
        self.thread.call(self._gate.cancel(ident))

    def report(self, outcome: RateLimited, *, pool: str = "", lease: str = "", kind: str = "requests") -> None:
        """Report a rate limit, for a lease or for a pool."""
        self.thread.call(self._gate.report(outcome, pool=pool, lease=lease, kind=kind))

    def status(self) -> list[PoolView]:
        """Every capped pool."""
        return self.thread.call(self._gate.status())

    def budgets(self) -> list[BudgetView]:
        """Every rate and budget, with what is used, reserved and free."""
        return self.thread.call(self._gate.budgets())

    def queue(self) -> list[TicketView]:
        """The whole queue, by position."""
        return self.thread.call(self._gate.queue())

    def events(self, since: int | None = None) -> Iterator[tuple[int, int, ev.Event]]:
        """Yield (sequence number, log time in ms, event) for everything after `since` (default: from now on).

        The stream has no end.
        """
        stream = self._gate.events(since)
        try:
            while True:
                yield self.thread.call(_next(stream))
        finally:
            if not self.thread.closed:
                self.thread.call(_close(stream), finish=True)


class Leased:
    """A lease: slots that are held while its block lasts. Made by `Gate.lease` and `Gate.try_lease`."""

    def __init__(self, thread: GateThread, leased: lease_handles.Leased) -> None:
        self._thread = thread
        self._leased = leased

    @property
    def id(self) -> str:
        """The id of the request, as `fleetgate ps` shows it."""
        return self._leased.id

    @property
    def model(self) -> str:
        """The candidate that was chosen. FleetgateError when the lease is not held yet."""
        return self._leased.model

    def settle(self, usage: Usage) -> None:
        """Report what the call used. See `fleetgate.Leased.settle`."""
        self._thread.call(self._leased.settle(usage))

    def release(self, outcome: str = "ok") -> None:
        """Release the slots. Releasing twice is harmless. The outcomes are those of `fleetgate.Leased.release`."""
        if not self._thread.closed:  # else it was released then
            self._thread.call(self._leased.release(outcome), finish=True)

    def report(self, outcome: RateLimited) -> None:
        """Report that the provider refused this call because of a rate limit."""
        self._thread.call(self._leased.report(outcome))

    def accepted(self) -> None:
        """Report that the provider has begun to answer, so that an adaptive limit is learned sooner."""
        self._thread.call(self._leased.accepted())

    def __enter__(self) -> Self:
        self._thread.call(self._leased.__aenter__(), withdraw=self.id)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release("ok" if error is None else "local_error")
        except FleetgateError:
            if error is None:
                raise
            # The error of the block matters more. The gate releases the slots as soon as the store works.


async def _next(stream: Any) -> Any:
    return await anext(stream)


async def _close(stream: Any) -> None:
    await stream.aclose()


__all__ = ["Gate", "Leased", "open_gate"]
