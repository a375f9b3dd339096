"""Slots for model calls that pass through the proxy, thousands of times a second (rules X2 to X6).

The rule: every call that got a slot releases it once, and `leave` never waits. The release goes into the next
transaction; if that fails, the gate repeats it as soon as the store works. A caller that is cancelled while it waits
leaves the queue.

When no request waits for the slot, its release waits a moment for the next call, to be committed together with it.
"""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple

from fleetgate.core import commands as cmd
from fleetgate.core.access.keys import AccessKey
from fleetgate.core.entities import Lease, Reason, Spec
from fleetgate.core.handlers.plans import news
from fleetgate.core.model_names import account_of, parse_model
from fleetgate.core.plans.reading import PlanReading
from fleetgate.core.pools.blame import narrowest
from fleetgate.core.state.state import State
from fleetgate.core.usage import Reading, Size, Usage
from fleetgate.core.views.pool_and_lease_views import ticket_view
from fleetgate.core.views.wait_reasons import opens_at, reason_for
from fleetgate.gate.acquire_command import acquire_command
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.library.lease_handles import Deferred, NotAdmitted
from fleetgate.gate.providers.credentials import SALT
from fleetgate.log.protocol import StoreError
from fleetgate.signals.outcome import Outcome

_SHARE_S = 0.002
_FIRST_LOOK_S = 0.05
_READ_RATES_S = 0.2  # how often rates are read, while half of them is left; below that, with every response
_LOW_RATES_S = 0.1  # how often low rates are reported at once
_MOST_MODELS = 1000  # whose rates are remembered; a client can name any
_LEAST_PAUSE_S = 0.005  # between two looks at waiting calls
_LOOK_S = 1.0  # how often a waiting call checks whether waiting is of any use
_BUSY_S = 2.0  # how much longer a call waits for a transaction that is under way, to learn why it got no slot


class NotInTime(NotAdmitted):
    """No slot before the caller's time is up. `retry_ms`: when another try makes sense, if that is known.

    `outlasts`: the obstacle lasts longer than the caller's time. `held`: the key of a backoff that does.
    """

    def __init__(self, reason: Reason, retry_ms: int | None, *, outlasts: bool = False, held: str = "") -> None:
        super().__init__(reason.text, reason)
        self.retry_ms = retry_ms
        self.outlasts = outlasts
        self.held = held


class Run(NamedTuple):
    """What the calls of a run inherit from it."""

    project: str
    priority: int
    model: str  # "" where it has none
    work_class: str
    access_key: str


class SeenRates(NamedTuple):
    """What was read last about the rates of a model, in seconds of the loop."""

    limits: tuple[tuple[str, int], ...]  # by unit
    read_again_s: float
    reported_s: float


class PendingCall(NamedTuple):
    """A call that is in the queue."""

    command: cmd.Acquire
    future: asyncio.Future[Lease | Deferred]


