"""The filter of the queue: words, project and pool, as a person searches for waiting requests.

Every word must occur in one of a request's fields: its ID, command, models, project, reason, host, process, client,
role, key or kind. A pool is the one that blocks a request.
"""

from __future__ import annotations

from typing import NamedTuple

from fleetgate.core.queue.positions import QueueView, TicketView
from fleetgate.gate.liveness import process_identity
from fleetgate.present.request_text import label


class QueueFilter(NamedTuple):
    """What a request must have; empty values match all."""

    text: str = ""
    project: str = ""
    pool: str = ""
    kind: str = ""  # of the pool

    def find(self, line: QueueView) -> list[TicketView]:
        """The requests that match, in the order of the queue."""
        words = self.text.lower().split()
        views = line.walk(lambda ticket: self.project in ("", ticket.spec.project))
        return [view for view in views if self._has_pool(view) and _has_words(view, words)]

    def _has_pool(self, view: TicketView) -> bool:
        return not self.pool or (
            self.pool in (view.pool, *view.reason.pools) and self.kind in ("", view.ticket.spec.kind)
        )


def _has_words(view: TicketView, words: list[str]) -> bool:
    if not words:
        return True
    ticket, reason = view.ticket, view.reason
    spec, pid = ticket.spec, process_identity.pid_of(ticket.holder)
    fields = (
        ticket.id,
        label(ticket),
        *spec.models,
        spec.project,
        reason.code,
        reason.text,
        process_identity.host_of(ticket.holder),
        "" if pid is None else str(pid),
        ticket.client,
        ticket.role,
        ticket.key,
        spec.kind,
        spec.agent_session,
    )
    found = "\n".join(fields).lower()
    return all(word in found for word in words)
