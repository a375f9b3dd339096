"""The gate for asyncio programs: many requests in one process share its transactions (SPEC Y1).

Leaving a `lease` block by any door releases: an exception, a cancellation, also one that comes before the slot does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Self, TypeVar

from fleetgate.config.file import Loaded
from fleetgate.config.settings import Settings
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Lease, Reason, Spec
from fleetgate.core.errors import BadRequest, FleetgateError
from fleetgate.core.model_names import canonical
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import ticket_view
from fleetgate.core.views.wait_reasons import reason_for
from fleetgate.gate.library import background_tasks
from fleetgate.gate.library.background_tasks import BackgroundTasks
from fleetgate.gate.library.lease_handles import Deferred, Leased, NotAdmitted, Since, checked, epoch_ms, number
from fleetgate.gate.library.pending_requests import PendingRequests
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.liveness.dead_holders import Observer, first_look
from fleetgate.gate.liveness.host_beats import HostBeats
from fleetgate.gate.managing import Managing
from fleetgate.gate.observation import before_deciding, would_be_refused
from fleetgate.gate.providers.credentials import Credentials
from fleetgate.gate.providers.usage_questions import Usage, UsageCallable
from fleetgate.gate.replica.group_commit import Batch, GroupCommit
from fleetgate.gate.replica.replica import Decided, Replica
from fleetgate.gate.request_ids import new_id
from fleetgate.gate.slots.direct_gate import load_file
from fleetgate.gate.slots.slot_gate import with_own_host_cap
from fleetgate.gate.wakeup import mailbox
from fleetgate.gate.wakeup.other_hosts import Wake, heard, mark
from fleetgate.log.clock import steady, wall_ms
from fleetgate.log.protocol import Listener, Log

_BACKUP_S = 0.2  # whoever is not first to act on a deadline looks so much later
_EVENTS_AT_ONCE = 500
_MOST_SPECS = 1024
_NOT_THE_PROVIDERS = ("ok", "local_error")

_UNOPENED = "this gate is not open: use it inside `async with fleetgate.open_gate() as gate:`"
_CLOSED = "this gate is closed"

T = TypeVar("T")


class Gate(Managing):
    """An open gate. Made by `fleetgate.open_gate`; belongs to one event loop."""

    def __init__(
        self,
        log: Log,
        loaded: Loaded | None = None,
        folder: str = "",
        usage: Mapping[str, UsageCallable] | None = None,
    ) -> None:
        self.host = process_identity.host_name()
        self._log = log
        self._loaded = loaded
        self._settings = loaded.settings if loaded is not None else Settings()
        self._folder = folder
        self._me = process_identity.this_process()
        self._replica = Replica(log, self._me, self._send)
        self._replica.listens = True
        self._replica.hands_over = log.is_shared
        self._reloads = 0  # of the replica, when we last compared ourselves with it
        self._usage = Usage(self._settings, usage)
        self._asking: set[tuple[str, str]] = set()  # pools whose provider is being asked from here
        self._surroundings = Observer(self._settings, folder)
        self._credentials = Credentials(self._settings, self._replica)
        self._rounds = BackgroundTasks(self)
        self._beats = HostBeats(log, folder)
        if log.is_shared:
            self._beats.leave_to_thread()
        self._mailbox: mailbox.Mailbox | None = None
        self._listener: Listener | None = None
        self._reader: Log | None = None
        self._reader_lock = asyncio.Lock()
        self._commits = GroupCommit(self._replica, self)
        self._requests = PendingRequests(self._replica, self._commits, lambda: self._closed)
        self._held_back = False  # something is backed off, as far as we know
        self._unheard: set[str] = set()
        self._specs: dict[object, Spec] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._questions: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()  # set, and replaced, when something was committed
        self._opened = self._closed = False
        self._loop: asyncio.AbstractEventLoop
        self._gone: asyncio.Future[None]  # done when everything was let go of

    def __repr__(self) -> str:
        return f"<Gate on {self._log!r}: {len(self._requests.mine)} leases, {len(self._requests.waiting)} waiting>"

    # Opening and closing.

    async def __aenter__(self) -> Self:
        if self._opened:
            raise FleetgateError("a gate is opened once: make another with `fleetgate.open_gate(…)`")
        self._opened = True
        self._loop = asyncio.get_running_loop()
        self._gone = self._loop.create_future()
        self._commits.open(self._loop)
        try:
            self._replica.catch_up()
            self._listen()
            if self._loaded is not None and not self._log.is_shared:
                await self._ask(load_file(self._loaded))
            for command in first_look(self._settings, (), self._replica.state, self.host):
                await self._ask(command)
        except BaseException:
            await self.close()
            raise
        self._tasks = self._rounds.begin(self._loop)
        return self

    def _listen(self) -> None:
        try:
            self._mailbox = mailbox.Mailbox(mailbox.runtime_folder(self._folder)) if self._folder else None
        except OSError:
            self._mailbox = None  # the poll must do
        if self._mailbox is not None:
            self._replica.address = self._mailbox.address
            self._loop.add_reader(self._mailbox.fileno(), self._on_mail)
        else:
            self._replica.address = f"local:{id(self):x}"
        shared = self._replica.shared
        if shared is not None:
            shared.fail_fast()
            self._listener = shared.listen()
            self._loop.add_reader(self._listener.fileno(), self._on_told)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give everything back and let go of the store. Harmless when done twice."""
        if not self._opened:
            self._opened = self._closed = True
            self._log.close()
            return
        if not self._closed:
            self._begin_to_close()
        await asyncio.shield(self._gone)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin_to_close(self) -> None:
        told = self._requests.leave_all()
        self._closed = True
        for task in [*self._tasks, *self._questions]:
            task.cancel()
        for future in told:
            if not future.done():
                future.set_exception(FleetgateError(_CLOSED))
        self._commits.end(FleetgateError(_CLOSED))

    def _let_go(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        if self._mailbox is not None:
            self._loop.remove_reader(self._mailbox.fileno())
            self._mailbox.close()
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
        if self._reader is not None:
            self._reader.close()
        try:
            self._log.close()
        finally:
            self._gone.set_result(None)

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
        any: bool = False,  # the word of the command line
        timeout_s: float | None = None,
        key: str = "",
    ) -> Leased:
        """A lease, to be entered with `async with`: waits in the queue for it.

        `model` is one model or several candidates in order of preference. `since` is when the prompt started (epoch
        seconds or an aware datetime; default now): the older goes first. `project` is the fairness group. Raises
        NotAdmitted when it is not admitted within `timeout_s`, or its ticket is cancelled or expires.
        """
        spec = self._spec(model, kind, slots, project, any)
        return self._leased(spec, True, since, priority, key, timeout_s)

    async def try_lease(
        self,
        model: str | Sequence[str],
        *,
        kind: str = "requests",
        since: Since = None,
        priority: int = 0,
        project: str = "default",
        slots: int = 1,
        any: bool = False,
        key: str = "",
    ) -> Leased | Deferred:
        """Answer at once: a lease (release it, or use it with `async with`), or a Deferred with the reason."""
        spec = self._spec(model, kind, slots, project, any)
        return await self._leased(spec, False, since, priority, key, None).acquire()

    def _leased(self, spec: Spec, wait: bool, since: Since, priority: int, key: str, timeout_s: float | None) -> Leased:
        at = None if since is None else epoch_ms(since) - steady(wall_ms() - self._log.now())
        asks = self._usage.accounts(spec.models) if self._usage else ()
        command = cmd.Acquire(
            new_id(), spec, self._me, wait, at, priority, wake=self._replica.address, key=key, asks=asks
        )
        if at is not None or key or type(priority) is not int or type(key) is not str:
            command = checked(command)
        return Leased(self, command, None if timeout_s is None else number("timeout_s", timeout_s))

    def _spec(self, model: str | Sequence[str], kind: str, slots: int, project: str, any_candidate: bool) -> Spec:
        """What decides which pools are needed; checked once for each that is different."""
        try:
            models = (model,) if isinstance(model, str) else tuple(model)
            spec = self._specs.get((models, kind, slots, project, any_candidate))
        except TypeError:
            raise BadRequest(f"not a model, nor several: {model!r}") from None
        if spec is None:
            named = tuple([canonical(each) if isinstance(each, str) else each for each in models])
            spec = checked(Spec(named, kind, slots, self.host, project, any_candidate))
            if self._log.is_shared:
                spec = with_own_host_cap(spec, self._loaded)
            if len(self._specs) >= _MOST_SPECS:
                self._specs.clear()
            self._specs[models, kind, slots, project, any_candidate] = spec
        return spec

    async def _acquire(self, command: cmd.Acquire, timeout_s: float | None) -> Lease | Deferred:
        self._check_open()
        if len(command.spec.models) > 1 and self._settings.providers and not command.renew_ms:
            refused = self._pass_over(command)
            if refused is not None:
                return Deferred(refused)
        if timeout_s is None:
            return await self._wait_for(command)
        if timeout_s <= 0:  # no time to wait, but to enter where there is room
            command.wait = False
            got = await self._wait_for(command)
            if isinstance(got, Deferred):
                raise NotAdmitted(f"not admitted at once: {got.reason.text}", got.reason)
            return got
        try:
            async with asyncio.timeout(timeout_s):
                return await self._wait_for(command)
        except TimeoutError:
            reason = self._why(command)
            raise NotAdmitted(f"not admitted within {timeout_s:g} s: {reason.text}", reason) from None

    def _pass_over(self, command: cmd.Acquire) -> Reason | None:
        """Take out candidates that are known to have no credentials; why it is refused, when none is left (SPEC B4)."""
        spec = command.spec
        left, told = self._credentials.with_credentials(spec.models)
        if not left:
            return Reason("no_credentials", f"no candidate has credentials; {'; '.join(told)}", model=spec.models[0])
        if told:
            command.spec = self._spec(left, spec.kind, spec.slots, spec.project, spec.any)
        return None

    async def _wait_for(self, command: cmd.Acquire) -> Lease | Deferred:
        if self._must_look(command):
            await self._look_first(command)
        future = self._requests.add(command)
        self._commits.put(command)
        try:
            return await future
        except BaseException:
            self._requests.leave(command.id)
            raise

    def _must_look(self, command: cmd.Acquire) -> bool:
        return not command.wait or bool(command.key) or command.spec.kind == "agents" or self._held_back

    async def _look_first(self, command: cmd.Acquire) -> None:
        """Agents that were started elsewhere count, and nobody is refused for the sake of the dead (DESIGN.md)."""
        state = await self._current()
        for each in self._before_deciding(command, self._credentials.news(state)):
            self._commits.put(each)

    def _before_deciding(self, command: cmd.Acquire, news: Iterable[cmd.Command]) -> list[cmd.Command]:
        """What comes before a request, in the same transaction (gate/observation.py)."""
        return before_deciding(
            self._known_state,
            self.host,
            self._surroundings,
            self._beats,
            agents=command.spec.kind == "agents",
            refused=would_be_refused(self._replica.engine, command, self._now()),
            news=news,
        )

    def _known_state(self) -> State:
        """The state as it is now, as far as it can be read without waiting for the store."""
        if self._commits.busy or self._log.is_shared:
            return self._replica.state
        return self._replica.catch_up()

    def _give_up(self, ident: str) -> None:
        """Leave, if it was granted and the one who asked has gone away."""
        if ident in self._requests.mine:
            self._requests.leave(ident)

    async def _release(self, command: cmd.Release) -> None:
        lease = self._requests.mine.pop(command.id, None)
        if lease is not None and not self._closed:
            if command.outcome not in _NOT_THE_PROVIDERS and not self._commits.busy:
                used = self._credentials.used_for(lease.model)  # so that a refusal ends when it does (SPEC B3)
                command.credential, command.identity = used.digest, used.identity
            await self._commits.post(command)

    # Looking.

    async def _accepted(self, lease: str) -> None:
        """The provider has begun to answer the call of a lease. Costs nothing unless somebody wants to know."""
        if self._replica.engine.wants_word(lease):
            await self._ask(cmd.Active(lease))

    async def events(self, since: int | None = None) -> AsyncGenerator[tuple[int, int, ev.Event], None]:
        """(seq, log time in ms, event) of everything after `since` (default: from now on), without end."""
        seq = (await self._current()).seq if since is None else since
        while True:
            changed = self._changed
            since = seq
            told = await self._reading(lambda log, since=since: list(islice(log.history(since), _EVENTS_AT_ONCE)))  # type: ignore[misc]
            for seq, at, event in told:
                yield seq, at, event
            if not told:
                try:
                    async with asyncio.timeout(background_tasks.POLL_S / 2):
                        await changed.wait()
                except TimeoutError:
                    pass

    async def _current(self) -> State:
        """The state, with everything in it that was asked for before."""
        self._check_open()
        if self._commits.busy or self._commits.batch:
            await self._commits.post(cmd.Tick())
        elif self._log.is_shared:
            await self._commits.follow()
        else:
            self._take_in()
        if self._replica.recovery.wanted:
            await self._commits.post(cmd.Tick())  # what we know that the log has lost is in it, then
        return self._replica.state

    async def _reading(self, read: Callable[[Log], T]) -> T:
        """What `read` makes of the log when everything is in it that was asked for before."""
        await self._current()  # no thread is at work now: what is read is committed
        if not self._log.is_shared:
            return read(self._log)
        async with self._reader_lock:
            return await self._loop.run_in_executor(None, self._read_elsewhere, read)

    def _read_elsewhere(self, read: Callable[[Log], T]) -> T:
        """By a thread, with a connection of its own: neither the loop nor a decision waits for it."""
        if self._reader is None:
            self._reader = self._log.connect()
        try:
            return read(self._reader)
        finally:
            if self._closed:  # meanwhile, and perhaps before there was anything to let go of
                self._reader.close()

    def _now(self) -> int:
        return max(self._log.now(), self._replica.state.at)

    async def _ask(self, command: cmd.Command, *, durable: bool = False) -> Decided:
        self._check_open()
        decided = await self._commits.post(checked(command), durable=durable)
        if decided.error is not None:
            raise decided.error
        return decided

    def _check_open(self) -> None:
        if self._closed:
            raise FleetgateError(_CLOSED)
        if not self._opened:
            raise FleetgateError(_UNOPENED)

    # After a transaction.

    def _done(self, batch: Batch, decided: list[Decided]) -> None:
        for (command, future), one in zip(batch, decided, strict=True):
            if type(command) is cmd.Acquire and future is None:
                self._requests.answer(command, one)
            elif future is not None and not future.done():
                future.set_result(one)
        self._requests.leave_the_doubtful()
        self._after()

    def _failed(self, batch: Batch, error: BaseException) -> None:
        self._requests.failed(batch, error)

    def _after(self) -> None:
        """Tell those who wait here what became of them, whoever decided it; then see to the next deadline."""
        replica = self._replica
        events, replica.made = replica.made, []
        if replica.seen:
            events, replica.seen = replica.seen + events, []
        for event in events:
            self._requests.hear(event)
        self._held_back = bool(replica.state.backoffs)
        if events:
            self._changed.set()
            self._changed = asyncio.Event()
        if replica.reloads != self._reloads:
            self._reloads = replica.reloads
            try:
                self._requests.compare()
            except FleetgateError:
                pass  # the poll does it again
        if replica.recovery.wanted and not self._closed:
            self._commits.schedule()
        if self._usage and self._requests.waiting and not self._closed:
            self._ask_providers()
        self._arm()
        if self._unheard:
            self._look_for_the_unheard()

    # Deadlines, wake-ups, questions.

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        due = self._replica.due
        if due is None or not self._requests.waiting:
            return
        first = self._replica.engine.first_to_act()
        mine = first is not None and first.wake == self._replica.address
        delay_s = max(due - self._log.now(), 0) / 1000 + (0 if mine else _BACKUP_S)
        self._alarm = self._loop.call_later(delay_s, self._commits.schedule)

    def _on_told(self) -> None:
        assert self._listener is not None
        if heard(self._listener.drain(), mark(self.host, self._replica.address)):
            self._on_mail()

    def _on_mail(self) -> None:
        if self._mailbox is not None:
            self._mailbox.drain()
        if self._log.is_shared:
            self._commits.follow()
            return
        if self._commits.busy:
            self._commits.news = True
            return
        try:
            self._take_in()
        except FleetgateError:
            pass  # the poll will see to it

    def _take_in(self) -> None:
        self._replica.catch_up()
        self._after()

    def _send(self, message: Wake) -> None:
        if mailbox.send(message.address, message.message) is False:
            self._unheard.add(message.holder)

    def _look_for_the_unheard(self) -> None:
        gone = tuple(sorted(holder for holder in self._unheard if process_identity.is_gone(holder)))
        self._unheard.clear()
        if gone:
            self._commits.put(cmd.Lost(gone))

    def _ask_providers(self) -> None:
        """Wherever the usage gate wants a question that this process can ask."""
        for pool in self._usage.wanted(self._replica.engine, self._now()):
            if (pool.kind, pool.id) not in self._asking:
                self._asking.add((pool.kind, pool.id))
                task = self._loop.create_task(self._ask_provider(pool.kind, pool.id, pool.account))
                self._questions.add(task)
                task.add_done_callback(self._questions.discard)

    async def _ask_provider(self, kind: str, pool: str, account: str) -> None:
        try:
            decided = await self._commits.post(cmd.AskUsage(kind, pool, self._me))
            if decided.events:
                count, error = await self._usage.answer(account)
                self._asking.discard((kind, pool))
                await self._commits.post(cmd.AnswerUsage(kind, pool, self._me, count, error))
        except Exception:
            return  # the store is in trouble, and those who wait are told
        finally:
            self._asking.discard((kind, pool))

    def _why(self, command: cmd.Acquire) -> Reason:
        """Why a request of ours still waits."""
        if self._commits.busy:
            owner = self._log.lock_owner()
            by = f" by process {owner}" if owner is not None else ""
            return Reason("store_busy", f"the store's write lock is held{by}")
        view = ticket_view(self._replica.state, command.id, self._now())
        if view is not None:
            return view.reason
        return reason_for(self._replica.state, self._replica.state.queue(command.spec), self._now())