class ModelCalls:
    """The calls of one gate."""

    def __init__(self, core: GateCore) -> None:
        self._core = core
        self._soon: asyncio.TimerHandle | None = None
        self._rates: dict[str, SeenRates] = {}  # by model
        self._wait_limits = WaitLimits(core)

    def now(self) -> int:
        """The log's time, in which a call's `since` is given."""
        return self._core.log.now()

    def spec(
        self,
        models: tuple[str, ...],
        project: str,
        any_candidate: bool,
        work_class: str | None = None,
        session: str = "",
        access_key: str = "",
        accounts: tuple[str, ...] = (),
    ) -> Spec:
        """The spec of such a call."""
        return self._core.acquisition.spec(
            *(models, "requests", 1, project, any_candidate),
            work_class=work_class,
            session=session,
            access_key=access_key,
            accounts=accounts,
        )

    def check_in_time(self, spec: Spec, within_s: float, run: str = "") -> None:
        """Raise NotInTime if it is known that no candidate opens within this time. `run`: the run that calls."""
        core = self._core
        known = core.replica.loaded
        if known is None or core.commits.busy or not _closed_ms(core, known.state, spec, within_s, run):
            return
        core.catch_up()  # another process may have ended the pause
        state = core.replica.state
        if wait_ms := _closed_ms(core, state, spec, within_s, run):
            raise _outlasting(core, state, spec, wait_ms)

    def accounts_of_set(self, provider: str) -> tuple[str, ...]:
        """The accounts that calls without an account may use, as far as this process knows; none: there is no set."""
        known = self._core.replica.loaded
        rules = known.state.accounts.rules if known is not None and not self._core.commits.busy else None
        if rules is None:
            rules = {rule.provider: rule for rule in self._core.settings.accounts}
        rule = rules.get(provider)
        return () if rule is None else (*rule.use, *rule.then)

    def ask(
        self,
        spec: Spec,
        since: int,
        *,
        size: Size,
        priority: int = 0,
        what: str = "",
        client: str = "",
        run: str = "",
        conversation: str = "",
    ) -> PendingCall:
        """Enter the queue. When its future is done, `granted` has the slot. `run`: the lease of the run that calls."""
        core = self._core
        core.check_open()
        command = acquire_command(
            core, spec, since=since, priority=priority, command=what, client=client, size=size, run=run
        )
        if conversation:
            command.conversation = conversation
        requests, commits = core.requests, core.commits
        future = requests.add(command)
        if requests.held or commits.scheduled or commits.busy:
            commits.put(command)
        else:  # there is no other command to share a transaction with
            commits.put_now(command)
        return PendingCall(command, future)

    def give_up(self, asking: PendingCall) -> None:
        """Leave the queue, or give up a slot that was not used."""
        self._core.requests.give_up(asking.command.id)
        if asking.future.done():
            asking.future.exception()  # retrieved, so that asyncio does not report it
        asking.future.cancel()

    async def enter(self, asking: PendingCall, within_s: float) -> Lease:
        """Wait for the slot of a call. NotInTime when there is none within this time, StoreError, NotAdmitted."""
        self.limit_wait(asking, within_s)
        try:
            await asyncio.wait((asking.future,))
        except BaseException:
            self.give_up(asking)
            raise
        return self.granted(asking)

    def limit_wait(self, asking: PendingCall, within_s: float) -> None:
        """End the wait of a call with NotInTime when its time is up, or as soon as that will not be enough."""
        if not asking.future.done():
            self._wait_limits.add(asking, within_s)

    def granted(self, asking: PendingCall) -> Lease:
        """The lease of a call whose future is done. NotInTime, StoreError, NotAdmitted."""
        try:
            got = asking.future.result()
        except BaseException:
            self._core.requests.give_up(asking.command.id)
            raise
        if isinstance(got, Deferred):
            raise NotInTime(got.reason, _ms_until(self._core, got.reason))
        return got

    def leave(self, ident: str, outcome: Outcome, usage: Usage | None, readings: tuple[Reading, ...] = ()) -> None:
        """Release a slot, with the outcome of the call and its usage, if known. Releasing twice is harmless."""
        core = self._core
        lease = core.requests.held.pop(ident, None)
        if lease is None or core.closed:
            return
        if outcome.kind == "ok":
            command = cmd.Release(ident, usage=usage, readings=readings)
        else:
            # The credential of the account that the config names: a backoff ends when it changes (rule B3).
            credential = core.credentials.used_for("" if core.commits.busy else lease.model)
            command = cmd.Release(
                ident,
                outcome.kind,
                outcome.wait_ms,
                evidence=outcome.evidence,
                scope=outcome.scope,
                family=outcome.family,
                credential=credential.digest,
                identity=credential.identity,
                named=outcome.named,
                usage=usage,
                readings=outcome.readings or readings,
                refused_rate=outcome.rate,
            )
        known = core.replica.loaded
        if core.requests.waiting or core.commits.busy or known is None or known.state.active_queues:
            core.commits.put(command)
            return
        core.commits.put_later(command)
        if self._soon is None:
            self._soon = core.loop.call_later(_SHARE_S, self._commit)

    def _commit(self) -> None:
        self._soon = None
        if self._core.commits.batch:
            self._core.commits.schedule()

    def began(self, ident: str) -> None:
        """The provider has begun to answer, which matters where a limit is being learned or a backoff probed."""
        core = self._core
        known = core.replica.loaded
        if known is not None and (core.commits.busy or known.awaits_acceptance(ident)):
            core.commits.put(cmd.Active(ident))

    def wants_rates(self, model: str) -> bool:
        """Whether what the next response reports about a model's rates is worth reading."""
        seen = self._rates.get(model)
        return seen is None or self._core.loop.time() >= seen.read_again_s

    def observe_rates(self, ident: str, model: str, readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
        """Report rates at once where they are new or running low; otherwise return them, to go with the release."""
        now_s = self._core.loop.time()
        limits = tuple((each.unit, each.limit) for each in readings)
        low = any(each.remaining * 2 < each.limit for each in readings)
        seen = self._rates.get(model)
        at_once = seen is None or seen.limits != limits or (low and now_s >= seen.reported_s + _LOW_RATES_S)
        if seen is None and len(self._rates) >= _MOST_MODELS:
            self._rates.clear()
        reported_s = now_s if at_once or seen is None else seen.reported_s
        self._rates[model] = SeenRates(limits, now_s + (0.0 if low else _READ_RATES_S), reported_s)
        if not at_once:
            return readings
        self._core.commits.put(cmd.ObserveRates(ident, readings))
        return ()

    def observe_plan(self, model: str, readings: tuple[PlanReading, ...]) -> None:
        """Report the plan windows of a model's account, where they say something new."""
        core = self._core
        known, account = core.replica.loaded, account_of(parse_model(model))
        if known is not None and not core.commits.busy:
            now = core.now()
            readings = tuple(each for each in readings if news(known.state, account, each, now) is not None)
        if readings:
            core.commits.put(cmd.ObservePlan(account, readings))

    def is_paused(self, model: str) -> bool:
        """Whether a rate limit pauses this model now, as far as this process knows."""
        core = self._core
        known = core.replica.loaded
        if known is None or core.commits.busy:
            return False
        candidates, now = known.state.queue(self.spec((model,), "default", False)).candidates, core.now()
        return all(any(pool.paused_until > now for pool, _ in each.needs) for each in candidates)

    def used_up(self, ident: str, wait_ms: int, scope: str = "", family: str = "") -> None:
        """The headers of a provider report that a limit, of `scope` and `family` if known, is used up for this long."""
        core = self._core
        known = core.replica.loaded
        if known is None or core.commits.busy or ident not in known.state.lease_candidates:
            return
        if narrowest(known.state.lease_candidates[ident]) is not None:
            core.commits.put(cmd.UseUp(ident, wait_ms, scope, family))

    def run(self, ident: str) -> Run | None:
        """A run, by the id of its lease; None when it is none (any longer), or the store cannot be read.

        The id is random, and known to the run and to readers of the gate's state only.
        """
        core = self._core
        try:
            lease = core.replica.state.leases.get(ident)
            if lease is None and not core.commits.busy:  # another process may have granted it since
                core.catch_up()
                lease = core.replica.state.leases.get(ident)
        except StoreError:
            return None
        if lease is None or lease.ticket.body_bytes:  # a call is not a run
            return None
        spec = lease.ticket.spec
        return Run(spec.project, lease.ticket.priority, lease.model, spec.work_class, spec.access_key)

    def is_valid_key(self, key: AccessKey) -> bool:
        """Whether an access key is still what it was when its call began; True where that is not known now."""
        known = self._core.replica.loaded
        return known is None or (known.state.access_keys.get(key.name) == key and key.is_valid_at(self._core.now()))

    async def salt(self) -> bytes:
        """The store's salt for hashes of credentials; the first process that needs it creates it."""
        await self._core.read_state()  # no thread is at work now
        replica = self._core.replica
        return replica.log.side_value(*SALT) or replica.set_side_value_once(*SALT, os.urandom(32))

    async def rows_beside(self, table: str) -> list[tuple[str, bytes]]:
        """All rows of a side table."""
        await self._core.read_state()  # no thread is at work now
        return self._core.replica.log.side_items(table)

    async def write_beside(self, table: str, key: str, known: bytes, value: bytes) -> bytes:
        """Write a row of a side table that has the value `known`, or is empty. Returns what is there now.

        Does nothing, and returns nothing, when the store cannot be written now.
        """
        try:
            await self._core.read_state()
            return self._core.replica.replace_side_value(table, key, known, value)
        except StoreError:
            return b""


class WaitingCall:
    """A call that waits, with the time of the loop until which it does."""

    __slots__ = ("asking", "deadline", "look_at")

    def __init__(self, asking: PendingCall, deadline: float, look_at: float) -> None:
        self.asking = asking
        self.deadline = deadline
        self.look_at = look_at


class WaitLimits:
    """Ends the waits of calls when their time is up, or as soon as that will not be enough. One timer serves all:
    most calls have their slot within a turn of the loop, and a timer for each would cost as much as the rest of it.
    """

    def __init__(self, core: GateCore) -> None:
        self._core = core
        self._all: list[WaitingCall] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._looks_after_transaction = False

    def add(self, asking: PendingCall, within_s: float) -> None:
        now = self._core.loop.time()
        look_at = now + min(within_s, _FIRST_LOOK_S)
        self._all.append(WaitingCall(asking, now + within_s, look_at))
        if self._timer is None or look_at < self._timer_at:
            self._set_timer(look_at)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._core.loop.call_at(at, self._look_at_due), at

    def _look_at_due(self) -> None:
        """Look at the calls whose time has come. Those that have their slot are forgotten."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._core.loop.time()
        waiting, self._all = self._all, []
        for each in waiting:
            if each.asking.future.done() or (each.look_at <= now and self._ends(each, now)):
                continue
            self._all.append(each)
        if self._all:
            self._set_timer(max(min(each.look_at for each in self._all), now + _LEAST_PAUSE_S))

    def _ends(self, each: WaitingCall, now: float) -> bool:
        """Whether a call waits no longer; otherwise it is looked at again."""
        core, (command, future), left_s = self._core, each.asking, each.deadline - now
        try:
            busy, spec = core.commits.busy, command.spec
            wait_ms = 0 if busy else _closed_ms(core, core.replica.state, spec, left_s, command.run)
            if wait_ms:
                future.set_exception(_outlasting(core, core.replica.state, spec, wait_ms))
                return True
            if left_s > 0:
                each.look_at = now + min(left_s, _LOOK_S)
                return False
            if busy and left_s > -_BUSY_S:
                each.look_at = each.deadline + _BUSY_S
                self._look_after_transaction()
                return False
            reason = core.acquisition.wait_reason(command)
            future.set_exception(NotInTime(reason, self._retry_ms(command, reason)))
        except StoreError as error:
            future.set_exception(error)
        return True

    def _look_after_transaction(self) -> None:
        """Look again as soon as no thread works on the log. On a shared store one does during every transaction."""
        if not self._looks_after_transaction:
            self._looks_after_transaction = True
            self._core.commits.catch_up_in_thread().add_done_callback(self._transaction_ended)

    def _transaction_ended(self, _: object) -> None:
        self._looks_after_transaction = False
        now = self._core.loop.time()
        for each in self._all:
            if each.deadline <= now:
                each.look_at = now
        self._look_at_due()

    def _retry_ms(self, command: cmd.Acquire, reason: Reason) -> int | None:
        known = _ms_until(self._core, reason)
        if known is None and not self._core.commits.busy:
            view = ticket_view(self._core.replica.state, command.id, self._core.now())
            known = view.estimate_ms[1] if view is not None and view.estimate_ms is not None else None
        return known


def _closed_ms(core: GateCore, state: State, spec: Spec, within_s: float, run: str) -> int:
    """How long all candidates stay closed, if that is longer than `within_s`; otherwise 0."""
    now = core.now()
    wait_ms = opens_at(state, state.queue(spec), now, run=bool(run)) - now
    return wait_ms if wait_ms > within_s * 1000 else 0


def _outlasting(core: GateCore, state: State, spec: Spec, wait_ms: int) -> NotInTime:
    queue = state.queue(spec)
    reason = reason_for(state, queue, core.now())
    candidate = queue.by_model.get(reason.model, queue.candidates[0])
    held = max(state.backoffs_on(candidate), key=lambda backoff: backoff.probe_at, default=None)
    if held is None:
        return NotInTime(reason, wait_ms, outlasts=True)
    return NotInTime(reason, max(wait_ms, held.until - core.now()), outlasts=True, held=held.key)


def _ms_until(core: GateCore, reason: Reason) -> int | None:
    return None if reason.until is None else max(reason.until - core.now(), 0)
