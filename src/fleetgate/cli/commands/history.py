"""`fleetgate history`: the events of the log, one line each.

It reads only the log, so it works with a broken config file, too. Following uses commits rather than sequence numbers:
a commit's id shows that the log was replaced (a restored backup), and it continues with the new one. Notes go to
stderr; stdout has events only.
"""

from __future__ import annotations

import select
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import takewhile
from time import sleep

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.output.table import Cell, Screen
from fleetgate.cli.read_only_gate import json_text, note, opened, whole_number
from fleetgate.core import events as ev
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.gate.outage_log import Trouble
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log.protocol import LogReplaced, Position, StoreError
from fleetgate.present.event_text import sentence
from fleetgate.present.json.events import TYPES, event_json
from fleetgate.present.log_time import LogTimes
from fleetgate.present.run_statistics import seq_before
from fleetgate.present.wall_time import parse_moment_ms

POLL_MS = 300
_ONLY_ON_REQUEST = (
    ev.UsageAsked,
    ev.UsageAnswered,
)  # every second while requests are waiting: they would hide the rest
_LINES = 50
_COMMAND = 60
_TYPE_WIDTH = max(map(len, TYPES))
_INDENT = " " * (25 + _TYPE_WIDTH)
_AT_ONCE = 500  # lines, written together

Row = tuple[int, int, ev.Event]  # sequence number, log time, event


