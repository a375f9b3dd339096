"""Jobs that wait for a worker: one heap for each distinct set of needs, as the line has queues.

They keep their places and ask for nothing (SPEC J2). A worker with a free hand looks at the first of each heap; so
what that costs depends on how many kinds of jobs there are, not on how many jobs. Derived from the tickets; an entry
whose ticket no longer stands here is passed over when it comes to the top.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from fleetgate.core.entities import Spec, Ticket
from fleetgate.core.ticket_states import UNASSIGNED

_MOST_STALE = 64

Entry = tuple[int, int, str]  # order, arrival, id


class WaitingJobs:
    """The jobs of a state that nobody offers to run."""

    def __init__(self, tickets: dict[str, Ticket]) -> None:
        self._tickets = tickets
        self._heaps: dict[Spec, list[Entry]] = {}
        self._later: list[tuple[int, str]] = []  # those that may not be offered yet, and from when on they may
        self._entries: set[Entry] = set()

    def put(self, ticket: Ticket, at: int) -> None:
        """A job waits for a worker from now on."""
        if ticket.held:
            return
        if ticket.not_before > at:
            heappush(self._later, (ticket.not_before, ticket.id))
            return
        entry = (ticket.order, ticket.arrival, ticket.id)
        if entry in self._entries:
            return
        if len(self._entries) > _MOST_STALE + 4 * len(self._tickets):
            self.fill(at)
        self._entries.add(entry)
        heappush(self._heaps.setdefault(ticket.spec, []), entry)

    def fill(self, at: int) -> None:
        """Put all that wait for a worker here, and nothing else."""
        self._heaps, self._later, self._entries = {}, [], set()
        for ticket in self._tickets.values():
            if ticket.job and ticket.away:
                self.put(ticket, at)

    def heads(self, now: int) -> list[Ticket]:
        """The first of each kind, in the order of the queue."""
        self._take_in(now)
        found = [head for spec in list(self._heaps) if (head := self._head(spec)) is not None]
        return sorted(found, key=lambda ticket: (ticket.order, ticket.arrival))

    def kinds(self, now: int) -> list[Spec]:
        """The kinds of which some wait for a worker now."""
        self._take_in(now)
        return [spec for spec in list(self._heaps) if self._head(spec) is not None]

    def entries(self, spec: Spec) -> list[Entry]:
        """Those of a kind, noted down for `in_order`."""
        return list(self._heaps.get(spec, ()))

    def in_order(self, spec: Spec, entries: list[Entry]) -> Iterator[Ticket]:
        """Those of a kind that still wait, the oldest first. Takes the entries apart as it goes."""
        while entries:
            entry = heappop(entries)
            ticket = self._standing(spec, entry)
            if ticket is not None:
                yield ticket

    def _take_in(self, now: int) -> None:
        """Those whose pause is over wait with the others."""
        while self._later and self._later[0][0] <= now:
            _, ident = heappop(self._later)
            ticket = self._tickets.get(ident)
            if ticket is not None and ticket.state == UNASSIGNED:
                self.put(ticket, now)

    def next_due(self) -> int | None:
        """When the next of those that must not be offered yet may be."""
        return self._later[0][0] if self._later else None

    def _head(self, spec: Spec) -> Ticket | None:
        heap = self._heaps[spec]
        while heap:
            ticket = self._standing(spec, heap[0])
            if ticket is not None:
                return ticket
            self._entries.discard(heappop(heap))
        del self._heaps[spec]
        return None

    def _standing(self, spec: Spec, entry: Entry) -> Ticket | None:
        """The ticket of an entry, if that is still its place."""
        ticket = self._tickets.get(entry[2])
        if ticket is None or ticket.state != UNASSIGNED or ticket.spec != spec:
            return None
        return ticket if (ticket.order, ticket.arrival) == entry[:2] else None
