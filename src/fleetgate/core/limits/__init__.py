"""What a pool's limit follows (SPEC P3, P4). One policy per pool, named by `on_429`.

| name | a rate limit |
| --- | --- |
| `fixed` | changes nothing: whoever was refused tries again as it likes |
| `pause` | pauses the pool |
| `step` | pauses it and lowers the limit by one, until a person sets the cap again |
| `adapt` | pauses it briefly; the limit is found and followed by itself (limits/adapt.py) |

A policy knows admissions, acceptances, refusals, releases and usage answers, and is told the time (limits/protocol.py).
It never sees a ticket, a pool or a log: the engine asks for a verdict on a refusal and makes it an event, and
`State.apply` tells the policy what has happened, so that replaying the log gives the same policy state.
"""

from __future__ import annotations

from fleetgate.core.limits.adaptive import NEVER, Adapt
from fleetgate.core.limits.pause import Pause
from fleetgate.core.limits.policy import INCIDENT_PAUSE_MS, Policy, Verdict
from fleetgate.core.limits.simple import Fixed
from fleetgate.core.limits.step import Step

POLICIES = ("adapt", "step", "pause", "fixed")
_PLAIN: dict[str, Policy] = {"fixed": Fixed(), "pause": Pause(), "step": Step()}

__all__ = ["INCIDENT_PAUSE_MS", "NEVER", "POLICIES", "Adapt", "Policy", "Verdict", "plain"]


def plain(name: str) -> Policy:
    """The policy of this name, of those that learn nothing."""
    return _PLAIN[name]