@click.command(short_help="Show what happened; -f follows.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new events until Ctrl-C.")
@click.option(
    "--since",
    metavar="TIME|SEQ",
    help="Only events since then: 10m, 2h, today, yesterday, 2026-01-31; or after this sequence number.",
)
@click.option("--type", "types", metavar="TYPE,…", multiple=True, help="Only events of these types.")
@click.option("-n", "--lines", metavar="N", help="The last N events (default 50; all with --json or --since).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def command(follow: bool, since: str | None, types: tuple[str, ...], lines: str | None, as_json: bool) -> int:
    """Show events, the oldest first: requests, grants, results, rate limits, settings.

    \b
    fleetgate history -f
    fleetgate history --since 10m
    fleetgate history --since yesterday --type paused,reduced
    fleetgate history --json --since 1200 | jq -r 'select(.type == "released") | .model'
    """
    most = whole_number("-n", lines)
    if most is None and not as_json and since is None:
        most = _LINES
    wanted = _wanted(types)
    if not wanted and not as_json:
        wanted = tuple(kind for kind in TYPES.values() if kind not in _ONLY_ON_REQUEST)
    with opened(configured=False) as gate:
        since_seq = _since_seq(gate, since)
        printer = _EventPrinter(gate, wanted, as_json)
        try:
            reads_on = printer.print(_past(gate, since_seq, most, wanted))
            if reads_on and not follow and not as_json and not printer.printed:
                note(_nothing_there(since, bool(types), gate.state.seq))
            if reads_on and follow:
                _follow(gate, printer, since_seq or 0)
        except KeyboardInterrupt:
            return exit_codes.INTERRUPTED
    return exit_codes.OK


def _since_seq(gate: DirectGate, since: str | None) -> int | None:
    """The sequence number after which to begin. A bare number is one; anything else is a time."""
    if since is None or _is_number(since):
        return whole_number("--since", since)
    moments = LogTimes(gate)
    began = parse_moment_ms(since, "--since", moments.now + moments.offset_ms) - moments.offset_ms
    return seq_before(gate.log, began, gate.replica.catch_up().seq)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _wanted(given: tuple[str, ...]) -> tuple[type, ...]:
    """The types to print; () means all."""
    names = [name.strip() for part in given for name in part.split(",")]
    unknown = next((name for name in names if name not in TYPES), None)
    if unknown is not None:
        raise BadRequest(f"--type {shown(unknown)}: valid are {', '.join(TYPES)}")
    return tuple(TYPES[name] for name in names)


def _past(gate: DirectGate, since: int | None, most: int | None, wanted: tuple[type, ...]) -> Iterable[Row]:
    """The events in the log up to the position of this process."""
    last = gate.replica.catch_up().seq
    after = since or 0
    if after > last:
        note(f"the log ends at {last}, before --since {after}: was it restored from a backup?")
    if most is not None and not wanted:
        after = max(after, last - most)
    if most is not None and wanted and since is None:
        return _last(gate, last, most, wanted)
    events: Iterable[Row] = takewhile(lambda row: row[0] <= last, gate.log.history(after))
    if since == after:
        events = _noting_a_gap(events, after)
    if most is None or not wanted:
        return events
    return deque((row for row in events if isinstance(row[2], wanted)), maxlen=most)


def _last(gate: DirectGate, last: int, most: int, wanted: tuple[type, ...]) -> list[Row]:
    """The last `most` events of these types, reading only as much of the log as needed."""
    reach = most
    while True:
        events = takewhile(lambda row: row[0] <= last, gate.log.history(max(last - reach, 0)))
        found = [row for row in events if isinstance(row[2], wanted)]
        if len(found) >= most or reach >= last:
            return found[max(len(found) - most, 0) :]
        reach *= 8


def _noting_a_gap(events: Iterable[Row], since: int) -> Iterator[Row]:
    """The same events, with a note if those right after `since` are no longer kept."""
    first = True
    for row in events:
        if first and row[0] > since + 1:
            note(f"events {since + 1} to {row[0] - 1} are no longer kept")
        first = False
        yield row


def _nothing_there(since: str | None, wanted: bool, last: int) -> str:
    if not last:
        return "no events yet (to run something: fleetgate run -m MODEL -- COMMAND…)"
    what = "no such events" if wanted else "no events"
    return f"{what} since {since}; the log ends at {last}" if since is not None else f"{what}; the log ends at {last}"


# Following.


def _follow(gate: DirectGate, printer: _EventPrinter, since: int) -> None:
    """Print new commits until the reader leaves."""
    log = gate.log
    position = gate.replica.position
    looked_at = gate.now()
    trouble = Trouble(note)
    while not _reader_left():
        try:
            commits = log.read(position)  # one row when there is nothing new
            looked_at = log.now()
            trouble.worked()
        except LogReplaced:
            position = _replaced(gate, printer, looked_at)
            continue
        except StoreError as error:
            trouble.failed(error)
            continue
        for commit in commits:
            position = commit.position
            first = commit.seq - len(commit.events) + 1
            events = [(seq, commit.at, event) for seq, event in enumerate(commit.events, first) if seq > since]
            if not printer.print(events):
                return


def _replaced(gate: DirectGate, printer: _EventPrinter, looked_at: int) -> Position:
    """Continue with another log, from what was committed to it since the last look."""
    state = gate.replica.catch_up()
    note(f"the log was replaced (a restored backup?): continuing with the new one, which ends at {state.seq}")
    printer.print(row for row in gate.log.history() if row[0] <= state.seq and row[1] > looked_at)
    return gate.replica.position


def _reader_left() -> bool:
    """Wait a moment; whether the reader of stdout has left."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError, AttributeError):  # no file behind it, or a system without poll
        sleep(POLL_MS / 1000)
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(POLL_MS))


# Printing.


class _EventPrinter:
    """Writes events as lines."""

    def __init__(self, gate: DirectGate, wanted: tuple[type, ...], as_json: bool) -> None:
        self._gate = gate
        self._wanted = wanted
        self._as_json = as_json
        self.printed = 0

    def print(self, events: Iterable[Row]) -> bool:
        """Print the wanted events; False when the reader has left."""
        moments = LogTimes(self._gate)
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
        self.printed += lines
        return screen.show() if lines else True


def _before(seq: int, at: int, event: ev.Event, moments: LogTimes) -> list[Cell]:
    """The beginning of a line: time, number and type."""
    name = str(event.__struct_config__.tag)
    return [
        Cell(moments.local(at), "dim"),
        Cell(f"  {seq:>5}  "),
        Cell(f"{name:<{_TYPE_WIDTH}}", _STYLES.get(type(event), "")),
        Cell("  "),
    ]


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
    ev.BudgetReached: "yellow",
    ev.BackedOff: "red",
    ev.BackoffEnded: "green",
    ev.Held: "yellow",
    ev.Bypassed: "magenta",
}
