"""The core of an open gate: replica, group commit, pending requests, timers and wake-ups of one process.

The library's `Gate`, the service's `ServiceGate`, the `Node` of a host, the proxy's `ModelCalls` and the background
tasks are built on one core, side by side, and use nothing but its public names. A core belongs to one event loop.

The rule: while a thread works on the log (`commits.busy`), nothing else in this process touches the log or the state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

from fleetgate.config.file import Loaded
from fleetgate.config.settings import Settings
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Ticket
from fleetgate.core.errors import FleetgateError
from fleetgate.core.state.state import State
from fleetgate.gate.library.acquisition import Acquisition
from fleetgate.gate.library.background_tasks import BackgroundTasks
from fleetgate.gate.library.lease_handles import checked
from fleetgate.gate.library.pending_requests import PendingRequests
from fleetgate.gate.library.usage_answers import UsageAnswers
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.liveness.host_beats import HostBeats
from fleetgate.gate.liveness.host_observer import HostObserver, first_look
from fleetgate.gate.outage_log import OutageLog
from fleetgate.gate.providers.credentials import Credentials
from fleetgate.gate.providers.usage_questions import UsageCallable, UsageSources
from fleetgate.gate.replica.group_commit import Batch, GroupCommit
from fleetgate.gate.replica.replica import Decided, Replica
from fleetgate.gate.slots.slot_gate import load_file
from fleetgate.gate.wakeup import mailbox
from fleetgate.gate.wakeup.other_hosts import Wake, heard, mark
from fleetgate.log.protocol import Listener, Log

_BACKUP_S = 0.2  # a process that is not the first to act on a deadline acts this much later

_UNOPENED = "this gate is not open: use it inside `async with fleetgate.open_gate() as gate:`"
_CLOSED = "this gate is closed"

T = TypeVar("T")


class NodeHooks(Protocol):
    """What the node of a host adds to its core."""

    def acts_for(self, ticket: Ticket) -> bool:
        """Whether this process acts first on the deadlines of a ticket."""

    def on_commit(self, seen: Sequence[ev.Event], made: Sequence[ev.Event]) -> None:
        """These events were committed: by other processes, and by this one."""

    def on_notifications(self, lines: Sequence[str]) -> None:
        """A shared log delivered these notifications."""


class GateCore:
    """The parts of one open gate, and how they work together."""

    def __init__(
        self,
        log: Log,
        loaded: Loaded | None = None,
        folder: str = "",
        usage: Mapping[str, UsageCallable] | None = None,
    ) -> None:
        self.host = process_identity.host_name()
        self.me = process_identity.this_process()
        self.log = log
        self.loaded = loaded
        self.settings = loaded.settings if loaded is not None else Settings()
        self.folder = folder  # the state folder; "" when the store is in memory
        self.replica = Replica(log, self.me, self._send_wake_up)
        self.replica.keeps_events = True
        self.replica.decides_in_thread = log.is_shared
        self.usage = UsageSources(self.settings, usage)
        self.observer = HostObserver(self.settings, folder)
        self.credentials = Credentials(self.settings, self.replica)
        self.beats = HostBeats(log, folder)
        if log.is_shared:
            self.beats.leave_to_thread()
        self.commits = GroupCommit(self.replica, self)
        self.requests = PendingRequests(self.replica, self.commits, lambda: self.closed)
        self.acquisition = Acquisition(self)
        self.background = BackgroundTasks(self)
        self.outage = OutageLog()
        self.changed = asyncio.Event()  # set, and replaced, when something was committed
        self.on_events: Callable[[list[ev.Event]], None] = lambda _: None  # called with what was committed, by anyone
        self.closed = False
        self.loop: asyncio.AbstractEventLoop
        self.listener: Listener | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self._opened = False
        self._node: NodeHooks | None = None
        self._usage_answers = UsageAnswers(self)
        self._known_reloads = 0  # of the replica, when the requests were last compared with it
        self._mailbox: mailbox.Mailbox | None = None
        self._reader: Log | None = None
        self._reader_lock = asyncio.Lock()
        self._unreached: set[str] = set()  # processes that a wake-up did not reach
        self._alarm: asyncio.TimerHandle | None = None
        self._gone: asyncio.Future[None]  # done when the store is closed

    def __repr__(self) -> str:
        return f"<GateCore on {self.log!r}: {len(self.requests.held)} leases, {len(self.requests.waiting)} waiting>"

    @property
    def address(self) -> str:
        """Where this gate is woken."""
        return self.replica.address

    def attach_node(self, node: NodeHooks) -> None:
        """Serve a whole host from now on: its node is asked who acts on deadlines, and hears of every commit."""
        self._node = node

    # Opening and closing.

    async def open(self) -> None:
        """Read the store, apply the config's caps, and start the background tasks."""
        if self._opened:
            raise FleetgateError("a gate is opened once: make another with `fleetgate.open_gate(…)`")
        self._opened = True
        self.loop = asyncio.get_running_loop()
        self._gone = self.loop.create_future()
        self.commits.open(self.loop)
        try:
            self.replica.catch_up()
            self._listen()
            if self.loaded is not None and not self.log.is_shared:
                await self.send(load_file(self.loaded))
            for command in first_look(self.settings, (), self.replica.state, self.host):
                await self.send(command)
        except BaseException:
            await self.close()
            raise
        self.tasks = self.background.start(self.loop)

    async def close(self) -> None:
        """Release everything and close the store. Closing twice is harmless."""
        if not self._opened:
            self._opened = self.closed = True
            self.log.close()
            return
        if not self.closed:
            self._start_closing()
        await asyncio.shield(self._gone)
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def check_open(self) -> None:
        if self.closed:
            raise FleetgateError(_CLOSED)
        if not self._opened:
            raise FleetgateError(_UNOPENED)

    def _listen(self) -> None:
        try:
            self._mailbox = mailbox.Mailbox(mailbox.runtime_folder(self.folder)) if self.folder else None
        except OSError:
            self._mailbox = None  # the poll must do
        if self._mailbox is not None:
            self.replica.address = self._mailbox.address
            self.loop.add_reader(self._mailbox.fileno(), self.read_mail)
        else:
            self.replica.address = f"local:{id(self):x}"
        shared = self.replica.shared
        if shared is not None:
            shared.fail_fast()
            self.listener = shared.listen()
            self.loop.add_reader(self.listener.fileno(), self._read_notifications)

    def _start_closing(self) -> None:
        waiting = self.requests.give_up_all()
        self.closed = True
        self.outage.stop()
        for task in self.tasks:
            task.cancel()
        self._usage_answers.cancel()
        for future in waiting:
            if not future.done():
                future.set_exception(FleetgateError(_CLOSED))
        self.commits.finish(FleetgateError(_CLOSED))

    def all_finished(self) -> None:
        """After `commits.finish`: the last transaction is over."""
        if self._alarm is not None:
            self._alarm.cancel()
        if self._mailbox is not None:
            self.loop.remove_reader(self._mailbox.fileno())
            self._mailbox.close()
        if self.listener is not None:
            self.loop.remove_reader(self.listener.fileno())
            self.listener.close()
        if self._reader is not None:
            self._reader.close()
        try:
            self.log.close()
        finally:
            self._gone.set_result(None)

    # Reading.

    def now(self) -> int:
        """The log's time, which never goes back."""
        return max(self.log.now(), self.replica.state.at)

    async def read_state(self) -> State:
        """The state, with the effects of every earlier command of this process in it."""
        self.check_open()
        if self.commits.busy or self.commits.batch:
            await self.commits.post(cmd.Tick())
        elif self.log.is_shared:
            await self.commits.catch_up_in_thread()
        else:
            self.catch_up()
        if self.replica.recovery.wanted:
            await self.commits.post(cmd.Tick())  # which writes down what the log has lost and we know
        return self.replica.state

    def known_state(self) -> State:
        """The newest state that can be read without waiting for the store."""
        if self.commits.busy or self.log.is_shared:
            return self.replica.state
        return self.replica.catch_up()

    def catch_up(self) -> None:
        """Read what other processes committed. Not while a thread works on the log."""
        self.replica.catch_up()
        self.outage.worked("reads")
        self.after_commit()

    async def read_log(self, read: Callable[[Log], T]) -> T:
        """The result of `read` on the log, once every earlier command of this process is in it."""
        await self.read_state()  # no thread is at work now: what `read` finds is committed
        if not self.log.is_shared:
            return read(self.log)
        return await self.read_in_thread(read)

    async def read_in_thread(self, read: Callable[[Log], T]) -> T:
        """The result of `read` on a second connection to the log: neither the loop nor a decision waits for it."""
        async with self._reader_lock:
            return await self.loop.run_in_executor(None, self._read_apart, read)

    def _read_apart(self, read: Callable[[Log], T]) -> T:
        if self._reader is None:
            self._reader = self.log.connect()
        try:
            return read(self._reader)
        finally:
            if self.closed:  # since then, and perhaps before there was a reader to close
                self._reader.close()

    # Deciding.

    async def send(self, command: cmd.Command, *, durable: bool = False) -> Decided:
        """Have one command decided; raises the caller's mistake. With `durable` it is on disk afterwards."""
        self.check_open()
        decided = await self.commits.post(checked(command), durable=durable)
        if decided.error is not None:
            raise decided.error
        return decided

    # What group commit reports (`CommitListener`).

    def commands_decided(self, batch: Batch, decided: list[Decided]) -> None:
        for (command, future), one in zip(batch, decided, strict=True):
            if type(command) is cmd.Acquire and future is None:
                self.requests.answer_refusal(command, one)
            elif future is not None and not future.done():
                future.set_result(one)
        self.outage.worked("commits")
        self.requests.retry_releases()
        self.after_commit()

    def commands_failed(self, batch: Batch, error: BaseException) -> None:
        self.requests.fail(batch, error)

    def after_commit(self) -> None:
        """Give waiting requests what was decided for them, by any process; then set the alarm for the next deadline."""
        replica = self.replica
        made, replica.made = replica.made, []
        seen: list[ev.Event] = []
        if replica.seen:
            seen, replica.seen = replica.seen, []
        for event in seen:
            self.requests.apply(event)
        for event in made:
            self.requests.apply(event)
        self.acquisition.something_is_backed_off = bool(replica.state.backoffs)
        if seen or made:
            self.changed.set()
            self.changed = asyncio.Event()
        if replica.reloads != self._known_reloads:
            self._known_reloads = replica.reloads
            try:
                self.requests.compare_with_state()
            except FleetgateError as error:
                self.outage.failed("reads", error)  # the poll does it again
        if replica.recovery.wanted and not self.closed:
            self.commits.schedule()
        if self.usage and self.requests.waiting and not self.closed:
            self._usage_answers.ask_where_wanted()
        self._set_alarm()
        if self._unreached:
            self._report_dead_waiters()
        if seen or made:
            self.on_events([*seen, *made])
        if self._node is not None:
            self._node.on_commit(seen, made)

    # Deadlines and wake-ups.

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        due = self.replica.due
        if due is None or self.closed or not (self.requests.waiting or self._serves_waiting_processes()):
            return
        first = self.replica.engine.first_to_act()
        delay_s = max(due - self.log.now(), 0) / 1000 + (
            0 if first is not None and self._acts_for(first) else _BACKUP_S
        )
        self._alarm = self.loop.call_later(delay_s, self.commits.schedule)

    def _serves_waiting_processes(self) -> bool:
        return self._node is not None and bool(self.replica.state.tickets)

    def _acts_for(self, ticket: Ticket) -> bool:
        return ticket.wake == self.replica.address if self._node is None else self._node.acts_for(ticket)

    def _read_notifications(self) -> None:
        assert self.listener is not None
        lines = self.listener.drain()
        if heard(lines, mark(self.host, self.replica.address)):
            self.read_mail()
        if self._node is not None:
            self._node.on_notifications(lines)

    def read_mail(self) -> None:
        """Another process has decided something for this one, or may have: read it as soon as the log is free."""
        if self._mailbox is not None:
            self._mailbox.drain()
        if self.log.is_shared:
            self.commits.catch_up_in_thread()
            return
        if self.commits.busy:
            self.commits.must_catch_up = True
            return
        try:
            self.catch_up()
        except FleetgateError as error:
            self.outage.failed("reads", error)  # the poll tries again

    def _send_wake_up(self, wake: Wake) -> None:
        if mailbox.send(wake.address, wake.message) is False:
            self._unreached.add(wake.holder)

    def _report_dead_waiters(self) -> None:
        gone = tuple(sorted(holder for holder in self._unreached if process_identity.is_gone(holder)))
        self._unreached.clear()
        if gone:
            self.commits.put(cmd.Lost(gone))

    # A new config.

    async def use(self, loaded: Loaded) -> None:
        """Go by a config file that was read again."""
        self.loaded, self.settings = loaded, loaded.settings
        self.usage = UsageSources(self.settings, None)
        self.credentials = Credentials(self.settings, self.replica)
        self.observer = HostObserver(self.settings, self.folder)
        self.acquisition.forget_specs()
        if not self.log.is_shared:
            await self.send(load_file(loaded), durable=True)
