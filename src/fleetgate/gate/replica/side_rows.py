"""The rows that a decision writes beside the log: news for waiting processes, the ends of jobs, and usage.

A waiting process looks its row up in its backstop poll, and so learns what was decided without reading the log. The
names of the tables are part of the store's format.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fleetgate.core import events as ev
from fleetgate.core.state.state import State
from fleetgate.core.views.budget_views import budgets_stopping
from fleetgate.gate.usage_rows import hour_row
from fleetgate.log.protocol import SideWrite

TICKET_NEWS = "told"  # by ticket: granted, lost, expired or cancelled; by lease: stop
JOB_ENDS = "job_ends"  # by job: the event that ended its ticket or lease, until jobs/ has handled it

_encode = msgspec.json.Encoder().encode


def rows_for(events: Sequence[ev.Event], address: str, state: State, now: int) -> list[SideWrite]:
    """The rows for these events, by a process that is woken at `address` and needs none for itself.

    `state` is the one after them.
    """
    rows = []
    for event in events:
        kind = type(event)
        if kind is ev.Granted:
            if not event.claimed:  # type: ignore[union-attr]
                rows.append(SideWrite(TICKET_NEWS, event.id, b"granted"))  # type: ignore[union-attr]
        elif kind is ev.Claimed or kind is ev.Returned:
            lease = state.leases.get(event.id)  # type: ignore[union-attr]
            news = b"stop" if lease is not None and lease.stop_by else None
            rows.append(SideWrite(TICKET_NEWS, event.id, news))  # type: ignore[union-attr]
        elif kind is ev.StopRequested:
            rows.append(SideWrite(TICKET_NEWS, event.id, b"stop"))  # type: ignore[union-attr]
        elif getattr(event, "job", False):
            if kind is not ev.Released:
                rows.append(SideWrite(JOB_ENDS, event.id, _encode(event)))  # type: ignore[union-attr]
        elif kind is ev.Reclaimed:
            if event.cause == "lost":  # type: ignore[union-attr]
                rows.append(SideWrite(TICKET_NEWS, event.id, b"lost"))  # type: ignore[union-attr]
        elif kind is ev.Expired:
            rows.append(SideWrite(TICKET_NEWS, event.id, b"expired"))  # type: ignore[union-attr]
        elif kind is ev.HourClosed:
            rows.append(hour_row(event.hour, event.rows))  # type: ignore[union-attr]
        elif kind is ev.BudgetReached:
            if event.percent >= 100 and event.when_empty == "stop":  # type: ignore[union-attr]
                stopped = [ident for ident in state.leases if budgets_stopping(state, ident, now)]
                rows += [SideWrite(TICKET_NEWS, ident, b"stop") for ident in stopped]
        elif kind is ev.Cancelled and event.wake != address:  # type: ignore[union-attr]
            rows.append(SideWrite(TICKET_NEWS, event.id, b"cancelled"))  # type: ignore[union-attr]
    return rows
