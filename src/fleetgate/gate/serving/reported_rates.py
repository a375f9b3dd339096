"""Rates of a provider, and limits that are used up, as the headers of a good response report them (rules V6, X6)."""

from __future__ import annotations

from collections.abc import Iterable
from time import time_ns

from fleetgate.core.usage import Reading
from fleetgate.gate.serving.model_calls import ModelCalls
from fleetgate.signals.agents.plan_windows import windows_in_headers
from fleetgate.signals.limit_subject import Subject, of_hint
from fleetgate.signals.provider_vocabulary import dialect_of
from fleetgate.signals.rate_limit_headers import HOUR_MS, lowered, pools_hint, readings_of


def report_rates(
    calls: ModelCalls,
    lease: str,
    model: str,
    raw_headers: Iterable[tuple[bytes, bytes]],
    *,
    follows: bool,
) -> tuple[Reading, ...]:
    """Report what a response says about the rates of its model; return what is to go with the release.

    `follows`: the rates of this provider are not ignored.
    """
    raw = list(raw_headers)
    reported, used_up = _look(raw)
    follows = reported and follows
    if not used_up and not (follows and calls.wants_rates(model)):
        return ()
    provider, _, name = model.partition("/")
    provider = provider.partition("@")[0]
    headers = lowered({key.decode("latin-1"): value.decode("latin-1") for key, value in raw})
    now = time_ns() // 1_000_000
    readings = readings_of(dialect_of(provider), headers, now) if follows else ()
    left = calls.observe_rates(lease, model, readings) if readings else ()
    rates = [each.unit for each in readings if each.per_ms <= HOUR_MS]
    windows = windows_in_headers(headers, now, name)
    if windows:
        calls.observe_plan(model, windows)
    for hint in pools_hint(headers, now, rates):
        subject = of_hint(provider, hint, name) or Subject("")
        calls.used_up(lease, hint.wait_ms, subject.scope, subject.family)
    return left


def _look(raw_headers: Iterable[tuple[bytes, bytes]]) -> tuple[bool, bool]:
    """Whether the headers of a response report rates, and whether they say that nothing is left of something."""
    reported = used_up = False
    for name, value in raw_headers:
        small = name.lower()
        if b"ratelimit" in small:
            reported = True
            used_up |= (b"remaining" in small and value in (b"0", b"0.0")) or b"unified-status" in small
        elif b"x-codex-" in small:
            used_up = True
    return reported, used_up
