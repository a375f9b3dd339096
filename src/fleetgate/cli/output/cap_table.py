"""The table of caps that `fleetgate cap ls` and `fleetgate config show` print."""

from __future__ import annotations

from fleetgate.cli.output.table import Column
from fleetgate.config.units import format_duration
from fleetgate.core.model_names import parse_selector
from fleetgate.core.pools.effective_caps import DEFAULT_REFUSALS
from fleetgate.present.cap_listing import CapRow, cap_text, hidden_text

COLUMNS = (
    Column("KIND"),
    Column("SELECTOR", least=12),
    Column("CAP", right=True),
    Column("RESERVE", right=True),
    Column("COOLDOWN"),
    Column("ON 429"),
    Column("MAX HOLD"),
    Column("NAME", spare=True),
    Column("USAGE GATE", spare=True),
    Column("SOURCE"),
    Column("HIDES", least=8),
)


def rows(found: list[CapRow]) -> list[list[str]]:
    """The list for people."""
    return [_row(line) for line in found]


def _row(line: CapRow) -> list[str]:
    return [
        line.kind,
        line.selector,
        cap_text(line.cap, line.auto, line.unlimited),
        "" if line.reserve is None else f"{line.reserve}{', lendable' if line.lendable else ''}",
        format_duration(line.cooldown_ms),
        _on_429(line),
        format_duration(line.max_hold_ms) if line.max_hold_ms else "",
        line.name or "",
        "yes" if line.usage_gate else "",
        line.variable or line.source,
        "; ".join(hidden_text(each) for each in line.hidden),
    ]


def _on_429(line: CapRow) -> str:
    """What a rate limit does; a price of refusals is shown where it is not the usual one."""
    if parse_selector(line.selector).scope != "model":
        return ""
    return line.on_429 if line.refusals in (None, DEFAULT_REFUSALS) else f"{line.on_429}, refusals {line.refusals}"
