"""The order of the queue within a project (rule A4).

One static key: K = since - 12 s x priority, smallest first, ties by arrival. The oldest prompt goes first, and each
point of priority is worth 12 s of waiting. Ageing is built in: nothing is ever sorted again, and a ticket that goes
back to the queue keeps its key. With `seniority`, a `since` counts at most that much before the queueing; then nothing
queued later than seniority + 12 s x (difference in priority) after a ticket can overtake it.
"""

from __future__ import annotations

from typing import Final

PRIORITY_MS: Final = 12_000
MAX_PRIORITY: Final = 100


def order_key(since: int, priority: int, queued_at: int, seniority_ms: int | None) -> int:
    """K. Positive for every real time, so negative orders are free for tickets that were moved to the front."""
    if seniority_ms is not None and since < queued_at - seniority_ms:
        since = queued_at - seniority_ms
    key = since - PRIORITY_MS * priority
    return key if key > 0 else 0
