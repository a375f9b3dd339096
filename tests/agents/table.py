"""The results of the suite as a table: shown at its end, and written into docs/agents.md if asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from fleetgate.signals.outcome import shorten

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
_BEGIN, _END = "<!-- results -->\n", "<!-- end of results -->\n"
_HEAD = (
    "| agent | the provider answers | what was read | outcome | backs off | exit |\n"
    "| --- | --- | --- | --- | --- | --- |\n"
)


_COMPARISON_BEGIN, _COMPARISON_END = "<!-- comparison -->\n", "<!-- end of comparison -->\n"
_COMPARISON_HEAD = "| agent | how | finished | time | refused calls | calls |\n| --- | --- | --- | --- | --- | --- |\n"


class Row(NamedTuple):
    agent: str
    version: str
    answer: str
    evidence: str
    outcome: str
    backs_off: str
    exit_code: int


class Compared(NamedTuple):
    """Runs at once against a hidden limit, in one of three ways."""

    agent: str
    version: str
    way: str
    finished: int
    runs: int
    took_s: float
    refused: int
    calls: int


ROWS: list[Row] = []
COMPARED: list[Compared] = []


def as_table(rows: list[Row]) -> str:
    lines = []
    for row in sorted(rows, key=lambda row: row.agent):
        read = re.sub(r"127\.0\.0\.1:[0-9]+", "127.0.0.1:PORT", row.evidence)
        evidence = f"`{shorten(read, 110)}`".replace("|", "\\|") if read else ""
        agent, key = f"{row.agent} {row.version}", f"`{row.backs_off}`" if row.backs_off else ""
        lines.append(f"| {agent} | {row.answer} | {evidence} | `{row.outcome}` | {key} | {row.exit_code} |\n")
    return _HEAD + "".join(lines)


def as_comparison(compared: list[Compared]) -> str:
    lines = [
        f"| {one.agent} {one.version} | {one.way} | {one.finished} of {one.runs} | {one.took_s:.0f} s | {one.refused} "
        f"| {one.calls} |\n"
        for one in compared
    ]
    return _COMPARISON_HEAD + "".join(lines)


def write() -> None:
    """Those parts of the page that this run has results for."""
    if ROWS:
        _put(_BEGIN, _END, as_table(ROWS))
    if COMPARED:
        _put(_COMPARISON_BEGIN, _COMPARISON_END, as_comparison(COMPARED))


def _put(begin: str, end: str, table: str) -> None:
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    PAGE.write_text(f"{before}{begin}\n{table}\n{end}{after}", "utf-8")
