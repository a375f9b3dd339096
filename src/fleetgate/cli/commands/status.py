"""`fleetgate status`: the usage of every pool, and what is blocking."""

from __future__ import annotations

import click

from fleetgate.cli.commands.backoff import clear_hint, draw_backoffs
from fleetgate.cli.output.table import Cell, Column, Screen
from fleetgate.cli.read_only_gate import current, note, opened, say_json
from fleetgate.core.model_names import Selector
from fleetgate.core.plans.reading import FULL
from fleetgate.core.state.state import State
from fleetgate.core.views.plan_views import PlanView, plan_views
from fleetgate.core.views.pool_and_lease_views import PoolView, UpstreamView, pool_views
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.slots.slot_gate import unapplied_text
from fleetgate.present.account_set_text import all_sets
from fleetgate.present.budgets.plan_windows import held_text, percent, runway_text, style_of
from fleetgate.present.json.listings import status
from fleetgate.present.log_time import LogTimes
from fleetgate.present.text import count

_COLUMNS = (
    Column("POOL", least=16, name=True),
    Column("KIND"),
    Column("IN USE"),
    Column("WAITING", right=True),
    Column("NOTES", least=12),
)

_PLAN_COLUMNS = (
    Column("PLAN", least=9, name=True),
    Column("WINDOW"),
    Column("USED"),
    Column("RESETS"),
    Column("BURN", right=True, spare=True),
    Column("RUNWAY", least=12),
)


