"""The gate for asyncio programs: many requests in one process share its transactions (SPEC Y1).

Group commit: commands that come while a transaction is under way go into the next one together; a single one is
committed at once. The transaction runs inline when the lock is free, since a hop to a thread costs more than it
does, and in a thread when somebody else has the lock, so that the loop never waits.

Leaving a `lease` block by any door releases: an exception, a cancellation, also one that comes before the seat does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from time import time_ns
from types import TracebackType
from typing import Self

from headgate.config.load import Loaded
from headgate.config.settings import Settings
from headgate.core import commands as cmd
from headgate.core import events as ev
from headgate.core.errors import HeadgateError
from headgate.core.reasons import reason_for
from headgate.core.records import Lease, Reason, Rule, Spec
from headgate.core.state import State
from headgate.core.views import PoolView, TicketView, pool_views, ticket_view, ticket_views
from headgate.gate import processes, wake
from headgate.gate.direct import load_file
from headgate.gate.handles import Deferred, NotAdmitted, RateLimited
from headgate.gate.ids import new_id
from headgate.gate.surroundings import Surroundings, lost
from headgate.gate.transaction import Decided, Replica, Wake
from headgate.log.protocol import Log

POLL_S = 1.0
UPKEEP_S = 10.0
_BACKUP_S = 0.2  # whoever is not first to act on a deadline looks so much later

Since = float | datetime | None


class Gate:
    """An open gate. Made by `headgate.open_gate`; belongs to one event loop."""

    def __init__(self, log: Log, loaded: Loaded | None = None, folder: str = "") -> None:
        self.host = processes.host_name()
        self._log = log
        self._loaded = loaded
        self._settings = loaded.settings if loaded is not None else Settings()
        self._folder = folder
        self._me = processes.this_process()
        self._replica = Replica(log, self._me, self._send)
        self._replica.listens = True
        self._surroundings = Surroundings(self._settings, f"{folder}/census.cache" if folder else "")
        self._mailbox: wake.Mailbox | None = None
        self._batch: list[tuple[cmd.Command, asyncio.Future[Decided] | None]] = []
        self._durable = False
        self._scheduled = False
        self._deciding = False
        self._mail = False
        self._waiting: dict[str, asyncio.Future[Lease | Deferred]] = {}
        self._mine: dict[str, Lease] = {}
        self._unheard: set[str] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Gate on {self._log!r}: {len(self._mine)} leases, {len(self._waiting)} waiting>"

    # Opening and closing.

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._replica.catch_up()
        try:
            self._mailbox = wake.Mailbox(wake.runtime_folder(self._folder)) if self._folder else None
        except OSError:
            self._mailbox = None  # the poll must do
        if self._mailbox is not None:
            self._replica.address = self._mailbox.address
            self._loop.add_reader(self._mailbox.fileno(), self._on_mail)
        else:
            self._replica.address = f"local:{id(self):x}"
        if self._loaded is not None:
            await self._ask(load_file(self._loaded))
        self._tasks = [self._loop.create_task(self._poll()), self._loop.create_task(self._upkeep())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give everything back and let go of the store. Harmless when done twice."""
        if self._closed:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for ident in [*self._waiting, *self._mine]:
            self._leave(ident)
        if self._batch or self._deciding:
            await asyncio.gather(self._post(cmd.Tick()), return_exceptions=True)
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for future in self._waiting.values():
            future.cancel()
        if self._mailbox is not None:
            self._loop.remove_reader(self._mailbox.fileno())
            self._mailbox.close()
        self._log.close()

    # Leases.

    def lease(
        self,
        model: str | Sequence[str],
        *,
        kind: str = "requests",
        since: Since = None,
        priority: int = 0,
        flow: str = "default",
        seats: int = 1,
        any: bool = False,  # noqa: A002 - the word of the command line
        timeout_s: float | None = None,
        key: str = "",
    ) -> Leased:
        """A lease, to be entered with `async with`: waits in line for it.

        `model` is one model or several candidates in order of preference. `since` is when the prompt started (epoch
        seconds or an aware datetime; default now): the older goes first. `flow` is the fairness group. Raises
        NotAdmitted when it is not admitted within `timeout_s`, or its ticket is cancelled or expires.
        """
        spec = self._spec(model, kind, seats, flow, any)
        command = cmd.Acquire(
            new_id(), spec, self._me, True, self._log_time(since), priority, wake=self._replica.address, key=key
        )
        return Leased(self, command, timeout_s)

    async def try_lease(
        self,
        model: str | Sequence[str],
        *,
        kind: str = "requests",
        since: Since = None,
        priority: int = 0,
        flow: str = "default",
        seats: int = 1,
        any: bool = False,  # noqa: A002
        key: str = "",
    ) -> Leased | Deferred:
        """Answer at once: a lease (release it, or use it with `async with`), or a Deferred with the reason."""
        spec = self._spec(model, kind, seats, flow, any)
        command = cmd.Acquire(
            new_id(), spec, self._me, False, self._log_time(since), priority, wake=self._replica.address, key=key
        )
        leased = Leased(self, command, None)
        got = await leased.acquire()
        return got if isinstance(got, Deferred) else leased

    def _spec(self, model: str | Sequence[str], kind: str, seats: int, flow: str, any_candidate: bool) -> Spec:
        models = (model,) if isinstance(model, str) else tuple(model)
        host = self.host if kind == "agents" else ""
        return Spec(models, kind, seats, host, flow, any_candidate)

    def _log_time(self, since: Since) -> int | None:
        if since is None:
            return None
        wall_s = since.timestamp() if isinstance(since, datetime) else since
        return int(wall_s * 1000) - time_ns() // 1_000_000 + self._log.now()

    async def _acquire(self, command: cmd.Acquire) -> Lease | Deferred:
        future: asyncio.Future[Lease | Deferred] = self._loop.create_future()
        self._waiting[command.id] = future
        self._put(command, None)
        try:
            return await future
        except BaseException:
            self._leave(command.id)
            raise

    def _leave(self, ident: str) -> None:
        """Give up whatever this id stands for by now. Never waits: what is in the batch will be done."""
        self._waiting.pop(ident, None)
        self._mine.pop(ident, None)
        if not self._closed:
            self._put(cmd.Release(ident, "ok"), None)
            self._put(cmd.Cancel(ident), None)

    async def _release(self, command: cmd.Release) -> None:
        if self._mine.pop(command.id, None) is not None and not self._closed:
            await self._post(command)

    # Managing.

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
    ) -> None:
        """Set a cap; on disk when this returns. Whoever fits now enters."""
        rule = Rule(
            kind,
            selector,
            cap,
            cooldown_ms=None if cooldown_s is None else int(cooldown_s * 1000),
            on_429=on_429,
            max_hold_ms=None if max_hold_s is None else int(max_hold_s * 1000),
            name=name,
        )
        await self._ask(cmd.SetRule(rule), durable=True)

    async def remove_cap(self, selector: str, *, kind: str = "requests") -> None:
        """No cap on this selector any more; its pause and reduction are forgotten."""
        await self._ask(cmd.RemoveCap(kind, selector), durable=True)

    async def set_cooldown(self, selector: str, cooldown_s: float, *, kind: str = "requests") -> None:
        """How long a released seat stays taken, from the next release on."""
        await self._ask(cmd.SetRule(Rule(kind, selector, cooldown_ms=int(cooldown_s * 1000))), durable=True)

    async def pause(self, pool: str, *, kind: str = "requests", for_s: float | None = None) -> None:
        """Nobody new enters a pool, for a while or until `resume`."""
        await self._ask(cmd.Pause(kind, pool, None if for_s is None else int(for_s * 1000)), durable=True)

    async def resume(self, pool: str, *, kind: str = "requests") -> None:
        """End a pause."""
        await self._ask(cmd.Resume(kind, pool), durable=True)

    async def cancel(self, ident: str) -> None:
        """Take a ticket out of the line."""
        await self._ask(cmd.Cancel(ident, "library"))

    async def report(self, outcome: RateLimited, *, pool: str = "", lease: str = "", kind: str = "requests") -> None:
        """A rate limit that was seen, for a lease or for a pool."""
        after = None if outcome.retry_after_s is None else int(outcome.retry_after_s * 1000)
        await self._ask(cmd.Report(lease, kind, pool, after))

    async def status(self) -> list[PoolView]:
        """Every capped pool."""
        state = await self._current()
        return pool_views(state, self._now(), self.host)

    async def queue(self) -> list[TicketView]:
        """The whole line, by position."""
        state = await self._current()
        return ticket_views(state, self._now())

    async def events(self, since: int | None = None) -> AsyncIterator[tuple[int, int, ev.Event]]:
        """(seq, log time in ms, event) of everything after `since` (default: from now on), without end."""
        seq = (await self._current()).seq if since is None else since
        while True:
            self._changed.clear()
            for number, at, event in self._log.history(seq):
                seq = number
                yield number, at, event
            try:
                async with asyncio.timeout(POLL_S / 2):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _current(self) -> State:
        if self._deciding:
            await self._post(cmd.Tick())
        else:
            self._replica.catch_up()
            self._after()
        return self._replica.state

    def _now(self) -> int:
        return max(self._log.now(), self._replica.state.at)

    async def _ask(self, command: cmd.Command, *, durable: bool = False) -> Decided:
        decided = await self._post(command, durable=durable)
        if decided.error is not None:
            raise decided.error
        return decided

    # Group commit.

    def _post(self, command: cmd.Command, *, durable: bool = False) -> asyncio.Future[Decided]:
        future: asyncio.Future[Decided] = self._loop.create_future()
        self._durable = self._durable or durable
        self._put(command, future)
        return future

    def _put(self, command: cmd.Command, future: asyncio.Future[Decided] | None) -> None:
        if self._closed:
            raise HeadgateError("this gate is closed")
        self._batch.append((command, future))
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self._deciding:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._deciding or self._closed:
            return
        batch, self._batch = self._batch, []
        durable, self._durable = self._durable, False
        commands = [command for command, _ in batch]
        try:
            decided = self._replica.try_decide(commands, durable=durable)
        except Exception as error:
            self._failed(batch, error)
            return
        if decided is not None:
            self._done(batch, decided)
            return
        self._deciding = True
        work = self._loop.run_in_executor(None, lambda: self._replica.decide(commands, durable=durable))
        work.add_done_callback(lambda done: self._back(batch, done))

    def _back(
        self, batch: list[tuple[cmd.Command, asyncio.Future[Decided] | None]], done: asyncio.Future[list[Decided]]
    ) -> None:
        self._deciding = False
        error = done.exception()
        if error is not None:
            self._failed(batch, error)
        else:
            self._done(batch, done.result())
        if self._batch or self._mail:
            self._schedule()

    def _failed(self, batch: list[tuple[cmd.Command, asyncio.Future[Decided] | None]], error: BaseException) -> None:
        """Nothing of this batch happened; everybody in it is told so."""
        for command, future in batch:
            if type(command) is cmd.Acquire:
                waiting = self._waiting.pop(command.id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_exception(error)
            if future is not None and not future.done():
                future.set_exception(error)

    def _done(
        self, batch: list[tuple[cmd.Command, asyncio.Future[Decided] | None]], decided: list[Decided]
    ) -> None:
        for (command, future), one in zip(batch, decided, strict=True):
            if type(command) is cmd.Acquire:
                self._answer(command, one)
            elif future is not None and not future.done():
                future.set_result(one)
        self._after()

    def _answer(self, command: cmd.Acquire, decided: Decided) -> None:
        """A refusal at once; a grant comes with the events, now or later."""
        if decided.error is None and (not decided.events or type(decided.events[-1]) is not ev.Deferred):
            return
        waiting = self._waiting.pop(command.id, None)
        if waiting is None or waiting.done():
            return
        if decided.error is not None:
            waiting.set_exception(decided.error)
        else:
            waiting.set_result(Deferred(decided.events[-1].reason))  # type: ignore[union-attr]

    def _after(self) -> None:
        """Tell those who wait here what became of them, whoever decided it; then see to the next deadline."""
        replica = self._replica
        for event in replica.made:
            self._hear(event)
        replica.made = []
        if replica.seen:
            seen, replica.seen = replica.seen, []
            for event in seen:
                self._hear(event)
        self._changed.set()
        self._arm()
        if self._unheard:
            self._look_for_the_unheard()

    def _hear(self, event: ev.Event) -> None:
        kind = type(event)
        if kind is ev.Granted or kind is ev.Claimed:
            ident = event.id  # type: ignore[union-attr]
            waiting = self._waiting.get(ident)
            if waiting is None:
                return
            lease = self._replica.state.leases.get(ident)
            if lease is None:
                return
            if not lease.claimed:
                self._put(cmd.Claim(ident), None)
                return
            del self._waiting[ident]
            if not waiting.done():
                self._mine[ident] = lease
                waiting.set_result(lease)
        elif kind is ev.Returned and event.id in self._waiting:  # type: ignore[union-attr]
            self._put(cmd.Ask(event.id), None)  # type: ignore[union-attr]
        elif kind is ev.Expired or kind is ev.Cancelled or kind is ev.Dropped:
            waiting = self._waiting.pop(event.id, None)  # type: ignore[union-attr]
            if waiting is not None and not waiting.done():
                word = kind.__name__.lower()
                waiting.set_exception(NotAdmitted(f"the ticket was {word}", Reason(word, f"the ticket was {word}")))

    # Deadlines, wake-ups, polling, upkeep.

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        due = self._replica.due
        if due is None or not self._waiting:
            return
        first = self._replica.engine.first_to_act()
        mine = first is not None and first.wake == self._replica.address
        delay_s = max(due - self._log.now(), 0) / 1000 + (0 if mine else _BACKUP_S)
        self._alarm = self._loop.call_later(delay_s, self._schedule)

    def _on_mail(self) -> None:
        assert self._mailbox is not None
        self._mailbox.drain()
        if self._deciding:
            self._mail = True
        else:
            self._take_in()

    def _take_in(self) -> None:
        self._mail = False
        self._replica.catch_up()
        self._after()

    def _send(self, message: Wake) -> None:
        if wake.send(message.address, message.message) is False:
            self._unheard.add(message.holder)

    def _look_for_the_unheard(self) -> None:
        gone = tuple(sorted(holder for holder in self._unheard if processes.is_gone(holder)))
        self._unheard.clear()
        if gone:
            self._put(cmd.Lost(gone), None)

    async def _poll(self) -> None:
        """The backstop: once a second while anybody waits here."""
        while True:
            await asyncio.sleep(POLL_S)
            if self._deciding or not self._waiting:
                continue
            try:
                self._take_in()
                gone = lost(self._replica.state)
                if gone is not None:
                    self._put(gone, None)
                observed = self._surroundings.observe(lambda: self._replica.state, self.host)
                if observed is not None:
                    self._put(observed, None)
            except HeadgateError:
                continue  # the store is in trouble: those who ask are told; the poll goes on

    async def _upkeep(self) -> None:
        """Snapshots and pruning; and leases in our name that nobody here holds are given back."""
        while True:
            await asyncio.sleep(UPKEEP_S)
            if self._deciding:
                continue
            try:
                self._replica.catch_up()
                self._replica.maintain(self._settings.keep_ms)
            except HeadgateError:
                continue
            for ident in self._strangers():
                self._leave(ident)

    def _strangers(self) -> list[str]:
        state, address = self._replica.state, self._replica.address
        known = self._mine.keys() | self._waiting.keys()
        tickets = [lease.ticket for lease in state.leases.values()] + list(state.tickets.values())
        return [
            ticket.id
            for ticket in tickets
            if ticket.holder == self._me and ticket.wake == address and ticket.id not in known
        ]

    def _why(self, ident: str, spec: Spec) -> Reason:
        """Why a request of ours still waits."""
        view = ticket_view(self._replica.state, ident, self._now())
        if view is not None:
            return view.reason
        return reason_for(self._replica.state, self._replica.state.queue(spec), self._now())


class Leased:
    """Seats of a gate while the block lasts. `model` is the candidate that was chosen."""

    def __init__(self, gate: Gate, command: cmd.Acquire, timeout_s: float | None) -> None:
        self._gate = gate
        self._command = command
        self._timeout_s = timeout_s
        self._lease: Lease | None = None

    def __repr__(self) -> str:
        return f"<Leased {self.id} {self._lease.model if self._lease else 'not held'}>"

    @property
    def id(self) -> str:
        return self._command.id

    @property
    def model(self) -> str:
        if self._lease is None:
            raise HeadgateError("the lease is not held")
        return self._lease.model

    async def acquire(self) -> Self | Deferred:
        """Wait for the seats."""
        if self._timeout_s is None:
            got = await self._gate._acquire(self._command)
        else:
            try:
                async with asyncio.timeout(self._timeout_s):
                    got = await self._gate._acquire(self._command)
            except TimeoutError:
                reason = self._gate._why(self.id, self._command.spec)
                raise NotAdmitted(f"not admitted within {self._timeout_s:g} s: {reason.text}", reason) from None
        if isinstance(got, Deferred):
            return got
        self._lease = got
        return self

    async def release(self, outcome: str = "ok") -> None:
        """Give the seats back. Harmless when done twice."""
        if self._lease is not None:
            await self._gate._release(cmd.Release(self.id, outcome))

    async def report(self, outcome: RateLimited) -> None:
        """Tell the gate what the provider said to this call."""
        await self._gate.report(outcome, lease=self.id)

    async def __aenter__(self) -> Self:
        if self._lease is None:
            await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release("ok" if error is None else "local_error")

