"""Jobs that wait for a worker: one heap for each distinct set of needs.

They keep their places and ask for nothing (rule J2). A worker with a free hand looks at the first of each heap, so the
cost depends on how many kinds of jobs there are, not on how many jobs. Derived from the tickets; an obsolete entry is
skipped when it comes to the top.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from fleetgate.core.entities import Spec, Ticket
from fleetgate.core.ticket_states import UNASSIGNED

_MAX_OBSOLETE = 64

Entry = tuple[int, int, str]  # order, arrival, id


class WaitingJobs:
    """The unassigned jobs of one state."""

    def __init__(self, tickets: dict[str, Ticket]) -> None:
        self._tickets = tickets
        self._heaps: dict[Spec, list[Entry]] = {}
        self._later: list[tuple[int, str]] = []  # jobs that failed: from when on a worker may offer to run them
        self._entries: set[Entry] = set()

    def put(self, ticket: Ticket, at: int) -> None:
        """Add a job that waits for a worker from now on."""
        if ticket.held:
            return
        if ticket.not_before > at:
            heappush(self._later, (ticket.not_before, ticket.id))
            return
        entry = (ticket.order, ticket.arrival, ticket.id)
        if entry in self._entries:
            return
        if len(self._entries) > _MAX_OBSOLETE + 4 * len(self._tickets):
            self.fill(at)
        self._entries.add(entry)
        heappush(self._heaps.setdefault(ticket.spec, []), entry)

    def fill(self, at: int) -> None:
        """Start again from the tickets."""
        self._heaps, self._later, self._entries = {}, [], set()
        for ticket in self._tickets.values():
            if ticket.job and ticket.away:
                self.put(ticket, at)

    def heads(self, now: int) -> list[Ticket]:
        """The first of each kind, in the order of the queue."""
        self._end_pauses(now)
        found = [head for spec in list(self._heaps) if (head := self._head(spec)) is not None]
        return sorted(found, key=lambda ticket: (ticket.order, ticket.arrival))

    def kinds(self, now: int) -> list[Spec]:
        """The kinds of jobs that wait for a worker now."""
        self._end_pauses(now)
        return [spec for spec in list(self._heaps) if self._head(spec) is not None]

    def entries(self, spec: Spec) -> list[Entry]:
        """A copy of the entries of a kind, for `in_order`."""
        return list(self._heaps.get(spec, ()))

    def in_order(self, spec: Spec, entries: list[Entry]) -> Iterator[Ticket]:
        """The jobs of a kind that still wait, the oldest first. Consumes the entries."""
        while entries:
            entry = heappop(entries)
            ticket = self._current(spec, entry)
            if ticket is not None:
                yield ticket

    def _end_pauses(self, now: int) -> None:
        """Move the jobs whose pause is over to the others."""
        while self._later and self._later[0][0] <= now:
            _, ident = heappop(self._later)
            ticket = self._tickets.get(ident)
            if ticket is not None and ticket.state == UNASSIGNED:
                self.put(ticket, now)

    def next_due(self) -> int | None:
        """When the next pause ends, or None."""
        return self._later[0][0] if self._later else None

    def _head(self, spec: Spec) -> Ticket | None:
        heap = self._heaps[spec]
        while heap:
            ticket = self._current(spec, heap[0])
            if ticket is not None:
                return ticket
            self._entries.discard(heappop(heap))
        del self._heaps[spec]
        return None

    def _current(self, spec: Spec, entry: Entry) -> Ticket | None:
        """The ticket of an entry, if the entry is not obsolete."""
        ticket = self._tickets.get(entry[2])
        if ticket is None or ticket.state != UNASSIGNED or ticket.spec != spec:
            return None
        return ticket if (ticket.order, ticket.arrival) == entry[:2] else None
