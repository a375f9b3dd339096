"""Utilisation, limit and 429s over time, as a small SVG: one panel for each run."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from fleetgate.simulate.provider import MINUTE, SimulatedProvider
from fleetgate.simulate.result import SimulationResult
from fleetgate.simulate.scenario import Scenario

WIDTH, PANEL, LEFT, TOP, GAP = 720, 132, 46, 30, 34
BUCKETS = 180
_STYLE = (
    "text{font:11px sans-serif;fill:#444}.t{font-weight:bold;fill:#222}.busy{fill:#9cc5e8}.room{stroke:#888;"
    "stroke-dasharray:4 3;fill:none}.limit{stroke:#1f5fa8;stroke-width:1.6;fill:none}.no{stroke:#c62828;"
    "stroke-width:1.4}.axis{stroke:#bbb}@media(prefers-color-scheme:dark){text{fill:#bbb}.t{fill:#eee}.busy{fill:#2f5f87}"
    ".limit{stroke:#7db8ee}.no{stroke:#ff7961}.room{stroke:#999}}"
)


_LEGEND = "area: slots in use; line: limit; dashed: what the provider allows; red: rate limits"


def svg(panels: list[tuple[Scenario, SimulationResult]]) -> str:
    """A picture with a panel for each run."""
    height = TOP + len(panels) * (PANEL + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<style>{_STYLE}</style>",
        f'<text x="{LEFT}" y="14">{_LEGEND}</text>',
    ]
    for number, (scenario, result) in enumerate(panels):
        parts.append(f'<g transform="translate({LEFT},{TOP + number * (PANEL + GAP)})">{_panel(scenario, result)}</g>')
    return "".join([*parts, "</svg>\n"])


def _panel(scenario: Scenario, result: SimulationResult) -> str:
    wide = WIDTH - LEFT - 10
    end = max(result.horizon_ms, 1)
    upstream = SimulatedProvider(scenario.provider, end)
    rooms = upstream.changes if upstream.has_limit else [(0, scenario.cap)]
    shown = [min(limit, 4 * scenario.cap) for _, limit in result.limits]
    most = max([room for _, room in rooms] + shown + [1]) * 1.15

    def x(at: int) -> str:
        return f"{min(at / end, 1) * wide:.1f}"

    def y(slots: float) -> str:
        return f"{PANEL - 16 - slots / most * (PANEL - 16):.1f}"

    busy = _busy(result.calls, end)
    area = " ".join(f"L{x(end * (index + 1) // BUCKETS)} {y(slots)}" for index, slots in enumerate(busy))
    limits = [(at, min(limit, 4 * scenario.cap)) for at, limit in result.limits]
    no = "".join(f'<path class="no" d="M{x(at)} {y(0)}v-14"/>' for at in _thinned(result.refused_at, end))
    marks = "".join(
        f'<text x="{x(at)}" y="{PANEL - 2}" text-anchor="{"end" if at == end else "middle"}">{at // MINUTE} min</text>'
        for at in [end * part // 6 for part in range(7)]
    )
    limits_hit = "1 rate limit" if result.refusals == 1 else f"{result.refusals:,} rate limits"
    title = f"{result.scenario}, {result.policy}: {result.utilisation:.1f} % used, {limits_hit}"
    return (
        f'<text class="t" x="0" y="-4">{escape(title)}</text>'
        f'<path class="busy" d="M0 {y(0)} {area} L{x(end)} {y(0)}Z"/>'
        f'<path class="room" d="{_steps(rooms, end, x, y)}"/>'
        f'<path class="limit" d="{_steps(limits, end, x, y)}"/>{no}'
        f'<path class="axis" d="M0 {y(0)}H{wide}"/>'
        f'<text x="-6" y="{y(rooms[0][1])}" text-anchor="end">{rooms[0][1]}</text>{marks}'
    )


def _busy(calls: list[tuple[int, int]], end: int) -> list[float]:
    """Mean slots in use in each bucket."""
    sums = [0] * (BUCKETS + 1)
    for began, ended in calls:
        first, last = began * BUCKETS // end, min(ended, end) * BUCKETS // end
        for bucket in range(first, min(last, BUCKETS - 1) + 1):
            low, high = bucket * end // BUCKETS, (bucket + 1) * end // BUCKETS
            sums[bucket] += max(min(ended, high) - max(began, low), 0)
    return [total * BUCKETS / end for total in sums[:BUCKETS]]


def _steps(changes: list[tuple[int, int]], end: int, x: Callable[[int], str], y: Callable[[float], str]) -> str:
    if not changes:
        return "M0 0"
    parts = [f"M{x(changes[0][0])} {y(changes[0][1])}"]
    for at, value in changes[1:]:
        parts.append(f"H{x(at)}V{y(value)}")
    return "".join([*parts, f"H{x(end)}"])


def _thinned(moments: list[int], end: int) -> list[int]:
    """One mark for each pixel."""
    return sorted({at * WIDTH // end: at for at in moments}.values())
