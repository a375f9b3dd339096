"""After a log that lost its last commits: who runs is counted first, and only then does anybody new enter.

A restored backup and a failover to a lagging replica have forgotten leases whose agents run on. That is noticed by
whoever knew the log before (the id of its last commit is another), and by whoever opens it and finds that it was
replaced (`Log.replaced`). The first of them writes `recovering` to the log, which holds everybody back for a few
seconds; all who knew the log before adopt the leases of processes that they see alive, in the same transaction.
See docs/decisions/0014.
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

LOCAL_MS = int(BEAT_S * 400)  # 4 s: a run looks every second and a half whether its lease is still there
REMOTE_MS = int(BEAT_S * 1000)  # 10 s: other hosts must first reach the store again
_MOST_FORGOTTEN = 10_000


class Recovery:
    """What one replica knows that the log may not know any more."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._why = ""
        self._known_at: int | None = None  # the log's time when we last knew it
        self._held: dict[str, Lease] = {}
        self._forgotten: dict[str, Lease] = {}

    @property
    def wanted(self) -> bool:
        """Whether something is to be told to the log: a transaction, of nothing else, does it."""
        return bool(self._why)

    def log_replaced(self, known: State) -> None:
        """The log is another one than the one that led to this state."""
        self._why = "the log has lost commits that were known here"
        self._held.update(known.leases)
        self._known_at = known.at

    def loaded(self) -> None:
        """The log was opened and read."""
        if self._log.seems_replaced():
            self._why = self._why or "the store was replaced, or has lost commits, while nobody here looked"

    def first(self, engine: Engine, now: int) -> list[ev.Event]:
        """What comes before anybody could be let in."""
        if not self._why or (self._known_at is not None and engine.state.recovers_until > self._known_at):
            return []  # nothing happened, or somebody has seen to it since
        return engine.handle(cmd.Recover(REMOTE_MS if self._log.is_shared else LOCAL_MS, self._why), now)

    def claims(self, engine: Engine, now: int) -> list[ev.Event]:
        """The leases of those who run here, for the log that has forgotten them."""
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
        """Leases that somebody counted again before us, and that have ended by now though their processes live on."""
        if self._known_at is None or state.recovers_until <= self._known_at:
            return set()
        told = (event for _, _, event in self._log.history(state.recovers_since))
        return {event.id for event in told if isinstance(event, (ev.Released, ev.Reclaimed))}

    def forgotten(self, ident: str) -> Lease | None:
        """A client's lease that another service spoke for, when the log has lost it; asked once, for a renewal."""
        return self._forgotten.pop(ident, None)

    def _returns(self, engine: Engine, now: int) -> list[ev.Event]:
        """What this process has given back, for the log that has forgotten that: nobody else can tell."""
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
    """Whether it is for us to say that a lease which the log has forgotten is still held.

    A client's is, for the service that speaks for it: which goes on to judge it by its renewals. A job's is for the
    hand that runs it, also when its agent has ended in this moment: the hand gives it back.
    """
    ticket = lease.ticket
    if lease.claimed and ticket.holder == me and (ticket.renew_ms or ticket.job):
        return True
    return lease.claimed and not ticket.renew_ms and process_identity.is_gone(lease.lives_with) is False


def is_ours(lease: Lease) -> bool:
    """Whether a lease is of a process that is certainly alive here, and that nobody else would start again.

    A job that was called lost is queued again, and clients are never called lost.
    """
    ticket = lease.ticket
    if not lease.claimed or ticket.job or ticket.renew_ms:
        return False
    return process_identity.is_gone(lease.lives_with) is False


def adoption(lease: Lease, now: int, why: str) -> cmd.Adopt:
    """The command that brings a lease back into the books."""
    return cmd.Adopt(lease.ticket, lease.model, lease.child, max(now - lease.granted_at, 0), why)
