"""What a rate limit does to a pool's limit (SPEC P3, P4).

`step`: each incident lowers the limit by one, never below one, until a person sets the cap again.
`pause`: the limit stays.
"""

from __future__ import annotations

from headgate.core.pools import Pool
from headgate.core.rules import UNLIMITED

INCIDENT_PAUSE_MS = 30_000  # without a hint from the provider


def reduced_limit(pool: Pool) -> int | None:
    """The limit after one more incident; None when it stays as it is."""
    if pool.cap.on_429 != "step" or not 1 < pool.limit < UNLIMITED:
        return None
    return pool.limit - 1
