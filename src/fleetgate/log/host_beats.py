"""When each host was last heard of, by the store's own clock; and how long each has been silent.

The rule: silence counts only while the store answered. Every host beats; so a time in which nobody did is a time in
which nobody could, or in which nobody was there to judge. After such a gap all start anew (DESIGN.md, "Liveness").

Beats are kept beside the log, and nothing in it depends on them: that somebody was found silent for too long is told
to the engine as a command, as a process that is gone is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

BEAT_S = min(max(float(os.environ.get("FLEETGATE_TEST_BEAT_S") or 10), 0.05), 10)  # less only in tests
GAP_MS = int(BEAT_S * 2000)
KEEP_MS = 7 * 86_400_000
TABLE = "beats"  # beside the log
SINCE = ""  # the row of nobody: since when somebody or other beat without a gap


def rows_to_write(known: Mapping[str, int], site: str, now: int, gap_ms: int) -> dict[str, int]:
    """What a beat changes."""
    newest = max(known.values(), default=0)
    return {site: now} if now - newest <= gap_ms else {site: now, SINCE: now}


def rows_to_forget(known: Mapping[str, int], now: int) -> list[str]:
    """Hosts that were not heard of for so long that nobody will ask."""
    return [site for site, at in known.items() if site != SINCE and at < now - KEEP_MS]


def silences(known: Mapping[str, int], now: int, gap_ms: int) -> dict[str, int]:
    """For how long each host has been silent, in ms."""
    newest = max(known.values(), default=now)
    since = now if now - newest > gap_ms else known.get(SINCE, 0)
    return {site: max(now - max(at, since), 0) for site, at in known.items() if site != SINCE}


def read(value: bytes) -> int:
    """When a beat was, as it is kept."""
    return int(value) if value.isdigit() and len(value) < 20 else 0