@click.command(short_help="Pool usage, and what is blocking.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Show every capped pool: slots in use, limit, waiting requests, pauses and lowered limits.

    \b
    fleetgate status
    fleetgate status --json | jq '.pools[] | select(.queued > 0)'
    """
    with opened() as gate:
        state = current(gate)
        moments = LogTimes(gate)
        if as_json:
            say_json(status(state, moments, gate.host))
        else:
            _draw(state, pool_views(state, moments.now, gate.host), moments)
        if (missing := gate.caps_not_in_force()) and gate.loaded is not None:
            note(unapplied_text(gate.loaded.path, missing))


def _draw(state: State, views: list[PoolView], moments: LogTimes) -> None:
    screen = Screen()
    screen.line(Cell(_summary(state), "bold"))
    screen.line()
    if views:
        screen.table(_COLUMNS, [_row(screen, view, moments) for view in views])
    else:
        screen.line("no caps are set, so every agent starts at once. To set one: fleetgate cap set host 3")
    idle = idle_caps(state, views)
    if idle:
        screen.line()
        screen.prose(f"Also capped, not used yet: {', '.join(idle)}")
    for text in all_sets(state):
        screen.line()
        screen.prose(text)
    draw_plans(screen, plan_views(state, moments.now), moments)
    if state.backoffs:
        screen.line()
        backoffs = [backoff for _, backoff in sorted(state.backoffs.items())]
        draw_backoffs(screen, backoffs, moments)
        screen.line(f"({clear_hint(backoffs)})")
    for host in sorted(state.draining):
        screen.line()
        screen.prose(f"{host} is drained: no new agents start there. To end that: fleetgate drain {host} --end")
    for view in views:
        _print_advice(screen, view)
    screen.show()


def draw_plans(screen: Screen, views: list[PlanView], moments: LogTimes) -> None:
    """The windows of subscriptions, with their runway (rule W3)."""
    if not views:
        return
    screen.line()
    rows: list[list[str | Cell]] = []
    for view in views:
        bar = screen.bar(min(view.used, FULL), FULL)
        used = f"{bar:8} {percent(view.used)}" if bar else percent(view.used)
        notes = [note for note in (runway_text(view, moments), held_text(view, moments)) if note]
        resets = "-" if view.resets_at is None else f"in {moments.left(view.resets_at)}"
        burn = "-" if view.burn is None else f"{percent(view.burn)}/h"
        rows.append(
            [Cell(view.account, "bold"), view.window, Cell(used, style_of(view)), resets, burn, "; ".join(notes)]
        )
    screen.table(_PLAN_COLUMNS, rows)


def _summary(state: State) -> str:
    running, waiting = len(state.leases), len(state.tickets)
    gone = sum(process_identity.is_gone(lease.lives_with) is True for lease in state.leases.values())
    text = f"{running} running" if running else "nothing is running"
    if gone:
        text += f" ({gone} gone: see fleetgate ps)"
    return f"{text}, {waiting} waiting: see fleetgate queue" if waiting else f"{text}, nothing waiting"


def _row(screen: Screen, view: PoolView, moments: LogTimes) -> list[str | Cell]:
    taken = view.in_flight + view.foreign
    limit = view.limit or 0
    full = taken + view.cooling >= limit
    style = "yellow" if full else "green" if taken else ""
    bar = screen.bar(taken, limit)
    in_use = f"{bar:8} {taken}/{limit}" if bar else f"{taken}/{limit}"
    paused = view.paused_until is not None
    return [
        Cell(view.pool, "bold"),
        view.kind,
        Cell(in_use, "red" if paused else style),
        Cell(str(view.queued) if view.queued else "-", "yellow" if view.queued else "dim"),
        Cell("; ".join(pool_notes(view, moments)), "red" if paused else ""),
    ]


def pool_notes(view: PoolView, moments: LogTimes) -> list[str]:
    """Remarks about a pool, the most important first."""
    notes = []
    if view.paused_until is not None:
        left = moments.left(view.paused_until)
        why = " after a rate limit" if view.pause_cause == "rate_limited" else ""
        notes.append(f"paused{why}, resumes in {left}" if left else f"paused{why} until it is resumed")
    if view.auto_reduced:
        notes.append(f"auto-reduced from {view.auto_reduced_from}")
    if view.upstream is not None:
        notes.append(_upstream(view.upstream, moments))
    if view.foreign:
        notes.append(f"{view.foreign} foreign")
    if view.cooling:
        notes.append(f"{view.cooling} cooling")
    if view.kept:
        notes.append(f"{view.kept} kept for interactive work{', lendable' if view.lendable else ''}")
    if view.reserved:
        notes.append("reserved for a request that waited long")
    if view.auto:
        notes.append("follows free memory")
    if view.source == "built-in":
        notes.append("built-in cap")
    return notes


def _upstream(upstream: UpstreamView, moments: LogTimes) -> str:
    """The provider's own count, and its age."""
    if upstream.at is None:
        return "the provider is being asked" if upstream.asking else "the provider is asked when requests are waiting"
    said = f"unknown ({upstream.error})" if upstream.count is None else f"{upstream.count} in flight"
    return f"the provider reports {said}, {moments.ago(upstream.at)}"


def idle_caps(state: State, views: list[PoolView]) -> list[str]:
    """Configured caps without a pool yet: a pool is created for each account or project."""
    shown = {(view.kind, view.selector) for view in views}
    return [
        f"{cap.selector.text} ({count(cap.cap, cap.kind[:-1])}{_each(cap.selector)})"
        for key, cap in sorted(state.rules.caps.items())
        if cap.cap is not None and cap.source != "built-in" and key not in shown
    ]


def _each(selector: Selector) -> str:
    """What a cap is for each of; nothing where it names the one."""
    if selector.names_one:
        return ""
    return " per account" if selector.scope == "model" else f" per {selector.scope}"


def _print_advice(screen: Screen, view: PoolView) -> None:
    """What a person can do about a pool."""
    if view.auto_reduced and view.on_429 == "adapt":
        screen.line()
        screen.prose(f"{view.pool} was {view.notice}")
    elif view.restore is not None:
        screen.line()
        screen.prose(
            f"{view.pool} was auto-reduced to {view.limit} after a rate limit "
            f"(cap {view.auto_reduced_from}). To restore it:"
        )
        screen.line(f"  {view.restore}")
    if view.paused_until is not None and view.pause_cause != "rate_limited":
        screen.line()
        screen.line(f"{view.pool} was paused manually. Resume it:")
        screen.line(f"  fleetgate resume '{view.pool}' --kind {view.kind}")
