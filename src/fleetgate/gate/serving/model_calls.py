"""Model calls that pass through a service: a slot for each, thousands of times a second (SPEC X2-X6).

The rule: whoever came in leaves once, and `leave` never waits. It goes into the next transaction; if that fails, the
gate gives the slot back as soon as the store works. A caller that is cancelled while it waits leaves the queue.

When nobody waits for the slot, its return waits a moment for the next call, to be committed with it.
"""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease, Reason, Spec
from fleetgate.core.pools.blame import narrowest
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import ticket_view
from fleetgate.core.views.wait_reasons import opens_at, reason_for
from fleetgate.gate.library.gate import Gate
from fleetgate.gate.library.lease_handles import Deferred, NotAdmitted
from fleetgate.gate.providers.credentials import SALT
from fleetgate.gate.request_ids import new_id
from fleetgate.log.protocol import StoreError
from fleetgate.signals.outcome import Outcome

_A_MOMENT_S = 0.002
_FIRST_LOOK_S = 0.05
_LOOK_S = 1.0  # how often one who waits asks itself whether that is any use


class NotInTime(NotAdmitted):
    """No slot before the caller's time is up. `retry_ms`: when it is worth another try, if that is known.

    `outlasts`: what holds it back lasts longer than its time. `held`: the key of a backoff that does.
    """

    def __init__(self, reason: Reason, retry_ms: int | None, *, outlasts: bool = False, held: str = "") -> None:
        super().__init__(reason.text, reason)
        self.retry_ms = retry_ms
        self.outlasts = outlasts
        self.held = held


class Run(NamedTuple):
    """What its calls take over from a run."""

    project: str
    priority: int
    model: str  # "" where it has none


class PendingCall(NamedTuple):
    """A call that is in the queue."""

    command: cmd.Acquire
    future: asyncio.Future[Lease | Deferred]


class ModelCalls:
    """The calls of one gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._soon: asyncio.TimerHandle | None = None

    def now(self) -> int:
        """The log's time: what a call's `since` is told in."""
        return self._gate._log.now()

    def spec(self, models: tuple[str, ...], project: str, any_candidate: bool) -> Spec:
        """What such a call needs."""
        return self._gate._spec(models, "requests", 1, project, any_candidate)

    def check_in_time(self, spec: Spec, within_s: float) -> None:
        """NotInTime if it is known that no candidate opens within so long: that is no wait, but an answer."""
        gate = self._gate
        known = gate._replica.loaded
        if known is None or gate._commits.busy or not _closed_ms(gate, known.state, spec, within_s):
            return
        gate._take_in()  # another process may have ended it
        state = gate._replica.state
        if wait_ms := _closed_ms(gate, state, spec, within_s):
            raise _outlasting(gate, state, spec, wait_ms)

    def ask(self, spec: Spec, since: int, *, priority: int = 0, what: str = "", client: str = "") -> PendingCall:
        """Get in the queue; to be waited for with `enter`, or given up."""
        gate = self._gate
        gate._check_open()
        asks = gate._usage.accounts(spec.models) if gate._usage else ()
        command = cmd.Acquire(
            new_id(),
            spec,
            gate._me,
            True,
            since,
            priority,
            wake=gate._replica.address,
            command=what,
            client=client,
            asks=asks,
        )
        requests, commits = gate._requests, gate._commits
        future = requests.add(command)
        if requests.mine or commits.scheduled or commits.busy:
            commits.put(command)
        else:  # nobody else is under way, to share a transaction with
            commits.batch.append((command, None))
            commits.flush()
        return PendingCall(command, future)

    def give_up(self, asking: PendingCall) -> None:
        """Leave the queue, where nobody waits for it."""
        self._gate._requests.leave(asking.command.id)
        if asking.future.done():
            asking.future.exception()  # which is nobody's business now
        asking.future.cancel()

    async def enter(self, asking: PendingCall, within_s: float) -> Lease:
        """A lease, waited for. NotInTime when it cannot be had within so long."""
        gate = self._gate
        command, future = asking
        patience = None if future.done() else _Patience(gate, command, future, within_s)
        try:
            got = await future
        except BaseException:
            gate._requests.leave(command.id)
            raise
        finally:
            if patience is not None:
                patience.handle.cancel()
        if isinstance(got, Deferred):
            raise NotInTime(got.reason, _ms_until(gate, got.reason))
        return got

    def leave(self, ident: str, outcome: Outcome) -> None:
        """Give a slot back, and tell what became of the call. Harmless when done twice."""
        gate = self._gate
        lease = gate._requests.mine.pop(ident, None)
        if lease is None or gate._closed:
            return
        if outcome.kind == "ok":
            command = cmd.Release(ident)
        else:
            # Of an account that the config names, so that a backoff ends when its credential does (SPEC B3).
            credential = gate._credentials.used_for("" if gate._commits.busy else lease.model)
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
            )
        known = gate._replica.loaded
        if gate._requests.waiting or gate._commits.busy or known is None or known.state.standing:
            gate._commits.put(command)
            return
        gate._commits.batch.append((command, None))
        if self._soon is None:
            self._soon = gate._loop.call_later(_A_MOMENT_S, self._commit)

    def _commit(self) -> None:
        self._soon = None
        if self._gate._commits.batch:
            self._gate._commits.schedule()

    def began(self, ident: str) -> None:
        """The provider has begun to answer: that is news where a limit is being learned, or a backoff tried out."""
        gate = self._gate
        known = gate._replica.loaded
        if known is not None and (gate._commits.busy or known.wants_word(ident)):
            gate._commits.put(cmd.Active(ident))

    def is_paused(self, model: str) -> bool:
        """Whether a rate limit keeps everybody from this model now, as far as this process knows."""
        gate = self._gate
        known = gate._replica.loaded
        if known is None or gate._commits.busy:
            return False
        candidate = known.state.queue(self.spec((model,), "default", False)).candidates[0]
        return any(pool.paused_until > gate._now() for pool, _ in candidate.needs)

    def used_up(self, ident: str, wait_ms: int, scope: str = "", family: str = "") -> None:
        """The provider's headers say that nothing is left for so long: of whom, if that is known."""
        gate = self._gate
        known = gate._replica.loaded
        if known is None or gate._commits.busy or ident not in known.state.held:
            return
        if narrowest(known.state.held[ident]) is not None:
            gate._commits.put(cmd.UseUp(ident, wait_ms, scope, family))

    def run(self, ident: str) -> Run | None:
        """A run, by the id of its lease; None when there is none, or it cannot be told."""
        gate = self._gate
        try:
            lease = gate._replica.state.leases.get(ident)
            if lease is None and not gate._commits.busy:  # another process may have decided it since
                gate._take_in()
                lease = gate._replica.state.leases.get(ident)
        except StoreError:
            return None
        return None if lease is None else Run(lease.ticket.spec.project, lease.ticket.priority, lease.model)

    async def salt(self) -> bytes:
        """The store's salt for hashes of credentials; made by whoever needs it first."""
        await self._gate._current()  # no thread is at work now
        replica = self._gate._replica
        return replica.log.side_value(*SALT) or replica.set_side_value_once(*SALT, os.urandom(32))

    async def rows_beside(self, table: str) -> list[tuple[str, bytes]]:
        """All rows of a table beside the log."""
        await self._gate._current()  # no thread is at work now
        return self._gate._replica.log.side_items(table)

    async def write_beside(self, table: str, key: str, value: bytes) -> None:
        """Write a row beside the log, if there is none yet. One that cannot be written now is not."""
        try:
            await self._gate._current()
            self._gate._replica.set_side_value_once(table, key, value)
        except StoreError:
            pass


