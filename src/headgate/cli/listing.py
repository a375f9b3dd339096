"""What the commands that only look share: the gate opened to be read, times, and the shapes of SPEC O1-O4.

Looking takes no lock and waits for nobody. What any request would bring into the books first (a config file that is
news, changed credentials, foreign agents, processes that are gone, deadlines that have passed) is brought in if the
lock is free at once, and else left for later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from time import localtime, strftime

import msgspec

from headgate.cli.drawing import can_show, printable, say, span
from headgate.cli.opening import open_gate
from headgate.cli.times import utc
from headgate.config.load import Loaded
from headgate.core import commands as cmd
from headgate.core.errors import BadRequest
from headgate.core.names import shown
from headgate.core.records import Reason
from headgate.core.state import State
from headgate.core.views import Capacity, LeaseView, PoolView, TicketView, UpstreamView
from headgate.gate import processes
from headgate.gate.direct import DirectGate, load_file
from headgate.gate.surroundings import lost
from headgate.log.protocol import StoreError

FAR_MS = 10**11  # three years from now: a pause until somebody ends it

_OVERDUE_MS = 500  # a deadline that nobody has acted on for so long is acted on by whoever looks

Json = dict[str, object]


@contextmanager
def opened(*, configured: bool = True) -> Iterator[DirectGate]:
    """The gate, to look at. What does not need the config file does not stumble over it."""
    with closing(open_gate(configured=configured)) as gate:
        yield gate


@contextmanager
def opened_with(loaded: Loaded | None) -> Iterator[DirectGate]:
    """The same with a config file that was already read, or found to be bad (None)."""
    with closing(open_gate(loaded, configured=False)) as gate:
        yield gate


def current(gate: DirectGate, *, reap: bool = False, tell: Callable[[str], None] | None = None) -> State:
    """The state as the next request would find it; with `reap`, without what the dead hold.

    `tell` hears what could not be brought in; without it, it is noted on stderr.
    """
    tell = tell or note
    state = gate.replica.catch_up()
    news: list[cmd.Command] = []
    loaded = gate.loaded
    if loaded is not None and loaded.digest != state.file_digest and loaded.mtime_ms > state.file_modified:
        news.append(load_file(loaded))
    news += gate.credentials.news(state)
    gone = lost(state) if reap else None
    if gone is not None:
        news.append(gone)
    seen = gate.surroundings.observe(gate.replica.catch_up, gate.host)
    if seen is not None and (seen.room is not None or seen.foreign != state.foreign.get(gate.host, ())):
        news.append(seen)
    due = gate.replica.due
    if not news and (due is None or gate.now() - due < _OVERDUE_MS):
        return state
    try:
        taken_in = gate.replica.try_decide(news)
    except StoreError as error:
        tell(f"shown as it was last known: {error}")
    else:
        if taken_in is None and loaded is not None and news and isinstance(news[0], cmd.LoadFile):
            tell(f"the store's lock is taken: {loaded.path} is newer than what is shown, and not in force yet")
    return gate.replica.catch_up()


class Moments:
    """Times of the log as people and programs are told them.

    What is added to make wall time of them is rounded to a second, so that the same event has the same time twice.
    """

    def __init__(self, gate: DirectGate) -> None:
        self.now = gate.now()
        self.offset_ms = (gate.wall_offset_ms() + 500) // 1000 * 1000

    def utc(self, at: int | None) -> str | None:
        """RFC 3339; None for none, and for a time without end."""
        return utc(at + self.offset_ms) if at else None

    def local(self, at: int) -> str:
        """Month, day and time where the reader is."""
        return strftime("%m-%d %H:%M:%S", localtime((at + self.offset_ms) // 1000))

    def ago(self, at: int) -> str:
        return f"{span(self.now - at)} ago"

    def left(self, until: int) -> str | None:
        """How long until then; None when it has no end."""
        return None if until - self.now > FAR_MS else span(until - self.now)


# Output for programs.


def say_json(document: object) -> bool:
    """One line of JSON; False when nobody reads any more."""
    return say(json_text(document) + "\n")


def json_text(document: object) -> str:
    """JSON in one line, escaped where the locale has not all of its characters."""
    text = msgspec.json.encode(document).decode()
    if text.isascii() or can_show(text):
        return text
    import json

    return json.dumps(msgspec.json.decode(text), separators=(",", ":"))


def pool_json(view: PoolView, moments: Moments) -> Json:
    """SPEC O1. A pause without an end has no `paused_until`: hence `paused`."""
    return {
        "pool": view.pool,
        "kind": view.kind,
        "selector": view.selector,
        "account": view.account or None,
        "host": view.host or None,
        "cap": view.cap,
        "limit": view.limit,
        "in_flight": view.in_flight,
        "cooling": view.cooling,
        "foreign": view.foreign,
        "queued": view.queued,
        "paused": view.paused_until is not None,
        "paused_until": moments.utc(view.paused_until),
        "pause_cause": view.pause_cause or None,
        "cooldown_ms": view.cooldown_ms,
        "on_429": view.on_429,
        "auto": view.auto,
        "auto_reduced": view.auto_reduced,
        "auto_reduced_from": view.auto_reduced_from,
        "notice": view.notice,
        "upstream": None if view.upstream is None else _upstream_json(view.upstream, moments),
        "source": view.source or None,
        "name": view.name or None,
        "reserved": view.reserved,
    }


def _upstream_json(upstream: UpstreamView, moments: Moments) -> Json:
    """What the provider itself said, and when."""
    return {
        "in_flight": upstream.count,
        "at": moments.utc(upstream.at),
        "error": upstream.error or None,
        "asking": process_json(upstream.asking) if upstream.asking else None,
    }


def ticket_json(view: TicketView, moments: Moments) -> Json:
    """SPEC O2."""
    ticket = view.ticket
    return {
        "id": ticket.id,
        "position": view.position,
        "models": list(ticket.spec.models),
        "kind": ticket.spec.kind,
        "seats": ticket.spec.seats,
        "priority": ticket.priority,
        "flow": ticket.spec.project,
        "since": moments.utc(ticket.since),
        "queued_at": moments.utc(ticket.queued_at),
        "expires_at": moments.utc(ticket.expires_at),
        "reason": reason_json(view.reason, moments),
        "estimate_s": seconds(view.estimate_ms),
        "holder": process_json(ticket.holder),
        "command": ticket.command or None,
        "any": ticket.spec.any,
        "key": ticket.key or None,
        "role": ticket.role or None,
        "gone": processes.is_gone(ticket.holder),
    }


def lease_json(view: LeaseView, moments: Moments) -> Json:
    """SPEC O3."""
    lease = view.lease
    ticket = lease.ticket
    return {
        "id": lease.id,
        "model": lease.model or None,
        "kind": ticket.spec.kind,
        "seats": ticket.spec.seats,
        "pools": view.pools,
        "holder": process_json(ticket.holder),
        "child_pid": processes.pid_of(lease.child),
        "command": ticket.command or None,
        "granted_at": moments.utc(lease.granted_at),
        "age_s": view.age_ms / 1000,
        "flow": ticket.spec.project,
        "claimed": lease.claimed,
        "lives_with": process_json(lease.lives_with),
        "gone": processes.is_gone(lease.lives_with),
        "ends_at": moments.utc(lease.ends_at),
        "waited_s": lease.waited_ms / 1000,
        "key": ticket.key or None,
        "role": ticket.role or None,
    }


def capacity_json(found: Capacity, moments: Moments) -> Json:
    """SPEC O4. `free` is null where nothing is capped."""
    return {
        "level": found.level,
        "free": found.free,
        "queued": found.queued,
        "wait_s": seconds(found.wait_ms),
        "reason": None if found.reason is None else reason_json(found.reason, moments),
    }


def reason_json(reason: Reason, moments: Moments) -> Json:
    return {
        "code": reason.code,
        "text": reason.text,
        "pool": reason.pool or None,
        "pools": reason.pools,
        "until": moments.utc(reason.until),
        "in_flight": reason.in_flight,
        "limit": reason.limit,
        "model": reason.model or None,
        "cause": reason.cause or None,
    }


def process_json(process: str) -> Json | None:
    if not process:
        return None
    return {"host": processes.host_of(process), "pid": processes.pid_of(process)}


def seconds(range_ms: tuple[int, int] | None) -> list[float] | None:
    return None if range_ms is None else [ms / 1000 for ms in range_ms]


# Output for people.


def note(text: str) -> None:
    """Something beside the answer, on stderr."""
    sys.stdout.flush()
    encoding = sys.stderr.encoding or "ascii"
    sys.stderr.write(f"headgate: {printable(text)}\n".encode(encoding, "replace").decode(encoding))
    sys.stderr.flush()


def models_shown(models: tuple[str, ...]) -> str:
    return ", ".join(models) or "-"


def pid_shown(process: str) -> str:
    return str(processes.pid_of(process) or "?")


def whole_number(option: str, text: str | None) -> int | None:
    """The value of an option, checked; None when it was not given."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise BadRequest(f"{option} {shown(text)}: valid is a whole number, 0 or more")
    return int(text)
