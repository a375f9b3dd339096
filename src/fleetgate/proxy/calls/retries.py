"""When a refused call is tried again, and the refusals of our own (rules X2, X3)."""

from __future__ import annotations

import random
from time import time_ns

from fleetgate.proxy.calls.exchange import Exchange
from fleetgate.proxy.calls.slots import left_s
from fleetgate.proxy.errors import ProxyRefusal
from fleetgate.proxy.http_client.connection import UpstreamResponse
from fleetgate.signals.classify_http import classify_response
from fleetgate.signals.outcome import Outcome, outcome

_SOON_OVER = frozenset(("rate_limited", "overloaded", "usage_window"))
_ANOTHER_MAY_DO = _SOON_OVER | {"quota"}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0  # before a call that is not in the queue is tried again
_FIRST_DOUBT_S, _LONGEST_DOUBT_S = 0.5, 10.0  # after a second rate limit; twice as long after each further one
_FIRST_TROUBLE_S, _LONGEST_TROUBLE_S = 0.2, 5.0  # the same while the store cannot be used


def classify(exchange: Exchange, response: UpstreamResponse, start: bytes) -> Outcome:
    """What a refusal of a provider means; `start` is the beginning of its body."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.raw_headers}
    name = exchange.model.partition("/")[2]
    now = time_ns() // 1_000_000
    return classify_response(exchange.upstream.provider, response.status, headers, start, now, name)


def is_tried_again(exchange: Exchange) -> bool:
    """Whether the agent is spared the refusal that its call has just met."""
    said = exchange.outcome
    if said is None or not exchange.candidates or not exchange.body.kept:
        return False
    if len(exchange.candidates) > 1 and not exchange.apart and said.kind in _ANOTHER_MAY_DO:
        return True
    if said.kind == "auth" and exchange.uses_set and exchange.key and exchange.attempts < len(exchange.candidates):
        return True  # the key of one account of a set, which the client did not bring
    time_s = left_s(exchange)
    return said.kind in _SOON_OVER and time_s > 0 and (said.wait_ms or 0) / 1000 < time_s


def pause_before_retry_s(exchange: Exchange) -> float:
    """How long to wait before the next attempt, where a provider says "too many, and try again at once" repeatedly."""
    said = exchange.outcome
    if said is None:
        return 0.0
    if exchange.apart:  # no pool is paused for it
        pause_s = max(_growing(_FIRST_PAUSE_S, exchange.attempts, _LONGEST_PAUSE_S), (said.wait_ms or 0) / 1000)
    elif said.kind == "rate_limited" and exchange.attempts > 1 and len(exchange.candidates) == 1:
        pause_s = _growing(_FIRST_DOUBT_S, exchange.attempts - 1, _LONGEST_DOUBT_S)
    else:
        return 0.0
    return min(pause_s, left_s(exchange))


def pause_for_store_s(exchange: Exchange, times: int) -> float:
    """How long to wait for the store, which failed this many times; 0: there is no time left."""
    return min(_growing(_FIRST_TROUBLE_S, times, _LONGEST_TROUBLE_S), left_s(exchange))


def _growing(first_s: float, times: int, most_s: float) -> float:
    """Twice as long each time; not the same for all calls."""
    return min(first_s * 2.0 ** min(times - 1, 20), most_s) * random.uniform(0.75, 1.25)


def describe_error(error: BaseException) -> str:
    """What went wrong with a connection."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def report_failure(exchange: Exchange, error: BaseException) -> ProxyRefusal:
    """The provider cannot be reached, or what it said is no answer."""
    slow = isinstance(error, TimeoutError)
    exchange.outcome = outcome("server_error", "proxy.no_answer", describe_error(error))
    exchange.error = exchange.outcome.evidence
    what = "did not answer in time" if slow else "could not be reached, or did not answer as a server does"
    return ProxyRefusal(
        504 if slow else 502, "upstream_failed", f"{exchange.upstream.provider} {what} ({exchange.error})"
    )
