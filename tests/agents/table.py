"""The results of the suite as a table: shown at its end, and written into docs/agents.md if asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from headgate.signals.outcome import shorten

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
_BEGIN, _END = "<!-- results -->\n", "<!-- end of results -->\n"
_HEAD = (
    "| agent | the provider answers | what was read | outcome | backs off | exit |\n"
    "| --- | --- | --- | --- | --- | --- |\n"
)


class Row(NamedTuple):
    agent: str
    version: str
    answer: str
    evidence: str
    outcome: str
    backs_off: str
    exit_code: int


ROWS: list[Row] = []


def as_table(rows: list[Row]) -> str:
    lines = []
    for row in sorted(rows, key=lambda row: row.agent):
        read = re.sub(r"127\.0\.0\.1:[0-9]+", "127.0.0.1:PORT", row.evidence)
        evidence = f"`{shorten(read, 110)}`".replace("|", "\\|") if read else ""
        agent, key = f"{row.agent} {row.version}", f"`{row.backs_off}`" if row.backs_off else ""
        lines.append(f"| {agent} | {row.answer} | {evidence} | `{row.outcome}` | {key} | {row.exit_code} |\n")
    return _HEAD + "".join(lines)


def write(rows: list[Row]) -> None:
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(_BEGIN)
    after = rest.partition(_END)[2]
    PAGE.write_text(f"{before}{_BEGIN}\n{as_table(rows)}\n{_END}{after}", "utf-8")
