"""What was refused is held back, with a cap or without, and remembered; the next candidate is used at once.

Each table runs on one service, with a model for each outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import monotonic
from typing import Any

import pytest

from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.script import Fault
from tests.proxy.proxied import CHAT, Proxied

# The outcome, and the refusal that means it. None of them names a time that a request could wait for.
REFUSALS: dict[str, dict[str, Any]] = {
    "overloaded": {"status": 529},
    "rate": {"status": 429, "body": {"error": {"message": "Rate limited", "code": "rate_limit_exceeded"}}},
    "quota": {"status": 429, "body": {"error": {"message": "no credit", "code": "insufficient_quota"}}},
    "window": {
        "status": 429,
        "body": {"error": {"message": "used up", "type": "usage_limit_reached", "resets_in_seconds": 7200}},
    },
}
CAPS = {
    "no cap": "",
    "account": "fake = 4\nother = 4",
    "model": '"fake/*-*" = 4\n"other/*" = 4',
    "fixed": 'fake = { cap = 4, on_429 = "fixed" }',
}
FIRST_BACKOFF_S = 1.0  # of a call that was refused without a hint; see core/pools/backoff.py
HOLD = "1500ms"
MOST = 5  # calls within two HOLDs, one after the other: at 0, 1 and 3 s; the pause of a pool begins with half a second


def _refuse(provider: FakeProvider, name: str) -> None:
    for outcome, refusal in REFUSALS.items():
        provider.script(Fault(**refusal, model=f"{name}-{outcome}", times=1000))


def _calls(*providers: FakeProvider) -> Counter[str]:
    return Counter(seen.json()["model"] for provider in providers for seen in provider.seen)


def _body(name: str, outcome: str) -> dict[str, Any]:
    return {**CHAT, "model": f"{name}-{outcome}"}


@pytest.fixture
def two(proxied: Callable[..., Proxied]) -> Any:
    """Makes a service with two providers, `fake` and `other`; `m-` falls back to `n-`, and `p-` to `q-`."""
    with ExitStack() as stack:
        one, other = (stack.enter_context(FakeProvider()) for _ in range(2))

        def make(caps: str, to: str) -> tuple[Proxied, FakeProvider, FakeProvider]:
            pairs = [(first, second, outcome) for first, second in ("mn", "pq") for outcome in REFUSALS] if to else []
            fallbacks = [f'"fake/{first}-{outcome}" = ["{to}/{second}-{outcome}"]' for first, second, outcome in pairs]
            provider = f'[providers.other]\nbase_url = "{other.url}/v1"\nkey_env = "OTHER_KEY"'
            more = "\n".join((provider, "[fallback]", *fallbacks))
            return proxied(one, requests=caps, more=more, OTHER_KEY="key-of-the-other"), one, other

        yield make


@pytest.mark.parametrize("caps", CAPS.values(), ids=CAPS)
@pytest.mark.parametrize("to", ["", "fake", "other"], ids=["no fallback", "one provider", "two providers"])
def test_a_refusal_holds_back_who_refused_and_the_next_candidate_is_used_at_once(two: Any, caps: str, to: str) -> None:
    gate, one, other = two(caps, to)
    for name in "mpq":
        _refuse(one, name)
    _refuse(other, "q")
    for outcome in REFUSALS if to else ():
        if to == "fake" and outcome in ("quota", "window"):
            continue  # the other model is of the same account, which has nothing left
        began = monotonic()
        answers, ended = [], []
        for _ in range(3):
            answers.append(gate.chat(body=_body("m", outcome), x_api_key=f"key-{outcome}"))
            ended.append(monotonic() - began)
        assert [answer.status for answer in answers] == [200] * 3, (outcome, answers[0].body)
        attempts = [answer.headers["x-fleetgate-attempts"] for answer in answers]
        # On a slow machine the backoff may be over before the last request: then the model is tried once more.
        in_time = sum(end < FIRST_BACKOFF_S for end in ended[1:])
        assert attempts[: 1 + in_time] == ["2", *["1"] * in_time], (outcome, ended)
        assert all(f"n-{outcome}" in answer.headers["x-fleetgate-model"] for answer in answers)
        assert _calls(one, other)[f"m-{outcome}"] == attempts.count("2"), (outcome, attempts)

    def ask_twice(outcome: str) -> set[int]:
        headers = {"x_api_key": f"other-key-{outcome}", "x_fleetgate_hold": HOLD}
        return {gate.chat(body=_body("p", outcome), **headers).status for _ in range(2)}

    with ThreadPoolExecutor() as pool:  # where all refuse
        for statuses in pool.map(ask_twice, REFUSALS):
            assert statuses <= {402, 429, 529}
    for model, calls in _calls(one, other).items():
        if model[0] in "pq":
            assert calls <= (1 if "quota" in model or "window" in model else MOST), (model, calls)


def test_many_who_wait_for_one_that_refuses_send_one_call_for_each_backoff(proxied: Callable[..., Proxied]) -> None:
    gate = proxied()
    gate.provider.script(Fault(status=529, times=3, model="m1"))
    with ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(gate.begin())
        gate.provider.wait_until(lambda stats: stats.calls >= 15, 60)
        sent = [seen.json()["model"] for seen in gate.provider.seen]
        assert len(sent) <= 12 + 12 + 2, "those who were sent before the first refusal, and then one at a time"
        assert len(gate.events("backed_off")) <= 4
        gate.wait_until(lambda: not gate.leases() and not gate.tickets(), "all were answered")
