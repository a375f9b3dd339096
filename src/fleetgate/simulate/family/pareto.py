"""The trade of each policy over random scenarios, as an SVG: refusals for each change against utilisation.

A policy is better if it is further to the left (fewer refusals) and higher (more of the oracle's utilisation). Those
that no other policy beats in both are joined by a line. The axis of refusals is logarithmic and begins with 0.
"""

from __future__ import annotations

from html import escape
from math import ceil, log10
from typing import Final, NamedTuple

from fleetgate.simulate.family.report import ClassScore

WIDTH, PANEL, LEFT, TOP, GAP = 720, 300, 46, 48, 70
PANELS: Final = {
    "all": "all scenarios",
    "slow": "at least 10 minutes between changes",
    "fast": "less than 10 minutes between changes",
}
_LEAST: Final = 0.1  # refusals for each change: fewer are drawn as 0
_LABEL: Final = 13  # pixels from one label to the next
_STYLE = (
    "text{font:11px sans-serif;fill:#444}.t{font-weight:bold;fill:#222}.front{stroke:#1f5fa8;stroke-width:1.6;"
    "fill:none}.p{fill:#888}.best{fill:#1f5fa8}.far{stroke:#888;stroke-width:.7}.axis{stroke:#bbb;fill:none}"
    ".grid{stroke:#bbb;stroke-opacity:.35;fill:none}@media(prefers-color-scheme:dark){text{fill:#bbb}.t{fill:#eee}"
    ".front{stroke:#7db8ee}.best{fill:#7db8ee}.p{fill:#999}.axis{stroke:#666}}"
)
_LEGEND = "up: more of the oracle's utilisation; left: fewer refusals; line: no other policy is better in both"


class _Point(NamedTuple):
    score: ClassScore
    x: float
    y: float
    best: bool  # no other policy is better in both


def svg(classes: list[ClassScore]) -> str:
    """A picture with a panel for all scenarios, one for slow and one for fast changes, where there are any."""
    shown = {name: scores for name in PANELS if (scores := [each for each in classes if each.name == name])}
    height = TOP + len(shown) * (PANEL + GAP) - GAP + 36
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<style>{_STYLE}</style>",
        f'<text x="{LEFT}" y="14">{_LEGEND}</text>',
    ]
    for number, (name, scores) in enumerate(shown.items()):
        top = TOP + number * (PANEL + GAP)
        parts.append(f'<g transform="translate({LEFT},{top})">{_panel(PANELS[name], scores)}</g>')
    return "".join([*parts, "</svg>\n"])


def front(scores: list[ClassScore]) -> list[ClassScore]:
    """Those that no other one beats in both: from the fewest refusals to the highest utilisation."""
    found: list[ClassScore] = []
    for score in sorted(scores, key=lambda each: (each.refusals_per_change, -each.of_oracle)):
        if not found or score.of_oracle > found[-1].of_oracle:
            found.append(score)
    return found


def _panel(title: str, scores: list[ClassScore]) -> str:
    wide = WIDTH - LEFT - 150  # labels are to the right of their points
    most = max(ceil(log10(max(max(each.refusals_per_change for each in scores), 1))), 0)
    low = min(int(min(each.of_oracle for each in scores) / 10) * 10, 90)
    decades = [10.0**power for power in range(-1, most + 1)]

    def x(refusals: float) -> float:
        return 0 if refusals < _LEAST else wide * (log10(refusals / _LEAST) + 1) / len(decades)

    def y(part: float) -> float:
        return PANEL * (1 - (part - low) / (102 - low))

    line = front(scores)
    points = [_Point(each, x(each.refusals_per_change), y(each.of_oracle), each in line) for each in scores]
    grid = "".join(
        f'<path class="grid" d="M{x(each):.1f} 0V{PANEL}"/>'
        f'<text x="{x(each):.1f}" y="{PANEL + 15}" text-anchor="middle">{each:g}</text>'
        for each in [0.0, *decades]
    )
    rows = "".join(
        f'<path class="grid" d="M0 {y(part):.1f}H{wide}"/>'
        f'<text x="-6" y="{y(part) + 4:.1f}" text-anchor="end">{part}</text>'
        for part in range(low, 101, 10)
    )
    joined = "L".join(f"{x(each.refusals_per_change):.1f} {y(each.of_oracle):.1f}" for each in line)
    return (
        f'<text class="t" x="0" y="-10">{escape(title)} ({scores[0].scenarios})</text>{grid}{rows}'
        f'<path class="axis" d="M0 0V{PANEL}H{wide}"/><path class="front" d="M{joined}"/>'
        f"{''.join(map(_dot, points))}{_labels(points)}"
        f'<text x="{wide}" y="{PANEL + 30}" text-anchor="end">429s for each change of the limit</text>'
        f'<text x="-6" y="-10" text-anchor="end">%</text>'
    )


def _dot(point: _Point) -> str:
    said = f"{point.score.policy}: {point.score.of_oracle:.1f} %, worst {point.score.worst:.0f} %, "
    said += f"{point.score.refusals_per_change:.2f} 429s for each change"
    kind = "best" if point.best else "p"
    return f'<circle class="{kind}" cx="{point.x:.1f}" cy="{point.y:.1f}" r="4"><title>{escape(said)}</title></circle>'


def _labels(points: list[_Point]) -> str:
    """The names, each to the right of its point, and moved down where it would cover another one."""
    taken: list[tuple[float, float]] = []
    parts = []
    for point in sorted(points, key=lambda each: (each.y, each.x)):
        text = f"{point.score.policy} {point.score.of_oracle:.1f}"
        at = point.y
        while any(abs(at - other) < _LABEL and abs(point.x - left) < 6.2 * len(text) + 14 for left, other in taken):
            at += 1
        taken.append((point.x, at))
        if at - point.y > 4:
            parts.append(f'<path class="far" d="M{point.x + 3:.1f} {point.y:.1f}L{point.x + 7:.1f} {at:.1f}"/>')
        style = ' class="t"' if point.best else ""
        parts.append(f'<text{style} x="{point.x + 8:.1f}" y="{at + 4:.1f}">{escape(text)}</text>')
    return "".join(parts)
