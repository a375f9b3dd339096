"""The choice among several models: the first that is neither backed off nor paused (rules B4, O5)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from fleetgate.core.handlers.backoffs import pauses
from fleetgate.core.model_names import parse_model
from fleetgate.core.pools.backoff import concerns
from fleetgate.core.state.state import State
from fleetgate.present.json.state import ReasonShape
from fleetgate.present.log_time import LogTimes


class Hold(Struct):
    """What keeps a model from being used: a backoff, or a pause of a pool. From `look_at` on one may try again."""

    code: str  # backoff or paused
    what: str  # whose: a model, a family, an account or a pool
    why: str
    look_at: int
    until: int
    cause: str = ""


class UnusableShape(Struct):
    model: str
    reason: ReasonShape


def first_usable(state: State, models: tuple[str, ...], now: int) -> str | None:
    """The first that nothing holds back."""
    return next((model for model in models if not _held(state, model, now)), None)


def longest_hold(state: State, model: str, now: int) -> Hold:
    """What holds a model back the longest."""
    return max(_held(state, model, now), key=lambda hold: hold.look_at)


def unusable(state: State, model: str, missing: Mapping[str, str], moments: LogTimes) -> UnusableShape:
    """A choice (rule O5). `missing` lists the models without credentials, and what each lacks."""
    if model in missing:
        return UnusableShape(
            model, ReasonShape("no_credentials", missing[model], None, [], None, None, None, model, None)
        )
    hold = longest_hold(state, model, moments.now)
    text = f"{hold.what} is {'paused' if hold.code == 'paused' else 'backed off'}: {hold.why}"
    pool = hold.what if hold.code == "paused" else None
    until = moments.utc(hold.until)
    pools = [pool] if pool else []
    return UnusableShape(model, ReasonShape(hold.code, text, pool, pools, until, None, None, model, hold.cause or None))


def _held(state: State, model: str, now: int) -> list[Hold]:
    name = parse_model(model)
    held = [
        Hold("backoff", backoff.key, backoff.reason, backoff.probe_at, backoff.until, backoff.reason)
        for backoff in state.backoffs.values()
        if concerns(backoff.key, name) and not backoff.is_over(now)
    ]
    for pool in pauses(state, name, now):
        why = "rate_limited" if pool.pause_cause == "rate_limited" else "by hand"
        held.append(Hold("paused", pool.id, why, pool.paused_until, pool.paused_until))
    return held
