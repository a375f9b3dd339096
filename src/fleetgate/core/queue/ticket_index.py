"""An index of tickets: by process, by the account that the process can ask, and those that ask for nothing.

A decision that does not concern waiting tickets must not cost more when there are many. Derived from the tickets.
"""

from __future__ import annotations

from fleetgate.core.entities import Ticket

Ids = dict[str, None]  # in order of arrival here


class TicketIndex:
    """The index of one state's tickets."""

    def __init__(self) -> None:
        self.processes: dict[str, Ids] = {}  # by process: tickets that it holds, or that are bound to it
        self.askers: dict[
            str, Ids
        ] = {}  # of each account: the tickets in the queue whose process can ask for its usage
        self.aside: Ids = {}  # those that ask for nothing and are no jobs that a worker could run now

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
    found.pop(ident, None)  # holder and bound process may be the same
    if not found:
        del index[key]
