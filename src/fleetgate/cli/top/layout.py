"""Where everything stands: a snapshot and what a person has selected, as lines of a given width and height.

A low terminal shows first less history, then less detail, then only the pane that has the focus.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import localtime, strftime
from typing import Any

from fleetgate.cli.output.cells import cell_width
from fleetgate.cli.output.table import Cell, Column, Screen
from fleetgate.cli.top.panes import BACKOFFS, PANES, POOLS
from fleetgate.cli.top.selection import Ui
from fleetgate.cli.top.snapshot import GateView
from fleetgate.cli.top.terminal import Line
from fleetgate.cli.top.trend import BUCKET_MS, Trend, spark
from fleetgate.core.plans.runway import DRY, SAFE, TIGHT
from fleetgate.present.budgets.plan_windows import held_text, plan_text, style_of
from fleetgate.present.text import printable

_GUTTER = "  "
_KEYS = ("p:pause +/-:cap r:restore ", "c:cancel b:bump ", "s:stop ", "x:clear ")  # of each pane
_KEYS_OF_ALL = "Tab:pane /:filter ?:help q:quit"
_HELP = (
    ("q, Ctrl-C", "quit"),
    ("Tab, Shift-Tab, 1-4", "the next pane, the one before, this one"),
    ("up/k, down/j", "select; PageUp, PageDown, Home/g, End/G"),
    ("/", "filter by text; Enter keeps the filter, Esc removes it"),
    ("c", "QUEUE: cancel the ticket (asks first)"),
    ("s", "RUNNING: stop the agent or job: TERM, KILL 10s later (asks first)"),
    ("b", "QUEUE: move the ticket to the front"),
    ("p", "POOLS: pause the pool, or resume it"),
    ("+  -", "POOLS: raise or lower the limit in force by one; sets the cap"),
    ("r", "POOLS: restore the cap of a pool that rate limits reduced"),
    ("x", "BACKOFFS: clear the backoff"),
    ("", ""),
    ("█ ▓ ▒ ░", "slots: in use, foreign, cooling, free"),
)
_LEAST_OF_A_PANE = 3  # its name, the titles, one line
_LOW, _LOWER, _LOWEST = 28, 18, 10
_MOST_PLANS = 4
_MOST_SETS = 2
_RUNWAYS = (DRY, TIGHT, SAFE)


def frame(shot: GateView, trend: Trend, ui: Ui, width: int, height: int, trouble: str = "") -> list[Line]:
    """What to draw: `height` lines at most."""
    top = [_title(shot, ui, trouble)]
    if height >= _LOW:
        top += _history(trend, shot.moments.now, width)
    elif height >= _LOWER:
        top.append(_short_history(trend, shot.moments.now, width))
    top += _plans(shot, _MOST_PLANS if height >= _LOW else 1 if height >= _LOWER else 0)
    below = [_last_line(ui)] if height > 2 else []
    top += _sets(shot, _MOST_SETS if height >= _LOW else 1 if height >= _LOWER else 0)
    if ui.help:
        middle = _help_lines()
    else:
        most = 3 if height >= _LOW else 2 if height >= _LOWER else 1 if height >= _LOWEST else 0
        details = _details(shot, ui, width, most)
        below = [*details, *below]
        middle = _panes(shot, ui, width, height - len(top) - len(below))
    room = max(height - len(top) - len(below), 0)
    middle = middle[:room] + [[] for _ in range(room - len(middle))]
    return [*top, *middle, *below][:height]


def draw_once(screen: Screen, shot: GateView, trend: Trend) -> None:
    """Everything, from top to bottom, for `--once`."""
    width = screen.width or 100
    screen.line(*_title(shot, Ui(), ""))
    for line in _history(trend, shot.moments.now, min(width, 100)):
        screen.line(*line)
    for line in _plans(shot, len(shot.plans)):
        screen.line(*line)
    for text in shot.sets:
        screen.prose(printable(text))
    for number, pane in enumerate(PANES):
        items = pane.items(shot)
        if not items and number == BACKOFFS:
            continue
        screen.line()
        screen.line(Cell(f"{pane.name} {len(items)}", "bold"))
        if items:
            screen.table(pane.columns, [pane.row(item, shot, _bar(width)) for item in items])
        else:
            screen.line(pane.empty)
        if number == POOLS:
            _draw_advice(screen, shot)


def _draw_advice(screen: Screen, shot: GateView) -> None:
    if shot.idle:
        screen.prose(f"Also capped, and not used yet: {', '.join(shot.idle)}")
    for view in shot.pools:
        if view.restore is not None:
            screen.line(f"restore {printable(view.pool)}: {printable(view.restore)}")


# The parts.


def _title(shot: GateView, ui: Ui, trouble: str) -> Line:
    clock = strftime("%H:%M:%S", localtime((shot.moments.now + shot.moments.offset_ms) // 1000))
    line = [
        Cell("fleetgate", "bold"),
        Cell(f" {shot.host} {clock}  "),
        Cell(f"{len(shot.leases)} running", "green" if shot.leases else "dim"),
        Cell(", "),
        Cell(f"{shot.waiting} waiting", "yellow" if shot.waiting else "dim"),
    ]
    if shot.backoffs:
        line += [Cell(", "), Cell(f"{len(shot.backoffs)} backed off", "red")]
    if ui.filter and not ui.typing:
        line += [Cell("  "), Cell(f"filter: {ui.filter}", "reverse")]
    if trouble:
        line += [Cell("  "), Cell(trouble, "red")]
    return line


def _plans(shot: GateView, most: int) -> list[Line]:
    """The plan windows, those that run dry first."""
    ordered = sorted(shot.plans, key=lambda view: _RUNWAYS.index(view.level))
    return [
        [
            Cell(f"{printable(view.account)} ", "dim"),
            Cell(plan_text(view, shot.moments), style_of(view)),
            Cell(f"  {held}" if (held := held_text(view, shot.moments)) else ""),
        ]
        for view in ordered[:most]
    ]


def _sets(shot: GateView, most: int) -> list[Line]:
    """The account sets, with the conversations of each account."""
    return [[Cell(printable(text), "dim")] for text in shot.sets[:most]]


def _history(trend: Trend, now: int, width: int) -> list[Line]:
    room = max(width - 26, 8)
    lines = trend.lines(now, room)
    minutes = len(lines[0].values) * BUCKET_MS // 60_000
    drawn: list[Line] = []
    for line in lines:
        counted = f" {line.now} in {minutes}m" if line.title == "429s" else f" {line.now}, most {max(line.values)}"
        drawn.append([Cell(f"{line.title:9} ", "dim"), Cell(spark(line.values), _colour(line.title)), Cell(counted)])
    return drawn


def _short_history(trend: Trend, now: int, width: int) -> Line:
    drawn: Line = []
    for line in trend.lines(now, max((width - 42) // 3, 4)):
        drawn += [Cell(f"{line.title} ", "dim"), Cell(spark(line.values), _colour(line.title)), Cell(f" {line.now}  ")]
    return drawn


def _colour(title: str) -> str:
    return {"in flight": "green", "waiting": "yellow"}.get(title, "red")


def _panes(shot: GateView, ui: Ui, width: int, room: int) -> list[Line]:
    items = [ui.items(number, shot) for number in range(len(PANES))]
    shown = [number for number in range(len(PANES)) if items[number] or number in (ui.focus, 0, 1, 2)]
    if room < _LEAST_OF_A_PANE * len(shown):
        shown = [ui.focus]
    wants = [2 + len(items[number]) for number in shown]  # without any: its name, and that there is none
    given = _shares(room, wants, shown.index(ui.focus))
    lines: list[Line] = []
    for number, share in zip(shown, given, strict=True):
        lines += _pane(number, items[number], shot, ui, width, share)
    return lines


def _shares(room: int, wants: list[int], first: int) -> list[int]:
    """Lines for each pane: first the minimum, then one more in turn for panes that need it; the first gets more."""
    given = [min(want, _LEAST_OF_A_PANE) for want in wants]
    left = room - sum(given)
    order = [first, *range(len(wants))]
    while left > 0 and any(has < want for has, want in zip(given, wants, strict=True)):
        for index in order:
            if left > 0 and given[index] < wants[index]:
                given[index] += 1
                left -= 1
    return given


def _pane(number: int, items: Sequence[Any], shot: GateView, ui: Ui, width: int, share: int) -> list[Line]:
    pane = PANES[number]
    focused = number == ui.focus
    every = len(pane.items(shot))
    rows = max(share - 2, 1)
    if not items:
        text = pane.empty if not every else f"none of {every} has {ui.filter!r} in it (Esc ends the filter)"
        return [_heading(pane.name, "0", focused, width), [Cell(_GUTTER + text, "dim")]]
    place = ui.place(number, items)
    first = min(max(ui.first[number], place - rows + 1), place, max(len(items) - rows, 0))
    ui.first[number] = first
    if focused:
        ui.page = rows
    visible = items[first : first + rows]
    counted = str(len(items)) if len(items) == every else f"{len(items)} of {every}"
    if len(visible) < len(items):
        counted = f"{first + 1}–{first + len(visible)} of {counted}"
    lines = _table(pane.columns, [pane.row(item, shot, _bar(width)) for item in visible], width)
    drawn = [_heading(pane.name, counted, focused, width), [Cell(_GUTTER), *lines[0]]]
    for index, line in enumerate(lines[1:], first):
        chosen = focused and index == place
        drawn.append(_chosen(line, width) if chosen else [Cell(_GUTTER), *line])
    return drawn


def _table(columns: Sequence[Column], rows: list[list[str | Cell]], width: int) -> list[Line]:
    screen = Screen(max(width - len(_GUTTER), 20))
    screen.table(columns, rows)
    return screen.take()


def _heading(name: str, counted: str, focused: bool, width: int) -> Line:
    text = f"{name} {counted} "
    return [Cell(text, "bold cyan" if focused else "bold"), Cell("-" * (width - cell_width(text)), "dim")]


def _chosen(line: Line, width: int) -> Line:
    text = "> " + "".join(cell.text for cell in line).rstrip()
    return [Cell(text + " " * (width - cell_width(text)), "reverse")]


def _details(shot: GateView, ui: Ui, width: int, most: int) -> list[Line]:
    """What there is to say of the selected one; always as many lines, so that nothing jumps."""
    item = ui.selected(shot)
    if not most:
        return []
    screen = Screen(width)
    for text in PANES[ui.focus].detail(item, shot) if item is not None else []:
        if text:
            screen.prose(text, _GUTTER)
    lines = screen.take()[:most]
    return [*lines, *([] for _ in range(most - len(lines)))]


def _last_line(ui: Ui) -> Line:
    if ui.typing:
        return [Cell("/", "bold"), Cell(ui.filter), Cell(" ", "reverse"), Cell("  Enter keeps it, Esc ends it", "dim")]
    if ui.question is not None:
        return [Cell(ui.message, "bold yellow")]
    if ui.message:
        return [Cell(ui.message, "red" if ui.failed else "green")]
    return [Cell(_KEYS[ui.focus]), Cell(_KEYS_OF_ALL, "dim")]


def _help_lines() -> list[Line]:
    return [[], *([Cell(f"  {key:20}", "bold"), Cell(text)] for key, text in _HELP), [], [Cell("  any key goes back")]]


def _bar(width: int) -> int:
    return 8 if width < 90 else 12 if width < 140 else 20
