"""The requests of one process: those that wait, those that hold a lease, and how each of them ends.

A release that failed because the store did is repeated, with its usage, as soon as the store works again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Lease, Reason
from fleetgate.gate.library.lease_handles import Deferred, NotAdmitted
from fleetgate.gate.library.usage_arguments import UNUSED
from fleetgate.gate.replica.group_commit import Batch, GroupCommit
from fleetgate.gate.replica.replica import Decided, Replica
from fleetgate.gate.replica.side_rows import TICKET_NEWS


class Waiting(NamedTuple):
    """A request that waits, and the future that gets its answer."""

    command: cmd.Acquire
    future: asyncio.Future[Lease | Deferred]


class PendingRequests:
    """All requests of a gate."""

    def __init__(self, replica: Replica, commits: GroupCommit, is_closed: Callable[[], bool]) -> None:
        self.waiting: dict[str, Waiting] = {}
        self.held: dict[str, Lease] = {}
        self._unreleased: dict[str, cmd.Release] = {}  # given up, and then the store failed
        self._replica = replica
        self._commits = commits
        self._is_closed = is_closed

    def add(self, command: cmd.Acquire) -> asyncio.Future[Lease | Deferred]:
        """Wait for the answer to a command, which the caller puts into the batch."""
        future: asyncio.Future[Lease | Deferred] = self._commits.loop.create_future()
        self.waiting[command.id] = Waiting(command, future)
        return future

    def give_up(self, ident: str) -> None:
        """Give up the ticket or lease of this id, which was not used. Never waits: the next transaction has it."""
        self._give_up(cmd.Release(ident, usage=UNUSED))

    def _give_up(self, release: cmd.Release) -> None:
        ident = release.id
        self.waiting.pop(ident, None)
        self.held.pop(ident, None)
        if not self._is_closed():
            self._commits.put(cmd.Cancel(ident))  # a place in the queue, or a grant that was not claimed yet
            self._commits.put(release)

    def give_up_all(self) -> list[asyncio.Future[Lease | Deferred]]:
        """Give up everything but clients' tickets, which another service may take over; the futures that waited."""
        futures = [waiting.future for waiting in self.waiting.values()]
        waiting = {ident: one for ident, one in self.waiting.items() if not one.command.renew_ms}
        for ident in waiting:
            self.give_up(ident)
        for release in (*(cmd.Release(ident) for ident in self.held), *self._unreleased.values()):
            self._give_up(release)
        self.waiting.clear()
        return futures

    @property
    def has_failed_releases(self) -> bool:
        """Whether a release is to be repeated when the store works again."""
        return bool(self._unreleased)

    def retry_releases(self) -> None:
        """The store works: repeat the releases that failed."""
        if self._unreleased and not self._is_closed():
            unreleased, self._unreleased = self._unreleased, {}
            for release in unreleased.values():
                self._give_up(release)

    # The results of our commands.

    def answer_refusal(self, command: cmd.Acquire, decided: Decided) -> None:
        """Answer a request that was refused; a grant comes with the events, now or later."""
        if decided.error is None and (not decided.events or type(decided.events[-1]) is not ev.Deferred):
            return
        waiting = self.waiting.pop(command.id, None)
        if waiting is None or waiting.future.done():
            return
        if decided.error is not None:
            waiting.future.set_exception(decided.error)
        else:
            waiting.future.set_result(Deferred(decided.events[-1].reason))  # type: ignore[union-attr, arg-type]

    def fail(self, batch: Batch, error: BaseException) -> None:
        """Give the error to every request of a batch that was not committed, as far as is known."""
        for command, future in batch:
            kind = type(command)
            if kind is cmd.Acquire:
                waiting = self.waiting.pop(command.id, None)  # type: ignore[union-attr]
                if waiting is not None and not waiting.future.done():
                    waiting.future.set_exception(error)
            elif kind is cmd.Release:
                # Without its outcome: a refusal that comes late would hold others back for nothing.
                self._unreleased[command.id] = cmd.Release(command.id, usage=command.usage)  # type: ignore[union-attr]
            elif kind is cmd.Cancel and future is None:
                self._unreleased.setdefault(command.id, cmd.Release(command.id, usage=UNUSED))  # type: ignore[union-attr]
            if future is not None and not future.done():
                future.set_exception(error)

    # Decisions on our requests, read from events or from the state.

    def apply(self, event: ev.Event) -> None:
        """An event was committed, by this process or by another."""
        kind = type(event)
        if kind is ev.Granted or kind is ev.Claimed:
            ident = event.id  # type: ignore[union-attr]
            if ident in self.waiting:
                lease = self._replica.state.leases.get(ident)
                if lease is not None:
                    self._granted(ident, lease)
        elif kind is ev.Returned:
            if event.id in self.waiting:  # type: ignore[union-attr]
                self._commits.put(cmd.Ask(event.id))  # type: ignore[union-attr]
        elif kind in _LEFT:
            self._left(event.id, _LEFT[kind])  # type: ignore[union-attr]

    def _granted(self, ident: str, lease: Lease) -> None:
        if not lease.claimed:
            self._commits.put(cmd.Claim(ident))
            return
        waiting = self.waiting.pop(ident)
        if not waiting.future.done():
            if not waiting.command.renew_ms:  # else it is its client's, and any service may take it over
                self.held[ident] = lease
            waiting.future.set_result(lease)

    def _left(self, ident: str, why: str) -> None:
        waiting = self.waiting.pop(ident, None)
        if waiting is not None and not waiting.future.done():
            sentence = f"the ticket was {why}"
            waiting.future.set_exception(NotAdmitted(sentence, Reason(why, sentence)))

    def compare_with_state(self) -> None:
        """Answer requests by the state, since events may have been missed.

        A snapshot that was loaded replaces them, a log that was restored never had them, and a claim may fail.
        """
        state = self._replica.state
        unsent = {command.id for command, _ in self._commits.batch if type(command) is cmd.Acquire}
        for ident, waiting in list(self.waiting.items()):
            lease, ticket = state.leases.get(ident), state.tickets.get(ident)
            if lease is not None:
                self._granted(ident, lease)
            elif ticket is not None:
                if ticket.away:
                    self._commits.put(cmd.Ask(ident))
            elif ident not in unsent:
                end = self._replica.log.side_value(TICKET_NEWS, ident)
                if end is None:
                    self._commits.put(waiting.command)  # the log lost it: ask again, under the same id
                else:
                    self._left(ident, end.decode())

    def release_unknown_leases(self) -> None:
        """Give up leases and tickets in the name of this process that no request here has."""
        replica = self._replica
        known = self.held.keys() | self.waiting.keys()
        state = replica.state
        tickets = [lease.ticket for lease in state.leases.values()]
        tickets += [
            state.tickets[ident] for ident in state.ticket_index.processes.get(replica.me, ()) if ident not in known
        ]
        for ticket in tickets:
            ours = ticket.holder == replica.me and ticket.wake == replica.address and not ticket.renew_ms
            if ours and ticket.id not in known:
                self._give_up(cmd.Release(ticket.id))


# How another process may end a ticket or a grant of ours.
_LEFT: dict[type, str] = {
    ev.Expired: "expired",
    ev.Cancelled: "cancelled",
    ev.Dropped: "dropped",
    ev.Released: "released",
    ev.Reclaimed: "reclaimed",
}
