"""`headgate history`: everything that happened, one line each, as it was logged (SPEC O7).

Told from the log alone, so it works with a broken config file too. Following goes by commits rather than sequence
numbers: a commit's id shows when the log was replaced under us (a restored backup), and then it goes on with the new
one. Notes go to stderr; stdout has events and nothing else.
"""

from __future__ import annotations

import select
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from time import sleep
from typing import Any, get_args

import click
from msgspec import Struct

from headgate.cli import exits
from headgate.cli.drawing import Cell, Screen, count, span
from headgate.cli.listing import Json, Moments, json_text, note, opened, process_json, reason_json, whole_number
from headgate.cli.times import utc
from headgate.config.units import format_duration
from headgate.core import events as ev
from headgate.core.errors import BadRequest
from headgate.core.names import parse_model, shown
from headgate.core.records import Reason, Rule
from headgate.gate import processes
from headgate.gate.direct import DirectGate
from headgate.log.protocol import LogReplaced, Position, StoreError

POLL_MS = 300
_LINES = 50
_COMMAND = 60
_INDENT = " " * 34
_AT_ONCE = 500  # lines, written together

TYPES = {cls.__struct_config__.tag: cls for cls in get_args(ev.Event)}

Told = tuple[int, int, ev.Event]  # sequence number, log time, event


