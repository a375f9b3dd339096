"""What would have been different: the figures of the log beside those of two replays, and what is not known."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from fleetgate.core.state.state import State
from fleetgate.simulate.history.figures import Figures
from fleetgate.simulate.history.log_reader import LogReader, Row
from fleetgate.simulate.history.replay import CapChange, Replay

_ARRIVALS = (
    "Requests arrive as they did. Only the calls of an agent that Fleetgate started, and the jobs of a worker, follow "
    "when it gets to them. A script that waits for its own agent would also have asked earlier or later."
)


class PoolComparison(Struct):
    """One pool: as measured, replayed with nothing changed, and replayed with the changes (None: there are none)."""

    pool: str
    kind: str
    measured: Figures
    unchanged: Figures
    what_if: Figures | None


class Comparison(Struct):
    """Times are log times."""

    start: int
    end: int
    events: int
    pools: list[PoolComparison]
    notes: list[str]


def compare(
    rows: Iterable[Row], start: int, end: int, final: State, changes: list[CapChange], pools: set[str]
) -> Comparison:
    """Replay what is in the log from `start` to `end`.

    `pools`: keys of those to show. Empty: those that the changes are about, or all that were used.
    """
    reader = LogReader(rows, start, end, final)
    trace = reader.trace
    measured = reader.measure.figures(end)
    control = Replay(trace, [])
    unchanged = control.run().figures(end)
    changed = Replay(trace, changes) if changes else None
    what_if = changed.run().figures(end) if changed is not None else {}
    none = Figures()
    shown = pools or None
    if changed is not None and not pools:
        shown = {
            pool.key
            for pool in [*reader.state.pools.values(), *changed.engine.state.pools.values()]
            if (pool.kind, pool.cap.selector.text) in changed.changes
        }
    keys = [key for key in {**measured, **what_if} if shown is None or key in shown]
    found = []
    for key in keys:
        kind, _, name = key.partition(" ")
        now = what_if.get(key, none) if changed is not None else None
        each = PoolComparison(name, kind, measured.get(key, none), unchanged.get(key, none), now)
        if each.measured.requests or each.unchanged.requests or (now is not None and now.requests):
            found.append(each)
    found.sort(key=lambda each: -each.measured.requests)
    notes = _notes(reader, changed or control)
    if changed is not None:
        notes += [note for each in found for note in _limit_notes(each, changed)]
    return Comparison(trace.start, end, trace.events, found, notes)


def _notes(reader: LogReader, replay: Replay) -> list[str]:
    """What is not known, and what was assumed instead."""
    trace = reader.trace
    notes = [_ARRIVALS]
    if trace.begins_late:
        notes.append("Older events are no longer kept: what was in use at the beginning is known only in part.")
    if trace.caps_guessed:
        notes.append("Caps were changed since: before the first change they are taken to be those of today.")
    if replay.guessed:
        notes.append(
            f"{replay.guessed} requests never started then and start here: each is taken to last as long as the median "
            "of its model."
        )
    if trace.still_running:
        notes.append(f"{trace.still_running} were still running at the end: here they run to the end, too.")
    if trace.refused_outright:
        notes.append(f"{trace.refused_outright} requests that did not wait were refused; they are not tried here.")
    if trace.unclaimed:
        notes.append(f"{trace.unclaimed} grants were not claimed in time; here every grant is.")
    return notes


def _limit_notes(each: PoolComparison, replay: Replay) -> list[str]:
    """Of the provider's limit nothing is known but what was accepted and refused."""
    pool = replay.engine.state.named(each.kind, each.pool)
    if pool is None or pool.cap.selector.scope != "model":
        return []  # our own cap: no provider refuses anything because of it
    was = each.measured
    highest = max(was.highest_accepted, each.unchanged.highest_accepted)
    above = sum(level > highest for level in replay.measure.levels(f"{each.kind} {each.pool}"))
    notes = []
    if was.rate_limits:
        calls = "1 call" if was.rate_limits == 1 else f"{was.rate_limits} calls"
        spared = replay.spared[f"{each.kind} {each.pool}"]
        fewer = (
            f" {spared} {'starts' if spared == 1 else 'start'} with fewer, and {'is' if spared == 1 else 'are'} not."
        )
        again = "Such a call is refused here, too, unless fewer slots are in use than then."
        notes.append(f"{each.pool}: the provider refused {calls}. {again}{fewer if spared else ''}")
    if above:
        refused = f" (it refused one at {was.lowest_refused})" if was.lowest_refused is not None else ""
        more = f"{above} requests start with more than {highest} in use, more than was ever accepted{refused}"
        notes.append(f"{each.pool}: {more}. Whether the provider would have taken them is not known.")
    return notes
