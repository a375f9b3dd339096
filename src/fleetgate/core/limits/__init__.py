"""The policies that decide a pool's limit (rules P3, P4). Each pool has one, named by `on_429`.

| name | a rate limit |
| --- | --- |
| `fixed` | changes nothing: the refused caller tries again when it likes |
| `pause` | pauses the pool |
| `step` | pauses it and lowers the limit by one, until a person sets the cap again |
| `adapt` | pauses it briefly; the limit is found and followed automatically (limits/adaptive.py) |

A policy knows admissions, acceptances, refusals, releases and usage answers, and gets the time as an argument
(limits/policy.py). It never sees a ticket, a pool or a log. The engine asks it for a verdict on a refusal and turns
that into an event; `State.apply` passes every event on to the policy, so replaying the log gives the same policy state.
"""

from __future__ import annotations

from fleetgate.core.limits.adaptive import AdaptiveLimit
from fleetgate.core.limits.adaptive_tuning import NEVER
from fleetgate.core.limits.policy import INCIDENT_PAUSE_MS, LOWERING, REFUSED, Policy, Verdict
from fleetgate.core.limits.simple import SIMPLE_POLICIES

POLICIES = ("adapt", "step", "pause", "fixed")

__all__ = [
    "INCIDENT_PAUSE_MS",
    "LOWERING",
    "NEVER",
    "POLICIES",
    "REFUSED",
    "SIMPLE_POLICIES",
    "AdaptiveLimit",
    "Policy",
    "Verdict",
]
