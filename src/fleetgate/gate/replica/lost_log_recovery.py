"""Recovery after a log lost its last commits: running agents are counted again before a new one is admitted.

A restored backup, or a failover to a lagging replica, has forgotten leases whose agents are still running. A process
that knew the log before notices it by the id of the last commit; a process that opens it, by the mark of a replaced
store (`Log.seems_replaced`). The first of them writes `recovering` to the log, which stops admission for a few seconds.
All that knew the log before adopt the leases of processes that they see alive, in the same transaction. See
docs/decisions/0014.
"""

from __future__ import annotations

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Lease
from fleetgate.core.errors import FleetgateError, InternalError
from fleetgate.core.state.state import State
from fleetgate.gate.liveness import process_identity
from fleetgate.log.host_beats import BEAT_S
from fleetgate.log.protocol import Log

LOCAL_MS = int(BEAT_S * 400)  # 4 s: a run checks every 1.5 s that its lease is still there
REMOTE_MS = int(BEAT_S * 1000)  # 10 s: other hosts must first reach the store again
_MOST_FORGOTTEN = 10_000


class Recovery:
    """What one replica knows and the log may have lost."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._why = ""
        self._known_at: int | None = None  # the log's time when we last knew it
        self._held: dict[str, Lease] = {}
        self._forgotten: dict[str, Lease] = {}

    @property
    def wanted(self) -> bool:
        """Whether something is to be written to the log: any transaction does it, even one without commands."""
        return bool(self._why)

    def log_replaced(self, known: State) -> None:
        """The log is another one than the one that led to this state."""
        self._why = "the log has lost commits that were known here"
        self._held.update(known.leases)
        self._known_at = known.at

    def loaded(self) -> None:
        """The log was opened and read."""
        if self._log.seems_replaced():
            self._why = self._why or "the store was replaced, or has lost commits, while no process here had it open"

    def first(self, engine: Engine, now: int) -> list[ev.Event]:
        """What comes before any request could be admitted."""
        if not self._why or (self._known_at is not None and engine.state.recovers_until > self._known_at):
            return []  # nothing happened, or another process has done it since
        return engine.handle(cmd.Recover(REMOTE_MS if self._log.is_shared else LOCAL_MS, self._why), now)

    def claims(self, engine: Engine, now: int) -> list[ev.Event]:
        """Adopt the leases of processes that run here, for a log that has forgotten them."""
        events: list[ev.Event] = []
        events += self._returns(engine, now)
        missing = [lease for ident, lease in self._held.items() if ident not in engine.state.leases]
        ended = self._ended_since(engine.state) if missing else set()
        for lease in missing:
            if lease.id in ended:
                continue
            if is_known_here(lease, engine.me):
                try:
                    events += engine.handle(adoption(lease, now, "log_lost"), now)
                except InternalError:
                    raise
                except FleetgateError:
                    continue  # by the rules of this log there can be no such lease
            elif lease.claimed and lease.ticket.renew_ms and len(self._forgotten) < _MOST_FORGOTTEN:
                self._forgotten[lease.id] = lease
        return events

    def _ended_since(self, state: State) -> set[str]:
        """Leases that another process adopted before us, and that have ended since although their processes live on."""
        if self._known_at is None or state.recovers_until <= self._known_at:
            return set()
        events = (event for _, _, event in self._log.history(state.recovers_since))
        return {event.id for event in events if isinstance(event, (ev.Released, ev.Reclaimed))}

    def forgotten(self, ident: str) -> Lease | None:
        """A client's lease of another service that the log has lost. Returned once, for a renewal."""
        return self._forgotten.pop(ident, None)

    def _returns(self, engine: Engine, now: int) -> list[ev.Event]:
        """Release again what this process had released, for a log that has forgotten that: no other process knows."""
        if self._known_at is None:
            return []
        events: list[ev.Event] = []
        for lease in list(engine.state.leases.values()):
            if lease.claimed and lease.lives_with == engine.me and lease.id not in self._held:
                events += engine.handle(cmd.Release(lease.id), now)
        return events

    def done(self) -> None:
        """All of it is in the log."""
        self._why, self._known_at = "", None
        self._held.clear()


def is_known_here(lease: Lease, me: str) -> bool:
    """Whether this process knows that a lease which the log has forgotten is still held.

    The service of a client knows, and goes on to judge the client by its renewals. The worker process of a job knows,
    even when the job's agent has just ended: it releases the lease itself.
    """
    ticket = lease.ticket
    if lease.claimed and ticket.holder == me and (ticket.renew_ms or ticket.job):
        return True
    return lease.claimed and not ticket.renew_ms and process_identity.is_gone(lease.lives_with) is False


def is_ours(lease: Lease) -> bool:
    """Whether the process of a lease is certainly alive here, and no other process would start it again.

    A job that was declared lost is queued again, and clients are never declared lost.
    """
    ticket = lease.ticket
    if not lease.claimed or ticket.job or ticket.renew_ms:
        return False
    return process_identity.is_gone(lease.lives_with) is False


def adoption(lease: Lease, now: int, why: str) -> cmd.Adopt:
    """The command that records a lease again."""
    return cmd.Adopt(lease.ticket, lease.model, lease.child, max(now - lease.granted_at, 0), why)
