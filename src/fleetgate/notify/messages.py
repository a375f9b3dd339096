"""Messages: which events become one, of which kind, and which incident they belong to.

One incident is one message: a backoff that is extended, or reported by ten agents, opens one and is sent once; its end
closes it. A rate limit that also lowers a limit is sent as the reduction alone, if the target wants reductions.

Where the limit is learned (`adapt`), occasional refusals are how it is found, and no message is sent for them. Sent
are: that the limit is below the cap, once, until a call at the cap was accepted; that it has sunk below a level that
had worked, once, until that level works again; and that calls are refused though nothing else is in flight.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from fleetgate.core import events as ev
from fleetgate.core.plans.runway import DRY
from fleetgate.core.pools.backoff import NEEDS_A_PERSON
from fleetgate.log.protocol import Commit
from fleetgate.present.budgets.plan_windows import dry_message
from fleetgate.present.budgets.text import reached_text
from fleetgate.present.event_text import sentence

ANY = "any"  # pool
FOR_GOOD = 1 << 60
_PASSING_MS = 60_000


class Message(Struct, omit_defaults=True):
    """One message. `event` is None for messages of our own (a test, a summary)."""

    kind: str
    text: str
    seq: int = 0
    at: int = 0  # log time
    opens: str = ""  # the incident that it is the first of
    closes: str = ""  # the incident that is over; sent only if its beginning was
    level: int = 0  # calls at once that must be accepted to close it; of a closing message: that were
    pool: str = ""
    event: ev.Event | None = None


def messages_of(commit: Commit, position_of: Callable[[str], int | None], clock: Callable[[int], str]) -> list[Message]:
    """All messages of a commit, for any target. `clock` says a time of the log in words: `at 14:00`."""
    first = commit.seq - len(commit.events) + 1
    found = []
    learning = {
        (event.kind, event.pool) for event in commit.events if isinstance(event, ev.Refused) and event.why != "alone"
    }
    for seq, event in enumerate(commit.events, first):
        if isinstance(event, ev.Paused) and (event.kind, event.pool) in learning:
            continue
        message = _message(event, commit.at, position_of)
        if isinstance(event, ev.BudgetReached):
            message = Message(f"budget_{event.percent}", reached_text(event, clock(event.resets_at)))
        elif isinstance(event, ev.PlanRunway):
            message = _of_plan(event, commit.at, clock)
        if message is not None:
            message.seq, message.at, message.event = seq, commit.at, event
            found.append(message)
    return found


def wanted(messages: list[Message], kinds: tuple[str, ...]) -> list[Message]:
    """The messages of these kinds. Others still open and close incidents, so they are kept without a kind."""
    reduced = (
        {message.pool for message in messages if message.kind == "auto_reduced"} if "auto_reduced" in kinds else ()
    )
    kept = []
    for message in messages:
        sent = message.kind in kinds and not (message.kind == "rate_limited" and message.pool in reduced)
        if sent or message.opens or message.closes:
            kept.append(message if sent else _silent(message))
    return kept


def _silent(message: Message) -> Message:
    return Message("", "", message.seq, message.at, message.opens, message.closes, message.level)


def _message(event: ev.Event, at: int, position_of: Callable[[str], int | None]) -> Message | None:
    if isinstance(event, ev.Queued):
        return _queued(event, at, position_of)
    if isinstance(event, ev.Granted):
        ticket = event.ticket
        agents = ticket is None or ticket.spec.kind == "agents"
        return Message("started", sentence(event, at)) if agents else None
    if isinstance(event, ev.Expired):
        return Message("expired", sentence(event, at))
    if isinstance(event, ev.Held):
        return Message("held", f"{sentence(event, at)}: fleetgate approve {event.id}")
    if isinstance(event, ev.JobEnded):
        kind = {"failed": "failed", "lost": "failed", "succeeded": "succeeded"}.get(event.state)
        return Message(kind, sentence(event, at)) if kind else None
    if isinstance(event, ev.Released):
        real = event.kind == "agents" and not event.job and event.outcome in ("local_error", "server_error")
        return Message("failed", sentence(event, at)) if real else None
    return _of_limits(event, at)


def _queued(event: ev.Queued, at: int, position_of: Callable[[str], int | None]) -> Message | None:
    ticket = event.ticket
    if ticket.spec.kind != "agents" or (ticket.job and ticket.since < ticket.queued_at):
        return None  # model calls are too many, and a job that returns to the queue was reported when it was new
    position = position_of(ticket.id)
    where = "" if position is None else f", position {position}"
    return Message("queued", sentence(event, at) + where)


def _of_limits(event: ev.Event, at: int) -> Message | None:
    if isinstance(event, ev.BackedOff) and event.times and event.until - at < _PASSING_MS:
        return None  # calls are tried again in a moment
    if isinstance(event, ev.BackedOff) and not event.manual:
        opens = f"backoff {event.key}"
        if event.reason in NEEDS_A_PERSON:
            what = "log in again" if event.reason == "auth" else "see to its plan or bill"
            return Message("login", f"{event.key} needs a person ({what}): {sentence(event, at)}", opens=opens)
        return Message("rate_limited", sentence(event, at), opens=opens)
    if isinstance(event, ev.BackoffEnded):
        return Message("recovered", sentence(event, at), closes=f"backoff {event.key}")
    if isinstance(event, ev.Paused) and event.cause == "rate_limited" and event.incident:
        return Message("rate_limited", sentence(event, at), pool=f"{event.kind} {event.pool}")
    if isinstance(event, ev.Reduced):
        return Message("auto_reduced", sentence(event, at), pool=f"{event.kind} {event.pool}")
    return _of_learning(event, at)


def _of_plan(event: ev.PlanRunway, at: int, clock: Callable[[int], str]) -> Message:
    incident = f"plan {event.account} {event.window}"
    if event.level == DRY:
        return Message("plan_dry", dry_message(event, at, clock), opens=incident)
    return Message("recovered", sentence(event, at), closes=incident)


def _of_learning(event: ev.Event, at: int) -> Message | None:
    if isinstance(event, ev.Refused):
        pool = f"{event.kind} {event.pool}"
        if event.why == "drop":
            return Message("auto_reduced", sentence(event, at), opens=f"drop {pool}", level=event.level)
        if event.why in ("exact", "again") and event.limit < event.cap:
            return Message("auto_reduced", sentence(event, at), opens=f"limit {pool}", level=event.cap)
    elif isinstance(event, ev.Accepted):
        return Message("recovered", sentence(event, at), closes=f"{event.kind} {event.pool}", level=event.level)
    elif isinstance(event, ev.RuleSet | ev.CapRemoved | ev.CapReset | ev.FileLoaded):
        return Message("", "", closes=ANY, level=FOR_GOOD)  # incidents under the new rules are reported again
    return None
