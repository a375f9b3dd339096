"""Where to find tickets without looking at all: by process, by the account that it can ask, and those set aside.

A decision that has nothing to do with those who wait must not pay for them. Derived from the tickets.
"""

from __future__ import annotations

from fleetgate.core.entities import Ticket

Ids = dict[str, None]  # in order of arrival here


class TicketIndex:
    """Indexes of the tickets of one state."""

    def __init__(self) -> None:
        self.processes: dict[str, Ids] = {}  # of each process: the tickets that it waits with, or that live with it
        self.askers: dict[
            str, Ids
        ] = {}  # of each account: the tickets in the queue whose process can ask for its usage
        self.aside: Ids = {}  # those that ask for nothing, other than jobs that wait for a worker

    def add(self, ticket: Ticket) -> None:
        ident = ticket.id
        if ticket.holder:
            self.processes.setdefault(ticket.holder, {})[ident] = None
        if ticket.bound:
            self.processes.setdefault(ticket.bound, {})[ident] = None
        if ticket.asks and not ticket.away:
            for account in ticket.asks:
                self.askers.setdefault(account, {})[ident] = None
        if ticket.away and (not ticket.job or ticket.held or ticket.not_before):
            self.aside[ident] = None

    def remove(self, ticket: Ticket) -> None:
        ident = ticket.id
        if ticket.holder:
            _remove(self.processes, ticket.holder, ident)
        if ticket.bound:
            _remove(self.processes, ticket.bound, ident)
        if ticket.asks and not ticket.away:
            for account in ticket.asks:
                _remove(self.askers, account, ident)
        if ticket.away:
            self.aside.pop(ident, None)

    def of_processes(self, processes: set[str]) -> list[str]:
        """The tickets of these processes."""
        return list({ident: None for process in sorted(processes) for ident in self.processes.get(process, ())})


def _remove(index: dict[str, Ids], key: str, ident: str) -> None:
    found = index[key]
    found.pop(ident, None)  # named twice, perhaps
    if not found:
        del index[key]