@click.command(short_help="What happened; -f follows.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens from now on, until Ctrl-C.")
@click.option("--since", metavar="SEQ", help="Only what came after this sequence number.")
@click.option("--type", "types", metavar="TYPE,…", multiple=True, help="Only events of these types.")
@click.option("-n", "--lines", metavar="N", help="At most the last N (default 50; all with --json or --since).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def command(follow: bool, since: str | None, types: tuple[str, ...], lines: str | None, as_json: bool) -> int:
    """Show what happened, the oldest first: requests, grants, ends of runs, rate limits, settings.

    \b
    headgate history -f
    headgate history --type paused,reduced
    headgate history --json --since 1200 | jq -r 'select(.type == "released") | .model'
    """
    since_seq = whole_number("--since", since)
    most = whole_number("-n", lines)
    if most is None and not as_json and since_seq is None:
        most = _LINES
    wanted = _wanted(types)
    with opened(configured=False) as gate:
        teller = _Teller(gate, wanted, as_json)
        try:
            reads_on = teller.tell(_past(gate, since_seq, most, wanted))
            if reads_on and not follow and not as_json and not teller.told:
                note(_nothing_there(since_seq, wanted, gate.state.seq))
            if reads_on and follow:
                _follow(gate, teller, since_seq or 0)
        except KeyboardInterrupt:
            return exits.INTERRUPTED
    return exits.OK


def _wanted(given: tuple[str, ...]) -> tuple[type, ...]:
    """The types to tell; () is all."""
    names = [name.strip() for part in given for name in part.split(",")]
    unknown = next((name for name in names if name not in TYPES), None)
    if unknown is not None:
        raise BadRequest(f"--type {shown(unknown)}: valid are {', '.join(TYPES)}")
    return tuple(TYPES[name] for name in names)


def _past(gate: DirectGate, since: int | None, most: int | None, wanted: tuple[type, ...]) -> Iterable[Told]:
    """What the log has up to where this process has read it."""
    last = gate.replica.catch_up().seq
    after = since or 0
    if after > last:
        note(f"the log ends at {last}, before --since {after}: was it restored from a backup?")
    if most is not None and not wanted:
        after = max(after, last - most)
    events: Iterable[Told] = takewhile(lambda told: told[0] <= last, gate.log.history(after))
    if since == after:
        events = _noting_a_gap(events, after)
    if most is None or not wanted:
        return events
    return deque((told for told in events if isinstance(told[2], wanted)), maxlen=most)


def _noting_a_gap(events: Iterable[Told], since: int) -> Iterator[Told]:
    """The same, and a note if what comes next after `since` is no longer kept."""
    first = True
    for told in events:
        if first and told[0] > since + 1:
            note(f"events {since + 1} to {told[0] - 1} are no longer kept")
        first = False
        yield told


def _nothing_there(since: int | None, wanted: tuple[type, ...], last: int) -> str:
    if not last:
        return "nothing has happened yet (to run something: headgate run -m MODEL -- COMMAND…)"
    what = "no such event" if wanted else "nothing"
    return f"{what} since {since}; the log ends at {last}" if since is not None else f"{what}; the log ends at {last}"


# Following.


def _follow(gate: DirectGate, teller: _Teller, since: int) -> None:
    """Tell what is committed from now on, until nobody listens."""
    log = gate.log
    position = gate.replica.position
    looked_at = gate.now()
    trouble = ""
    while not _reader_left():
        try:
            commits = log.read(position)  # one row when there is nothing new
            looked_at, trouble = log.now(), ""
        except LogReplaced:
            position = _replaced(gate, teller, looked_at)
            continue
        except StoreError as error:
            if str(error) != trouble:
                trouble = str(error)
                note(f"{trouble} (still trying)")
            continue
        for commit in commits:
            position = commit.position
            first = commit.seq - len(commit.events) + 1
            events = [(seq, commit.at, event) for seq, event in enumerate(commit.events, first) if seq > since]
            if not teller.tell(events):
                return


def _replaced(gate: DirectGate, teller: _Teller, looked_at: int) -> Position:
    """Go on with another log: from what was committed to it since we last looked."""
    state = gate.replica.catch_up()
    note(f"the log was replaced (a restored backup?): going on with the new one, which ends at {state.seq}")
    teller.tell(told for told in gate.log.history() if told[0] <= state.seq and told[1] > looked_at)
    return gate.replica.position


def _reader_left() -> bool:
    """Wait a moment; whether stdout was closed at its other end meanwhile."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError, AttributeError):  # no file behind it, or a system without poll
        sleep(POLL_MS / 1000)
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(POLL_MS))


# Telling.


class _Teller:
    """Writes events as lines."""

    def __init__(self, gate: DirectGate, wanted: tuple[type, ...], as_json: bool) -> None:
        self._gate = gate
        self._wanted = wanted
        self._as_json = as_json
        self.told = 0

    def tell(self, events: Iterable[Told]) -> bool:
        """Write those that are wanted; False when nobody reads any more."""
        moments = Moments(self._gate)
        screen = Screen()
        lines = 0
        for seq, at, event in events:
            if self._wanted and not isinstance(event, self._wanted):
                continue
            if self._as_json:
                screen.line(json_text(event_json(seq, at, event, moments)))
            else:
                screen.prose(sentence(event, at), _INDENT, _before(seq, at, event, moments))
            lines += 1
            if lines % _AT_ONCE == 0 and not screen.show():
                return False
        self.told += lines
        return screen.show() if lines else True


def _before(seq: int, at: int, event: ev.Event, moments: Moments) -> list[Cell]:
    """What stands before the sentence: when, which, and what it is."""
    name = str(event.__struct_config__.tag)
    return [
        Cell(moments.local(at), "dim"),
        Cell(f"  {seq:>5}  "),
        Cell(f"{name:<9}", _STYLES.get(type(event), "")),
        Cell("  "),
    ]


def event_json(seq: int, at: int, event: ev.Event, moments: Moments) -> Json:
    """SPEC O7. A finished run also has its provider and account."""
    document: Json = {"seq": seq, "at": moments.utc(at), "type": event.__struct_config__.tag}
    if isinstance(event, ev.Queued):
        document["id"] = event.ticket.id
    document |= _fields(event, moments)
    if isinstance(event, ev.Released | ev.Reclaimed):
        model = parse_model(event.model) if event.model else None
        document["provider"] = model.provider if model else None
        document["account"] = model.account if model else None
    return document


def _fields(record: Struct, moments: Moments) -> Json:
    """A record's fields with times and processes as programs are told them; what is empty is null."""
    fields: Json = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name == "wake":
            continue  # an address that means something to its process alone
        if name in ("until", "since", "queued_at", "expires_at", "ends_at", "stalled_at"):
            value = moments.utc(value)
        elif name == "modified":
            value = utc(value)  # of a file: wall time already
        elif name in ("holder", "child", "bound"):
            value = process_json(value)
        elif isinstance(value, Reason):
            value = reason_json(value, moments)
        elif isinstance(value, Struct):
            value = _fields(value, moments)
        elif isinstance(value, tuple):
            value = [_fields(each, moments) if isinstance(each, Struct) else each for each in value]
        fields[name] = None if value == "" else value
    return fields


def sentence(event: ev.Event, at: int) -> str:
    """What an event says, for people."""
    if isinstance(event, ev.Paused):
        return _paused(event, at)
    if isinstance(event, ev.BackedOff):
        return _backed_off(event, at)
    return _SENTENCES[type(event)](event)


def _queued(event: ev.Queued) -> str:
    models = ", ".join(event.ticket.spec.models) or "a seat"
    return f"{event.ticket.id} waits for {models}: {_brief(event.reason)}{_quoted(event.ticket.command)}"


def _deferred(event: ev.Deferred) -> str:
    return f"{event.id} was told no ({event.reason.code}): {_brief(event.reason)}{_quoted(event.command)}"


def _granted(event: ev.Granted) -> str:
    waited = f" after {span(event.waited_ms)} in line" if event.waited_ms else ""
    command = _quoted(event.ticket.command) if event.ticket is not None else ""
    return f"{event.id} got {event.model or 'a seat'}{waited}{command}"


def _claimed(event: ev.Claimed) -> str:
    return f"{event.id} runs as {_process(event.child)}" if event.child else f"{event.id} took its seat"


def _released(event: ev.Released) -> str:
    end = f"signal {event.signal}" if event.signal else f"exit {event.exit_code}" if event.exit_code is not None else ""
    what = ", ".join(part for part in (event.outcome, end, event.evidence) if part)
    return f"{event.id} ended: {what}; held {event.model or 'a seat'} for {span(event.held_ms)}"


def _reclaimed(event: ev.Reclaimed) -> str:
    causes = {"lost": "its process is gone", "forced": "by force", "overstayed": "it held longer than its pool allows"}
    by = f" ({event.by})" if event.by else ""
    what = causes.get(event.cause, event.cause)
    return f"{event.id} was taken back, {what}{by}; held {event.model or 'a seat'} for {span(event.held_ms)}"


def _cancelled(event: ev.Cancelled) -> str:
    by = f" by {event.by}" if event.by else ""
    return f"{event.id} left the line, cancelled{by}{_quoted(event.command)}"


def _expired(event: ev.Expired) -> str:
    return f"{event.id} left the line: expired after {span(event.after_ms)}{_quoted(event.command)}"


def _bumped(event: ev.Bumped) -> str:
    return f"{event.id} was moved to the front" if event.order < 0 else f"{event.id} has priority {event.priority} now"


def _reserved(event: ev.Reserved) -> str:
    pools = ", ".join(key.partition(" ")[2] for key in event.pools)
    return f"what frees up in {pools} is kept for {event.id}"


def _rule_set(event: ev.RuleSet) -> str:
    return f"set at run time: {_of(event.rule)} {', '.join(_said(event.rule)) or 'nothing'}"


def _said(rule: Rule) -> list[str]:
    """What a rule says, in words."""
    said = []
    if rule.cap is not None or rule.auto:
        said.append(f"cap {'auto' if rule.auto else rule.cap}")
    if rule.unlimited:
        said.append("no cap")
    if rule.cooldown_ms is not None:
        said.append(f"cooldown {format_duration(rule.cooldown_ms)}")
    if rule.on_429 is not None:
        said.append(f"on_429 {rule.on_429}")
    if rule.explore is not None:
        said.append(f"explore {'on' if rule.explore else 'off'}")
    if rule.max_hold_ms is not None:
        said.append(f"longest hold {format_duration(rule.max_hold_ms)}")
    if rule.name is not None:
        said.append(f"name {rule.name}")
    if rule.usage_gate is not None:
        said.append(f"usage gate {'on' if rule.usage_gate else 'off'}")
    return said


def _file_loaded(event: ev.FileLoaded) -> str:
    return f"{event.path} is in force now, with {count(len(event.rules), 'cap')}"


def _observed(event: ev.Observed) -> str:
    agents = ", ".join(f"{number} {model or 'without a model'}" for model, number in event.foreign)
    auto = "" if event.auto_cap is None else f"; room for {count(event.auto_cap, 'agent')}"
    return f"on {event.host}, started outside Headgate: {agents or 'none'}{auto}"


def _paused(event: ev.Paused, at: int) -> str:
    why = " after a rate limit" if event.cause == "rate_limited" else ""
    left = event.until - at
    how_long = f"for {span(left)}" if left < 10**11 else "until it is resumed"
    return f"{_of(event)} is paused {how_long}{why}"


def _reduced(event: ev.Reduced) -> str:
    return f"{_of(event)} is auto-reduced to {event.limit} (cap {event.cap}) after a rate limit"


def _refused(event: ev.Refused) -> str:
    limit = f"the limit is {event.limit} (cap {event.cap})"
    return f"{_of(event)} was refused at {event.level} at once, {REFUSALS[event.why]}: {limit}"


# What a refusal was taken to mean (core/limits/adapt.py).
REFUSALS = {
    "exact": "one more than was proven",
    "drop": "which had worked: the provider's limit has sunk",
    "probe": "tried above the limit",
    "lag": "since finished calls are counted for longer than we thought",
    "alone": "though nothing else was in flight: it is not about how many",
    "fit": "in the same incident",
}


def _usage_answered(event: ev.UsageAnswered) -> str:
    said = f"has no answer: {event.error}" if event.count is None else f"counts {event.count} in flight"
    return f"the provider of {_of(event)} {said}; the limit is {event.limit}"


def _bypassed(event: ev.Bypassed) -> str:
    return f"{_process(event.holder)} ran without asking (HEADGATE_BYPASS){_quoted(event.command)}"


def _of(event: Any) -> str:
    """The pool or selector that an event is about."""
    return f"{getattr(event, 'pool', '') or event.selector} ({event.kind})"


def _process(process: str) -> str:
    return f"process {processes.pid_of(process)} on {processes.host_of(process)}"


def _backed_off(event: ev.BackedOff, at: int) -> str:
    seen = f": {event.evidence}" if event.evidence else ""
    return f"{event.key} is backed off for {span(event.until - at)}, {event.reason}{seen}"


def _backoff_ended(event: ev.BackoffEnded) -> str:
    why = {"credential": "the credential has changed", "account": "the credential names another account"}
    return f"{event.key} may be used again ({why.get(event.why, event.why)})"


def _brief(reason: Reason) -> str:
    """A reason without the advice behind it, which is for who waits now."""
    return reason.text.partition("; ")[0]


def _quoted(command: str) -> str:
    if not command:
        return ""
    return f" [{command if len(command) <= _COMMAND else command[: _COMMAND - 1] + '…'}]"


_SENTENCES: dict[type, Callable[[Any], str]] = {
    ev.Queued: _queued,
    ev.Deferred: _deferred,
    ev.Granted: _granted,
    ev.Claimed: _claimed,
    ev.Returned: lambda event: f"{event.id} did not take its seat: passed over until its process speaks",
    ev.Asked: lambda event: f"{event.id} stands in line again",
    ev.Released: _released,
    ev.Reclaimed: _reclaimed,
    ev.Cancelled: _cancelled,
    ev.Expired: _expired,
    ev.Dropped: lambda event: f"{event.id} left the line: its process is gone",
    ev.Bumped: _bumped,
    ev.Reserved: _reserved,
    ev.RuleSet: _rule_set,
    ev.CapRemoved: lambda event: f"{_of(event)} has no cap any more",
    ev.CapReset: lambda event: f"{_of(event)} is as the file says again",
    ev.SelectorSeen: lambda event: f"{_of(event)} is counted from now on: somebody's environment caps it",
    ev.FileLoaded: _file_loaded,
    ev.Observed: _observed,
    ev.Resumed: lambda event: f"{_of(event)} is open again",
    ev.Reduced: _reduced,
    ev.Accepted: lambda event: f"{_of(event)} took {event.level} at once: {event.id} was accepted",
    ev.Refused: _refused,
    ev.UsageAsked: lambda event: f"{_process(event.by)} asks the provider of {_of(event)} what is in flight",
    ev.UsageAnswered: _usage_answered,
    ev.BackoffEnded: _backoff_ended,
    ev.Chosen: lambda event: f"{event.model} was chosen for {event.role}",
    ev.Bypassed: _bypassed,
}

_STYLES: dict[type, str] = {
    ev.Deferred: "yellow",
    ev.Queued: "yellow",
    ev.Granted: "green",
    ev.Reclaimed: "red",
    ev.Expired: "red",
    ev.Dropped: "red",
    ev.Returned: "red",
    ev.Paused: "red",
    ev.Reduced: "red",
    ev.Refused: "red",
    ev.BackedOff: "red",
    ev.BackoffEnded: "green",
    ev.Bypassed: "magenta",
}
