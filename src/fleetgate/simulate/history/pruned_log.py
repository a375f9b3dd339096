"""The beginning of a log whose older events are no longer kept.

What was set, held and waited for when the kept part begins follows from its later events and from the state at its end,
as far as that is possible: leases that end without having begun were held, and caps that nothing changed were the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from fleetgate.core import events as ev
from fleetgate.core.entities import Reason, Spec, Ticket
from fleetgate.core.state.state import State

_OF_LEASES: Final = (ev.Claimed, ev.Released, ev.Reclaimed, ev.Settled, ev.StopRequested, ev.Preempted, ev.Returned)
_OF_TICKETS: Final = (
    *(ev.Cancelled, ev.Expired, ev.Dropped, ev.Bumped, ev.Asked, ev.Offered, ev.Withdrawn, ev.Held),
    *(ev.Approved, ev.Reserved),
)
_OF_POOLS: Final = (ev.Paused, ev.Resumed, ev.Reduced, ev.Accepted, ev.Refused, ev.UsageAsked, ev.UsageAnswered)


def known(event: ev.Event, state: State) -> ev.Event | None:
    """The event, if the state knows what it is about."""
    kind = type(event)
    ident = getattr(event, "id", "")
    if kind in _OF_LEASES and ident not in state.leases:
        return None
    if kind in _OF_TICKETS and ident not in state.tickets:
        return None
    if kind is ev.Renewed and ident not in state.tickets and ident not in state.leases:
        return None
    if isinstance(event, ev.BackoffEnded) and event.key not in state.backoffs:
        return None
    if isinstance(event, _OF_POOLS):
        pool = state.named(event.kind, event.pool)
        learned = isinstance(event, ev.Accepted | ev.Refused)
        return None if pool is None or (learned and pool.limiter.adaptive is None) else event
    if isinstance(event, ev.Granted):
        if event.ticket is None and ident not in state.tickets:
            return None
        return replace(event, probes=tuple(key for key in event.probes if key in state.backoffs))
    return event


def start_of_pruned_log(rows: Sequence[tuple[int, int, ev.Event]], final: State) -> list[ev.Event]:
    """Events that bring an empty state to where the kept part seems to begin."""
    rules, budgets = final.rules, final.budget_rules
    found: list[ev.Event] = [
        ev.FileLoaded(
            final.file_path,
            final.file_digest,
            final.file_modified,
            tuple(rules.file.values()),
            final.seniority_ms,
            tuple(budgets.file.values()),
            final.zone,
            tuple(final.plans.rules.file.values()),
            final.preempt_after_ms,
            tuple(rules.weights.items()),
        )
    ]
    found += [ev.RuleSet(rule, cap_set=rule.cap is not None) for rule in rules.runtime.values()]
    began, queued = _first_seen(rows)
    host = _usual_host(rows)
    ended = {event.id: event for _, _, event in rows if isinstance(event, ev.Released | ev.Reclaimed)}
    for _, at, event in rows:
        if isinstance(event, ev.Released | ev.Reclaimed) and event.id not in began:
            began.add(event.id)
            ticket = _ticket(event, host, at - event.held_ms)
            found.append(ev.Granted(event.id, event.model, 0, ticket=ticket, adopted="log_lost"))
        elif isinstance(event, ev.Granted) and event.ticket is None and event.id not in queued:
            queued.add(event.id)
            lease = final.leases.get(event.id)
            end = ended.get(event.id)
            if lease is not None:
                found.append(ev.Queued(lease.ticket, Reason("", "")))
            elif end is not None:
                found.append(ev.Queued(_ticket(end, host, at - event.waited_ms), Reason("", "")))
    for ident, lease in final.leases.items():
        if ident not in began:
            found.append(ev.Granted(ident, lease.model, 0, ticket=lease.ticket, adopted="log_lost"))
    for ident, ticket in final.tickets.items():
        if ident not in queued and ident not in began:
            found.append(ev.Queued(ticket, Reason("", "")))
    return found


def _first_seen(rows: Sequence[tuple[int, int, ev.Event]]) -> tuple[set[str], set[str]]:
    """The requests whose grant is kept, and those whose arrival is."""
    began, queued = set(), set()
    for _, _, event in rows:
        if isinstance(event, ev.Granted):
            began.add(event.id)
            if event.ticket is not None:
                queued.add(event.id)
        elif isinstance(event, ev.Queued):
            queued.add(event.ticket.id)
    return began, queued


def _usual_host(rows: Sequence[tuple[int, int, ev.Event]]) -> str:
    tickets = [event.ticket for _, _, event in rows if isinstance(event, ev.Queued | ev.Granted) and event.ticket]
    hosts = Counter(ticket.spec.host for ticket in tickets)
    return hosts.most_common(1)[0][0] if hosts else ""


def _ticket(end: ev.Released | ev.Reclaimed, host: str, at: int) -> Ticket:
    """A request of which only the end is kept."""
    spec = Spec((end.model,) if end.model else (), end.kind, host=host, project=end.project)
    return Ticket(end.id, spec, "", at, 0, at, at, 1 << 52, run=end.run)
