"""Which of several models to use now, by what is backed off (SPEC B4, O5)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from headgate.core.backoffs import Backoff, concerns
from headgate.core.names import parse_model
from headgate.core.state import State
from headgate.present.moments import Moments
from headgate.present.shapes import ReasonShape


class UnusableShape(Struct):
    model: str
    reason: ReasonShape


def first_usable(state: State, models: tuple[str, ...], now: int) -> str | None:
    """The first that is not backed off."""
    return next((model for model in models if all(each.is_over(now) for each in _held(state, model))), None)


def longest_backoff(state: State, model: str) -> Backoff:
    """What holds a model back the longest."""
    return max(_held(state, model), key=lambda backoff: backoff.probe_at)


def unusable(state: State, model: str, missing: Mapping[str, str], moments: Moments) -> UnusableShape:
    """SPEC O5. `missing` says which models have no credentials, and what is not there."""
    if model in missing:
        return UnusableShape(
            model, ReasonShape("no_credentials", missing[model], None, [], None, None, None, model, None)
        )
    backoff = longest_backoff(state, model)
    text = f"{backoff.key} is backed off: {backoff.reason}"
    until = moments.utc(backoff.until)
    return UnusableShape(model, ReasonShape("backoff", text, None, [], until, None, None, model, backoff.reason))


def _held(state: State, model: str) -> list[Backoff]:
    name = parse_model(model)
    return [backoff for backoff in state.backoffs.values() if concerns(backoff.key, name)]