class _Patience:
    """Ends the wait of one call when its time is up, or as soon as that will not be enough."""

    __slots__ = ("_command", "_deadline", "_future", "_gate", "handle")

    def __init__(
        self, gate: Gate, command: cmd.Acquire, future: asyncio.Future[Lease | Deferred], within_s: float
    ) -> None:
        self._gate = gate
        self._command = command
        self._future = future
        self._deadline = gate._loop.time() + within_s
        self.handle = gate._loop.call_later(min(within_s, _FIRST_LOOK_S), self._look)

    def _look(self) -> None:
        if self._future.done():
            return
        gate, left_s = self._gate, self._deadline - self._gate._loop.time()
        try:
            busy, spec = gate._commits.busy, self._command.spec
            wait_ms = 0 if busy else _closed_ms(gate, gate._replica.state, spec, left_s)
            if wait_ms:
                self._future.set_exception(_outlasting(gate, gate._replica.state, spec, wait_ms))
                return
            if left_s > 0:
                self.handle = gate._loop.call_later(min(left_s, _LOOK_S), self._look)
                return
            reason = gate._why(self._command)
            self._future.set_exception(NotInTime(reason, self._retry_ms(reason)))
        except StoreError as error:
            self._future.set_exception(error)

    def _retry_ms(self, reason: Reason) -> int | None:
        known = _ms_until(self._gate, reason)
        if known is None and not self._gate._commits.busy:
            view = ticket_view(self._gate._replica.state, self._command.id, self._gate._now())
            known = view.estimate_ms[1] if view is not None and view.estimate_ms is not None else None
        return known


def _closed_ms(gate: Gate, state: State, spec: Spec, within_s: float) -> int:
    """For how long no candidate opens, if that is longer than `within_s`; else 0."""
    now = gate._now()
    wait_ms = opens_at(state, state.queue(spec), now) - now
    return wait_ms if wait_ms > within_s * 1000 else 0


def _outlasting(gate: Gate, state: State, spec: Spec, wait_ms: int) -> NotInTime:
    queue = state.queue(spec)
    reason = reason_for(state, queue, gate._now())
    candidate = queue.by_model.get(reason.model, queue.candidates[0])
    held = max(state.holding(candidate), key=lambda backoff: backoff.probe_at, default=None)
    if held is None:
        return NotInTime(reason, wait_ms, outlasts=True)
    return NotInTime(reason, max(wait_ms, held.until - gate._now()), outlasts=True, held=held.key)


def _ms_until(gate: Gate, reason: Reason) -> int | None:
    return None if reason.until is None else max(reason.until - gate._now(), 0)
