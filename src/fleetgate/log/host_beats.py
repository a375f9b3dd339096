"""When the store last heard from each host, by the store's own clock, and how long each host has been silent.

The rule: silence counts only while the store answered. Every host beats; so in a time without any beat the store was
away, or no host was there to judge another. After such a gap the silence of all hosts counts from zero.

Beats are kept beside the log, and nothing in the log depends on them. That a host was silent for too long reaches the
engine as a command, like a process that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping

BEAT_S = 10.0
GAP_MS = int(BEAT_S * 2000)
KEEP_MS = 7 * 86_400_000
TABLE = "beats"  # beside the log
SINCE = ""  # the row that is no host's: since when there was a beat at least every GAP_MS


def rows_to_write(known: Mapping[str, int], site: str, now: int, gap_ms: int) -> dict[str, int]:
    """The rows that a beat changes."""
    newest = max(known.values(), default=0)
    return {site: now} if now - newest <= gap_ms else {site: now, SINCE: now}


def rows_to_forget(known: Mapping[str, int], now: int) -> list[str]:
    """Hosts that were silent for longer than KEEP_MS."""
    return [site for site, at in known.items() if site != SINCE and at < now - KEEP_MS]


def silences(known: Mapping[str, int], now: int, gap_ms: int) -> dict[str, int]:
    """How long each host has been silent, in ms."""
    newest = max(known.values(), default=now)
    since = now if now - newest > gap_ms else known.get(SINCE, 0)
    return {site: max(now - max(at, since), 0) for site, at in known.items() if site != SINCE}


def read(value: bytes) -> int:
    """The time of a beat, from its stored form."""
    return int(value) if value.isdigit() and len(value) < 20 else 0
