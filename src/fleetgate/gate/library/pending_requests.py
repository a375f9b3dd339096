"""The requests of one process: who waits here, who holds a lease, and what becomes of them, whoever decided it.

What could not be released because the store failed is released as soon as it works again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Lease, Reason
from fleetgate.gate.library.lease_handles import Deferred, NotAdmitted
from fleetgate.gate.replica.group_commit import Batch, GroupCommit
from fleetgate.gate.replica.replica import TOLD, Decided, Replica


class Waiting(NamedTuple):
    """One who waits here, and what it asked for."""

    command: cmd.Acquire
    future: asyncio.Future[Lease | Deferred]


class PendingRequests:
    """All requests of a gate."""

    def __init__(self, replica: Replica, commits: GroupCommit, is_closed: Callable[[], bool]) -> None:
        self.waiting: dict[str, Waiting] = {}
        self.mine: dict[str, Lease] = {}
        self._doubtful: set[str] = set()  # given up, and then the store failed
        self._replica = replica
        self._commits = commits
        self._is_closed = is_closed

    def add(self, command: cmd.Acquire) -> asyncio.Future[Lease | Deferred]:
        """One who waits from now on; its command is for the caller to put."""
        future: asyncio.Future[Lease | Deferred] = self._commits.loop.create_future()
        self.waiting[command.id] = Waiting(command, future)
        return future

    def leave(self, ident: str) -> None:
        """Give up whatever this id stands for by now. Never waits: what is in the batch will be done."""
        self.waiting.pop(ident, None)
        self.mine.pop(ident, None)
        if not self._is_closed():
            self._commits.put(cmd.Cancel(ident))  # a place in the queue, or a grant that nobody has used yet
            self._commits.put(cmd.Release(ident, "ok"))

    def leave_all(self) -> list[asyncio.Future[Lease | Deferred]]:
        """Give up everything but the places of clients that somebody else may speak for; those who waited."""
        told = [waiting.future for waiting in self.waiting.values()]
        waiting = {ident: one for ident, one in self.waiting.items() if not one.command.renew_ms}
        for ident in {**waiting, **self.mine, **dict.fromkeys(self._doubtful)}:
            self.leave(ident)
        self.waiting.clear()
        return told

    @property
    def in_doubt(self) -> bool:
        """Whether something waits to be given back until the store works."""
        return bool(self._doubtful)

    def leave_the_doubtful(self) -> None:
        """The store works: what it failed to give back is given back now."""
        if self._doubtful and not self._is_closed():
            doubtful, self._doubtful = self._doubtful, set()
            for ident in doubtful:
                self.leave(ident)

    # What became of commands of ours.

    def answer(self, command: cmd.Acquire, decided: Decided) -> None:
        """A refusal at once; a grant comes with the events, now or later."""
        if decided.error is None and (not decided.events or type(decided.events[-1]) is not ev.Deferred):
            return
        waiting = self.waiting.pop(command.id, None)
        if waiting is None or waiting.future.done():
            return
        if decided.error is not None:
            waiting.future.set_exception(decided.error)
        else:
            waiting.future.set_result(Deferred(decided.events[-1].reason))  # type: ignore[union-attr, arg-type]

    def failed(self, batch: Batch, error: BaseException) -> None:
        """Nothing of this batch happened, or nobody knows; everybody in it is told so."""
        for command, future in batch:
            kind = type(command)
            if kind is cmd.Acquire:
                waiting = self.waiting.pop(command.id, None)  # type: ignore[union-attr]
                if waiting is not None and not waiting.future.done():
                    waiting.future.set_exception(error)
            elif kind is cmd.Release or (kind is cmd.Cancel and future is None):
                self._doubtful.add(command.id)  # type: ignore[union-attr]
            if future is not None and not future.done():
                future.set_exception(error)

    # What happened, by events or by the state.

    def hear(self, event: ev.Event) -> None:
        """Something was committed, by us or by others."""
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
            if not waiting.command.renew_ms:  # else it is its client's, whoever speaks for it
                self.mine[ident] = lease
            waiting.future.set_result(lease)

    def _left(self, ident: str, why: str) -> None:
        waiting = self.waiting.pop(ident, None)
        if waiting is not None and not waiting.future.done():
            sentence = f"the ticket was {why}"
            waiting.future.set_exception(NotAdmitted(sentence, Reason(why, sentence)))

    def compare(self) -> None:
        """What became of those who wait here, by the state: events may have gone by unheard.

        A snapshot that was loaded has swallowed them, a log that was restored never had them, and a claim may fail.
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
                told = self._replica.log.side_value(TOLD, ident)
                if told is None:
                    self._commits.put(waiting.command)  # nobody took it out: ask again, under the same id
                else:
                    self._left(ident, told.decode())

    def leave_strangers(self) -> None:
        """Leases and tickets in our name that nobody here has are given back."""
        replica = self._replica
        known = self.mine.keys() | self.waiting.keys()
        state = replica.state
        tickets = [lease.ticket for lease in state.leases.values()]
        tickets += [state.tickets[ident] for ident in state.roster.processes.get(replica.me, ()) if ident not in known]
        for ticket in tickets:
            ours = ticket.holder == replica.me and ticket.wake == replica.address and not ticket.renew_ms
            if ours and ticket.id not in known:
                self.leave(ticket.id)


# How a ticket or a grant of ours may end without us.
_LEFT: dict[type, str] = {
    ev.Expired: "expired",
    ev.Cancelled: "cancelled",
    ev.Dropped: "dropped",
    ev.Released: "released",
    ev.Reclaimed: "reclaimed",
}
