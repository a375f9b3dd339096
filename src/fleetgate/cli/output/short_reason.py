"""A wait reason in a few words, for a column of a table; the whole sentence is `Reason.text`."""

from __future__ import annotations

from fleetgate.core.entities import Reason
from fleetgate.present.log_time import LogTimes

_WORDS = {
    "behind": "others are ahead",
    "draining": "host is drained",
    "held": "needs approval",
    "nested": "slot of the outer run",
    "workers_busy": "all workers are busy",
    "no_worker": "no worker is running",
    "proving": "testing the limit",
    "recovering": "counting agents",
    "usage_gate": "provider's own count",
}


def short_reason(reason: Reason, moments: LogTimes) -> str:
    """The reason in a few words, with the pool and the time left where there is one."""
    left = moments.left(reason.until) if reason.until is not None else None
    if reason.code.endswith("concurrency_cap"):
        return f"full {reason.in_flight}/{reason.limit}: {reason.pool}"
    if reason.code == "paused":
        return f"paused {left}: {reason.pool}" if left else f"paused: {reason.pool}"
    if reason.code == "cooling":
        return f"cooling: {reason.pool}"
    if reason.code == "backoff":
        return f"backed off {left}: {reason.cause}" if left else f"backed off: {reason.cause}"
    if reason.code == "budget":
        return f"budget {left}: {reason.budget}" if left else f"budget: {reason.budget}"
    if reason.code == "plan_window":
        return f"plan {left}: {reason.window}" if left else f"plan: {reason.window}"
    if reason.code == "retry_pause":
        return f"retry in {left}" if left else "retry"
    return _WORDS.get(reason.code, reason.code.replace("_", " "))
