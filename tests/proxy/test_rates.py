"""The rates of providers, by their headers and refusals: followed without any configuration (rules V6, V8)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest

from fleetgate.core.usage import Usage
from fleetgate.simulate.provider_rates import ProviderRate
from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.script import Fault
from tests.proxy.proxied import CHAT, MESSAGES, Proxied

# As the fake provider speaks them: the path, and the body of a call that may produce 10 tokens.
SPOKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "anthropic": ("/anthropic/v1/messages", {**MESSAGES, "max_tokens": 10}),
    "openai": ("/openai/v1/chat/completions", {**CHAT, "max_tokens": 10}),
}


def _observed(gate: Proxied) -> list[dict[str, Any]]:
    return gate.events("rates_observed")


@pytest.mark.parametrize("api", SPOKEN)
def test_V6_headers_make_rates_with_no_configuration(proxied: Callable[..., Proxied], api: str) -> None:
    rates = [ProviderRate("calls", 50), ProviderRate("tokens", 100_000)]
    with FakeProvider(rates=rates, usage=Usage(input=300, output=10)) as provider:
        gate = proxied(provider)
        path, body = SPOKEN[api]
        assert gate.chat(path, body).status == 200
        event = gate.wait_until(lambda: _observed(gate), "the rates are known")[0]
        assert {reading["unit"]: reading["limit"] for reading in event["readings"]} == {"calls": 50, "tokens": 100_000}
        for _ in range(5):
            assert gate.chat(path, body).status == 200
        gate.check_nothing_is_held()
        assert len(_observed(gate)) == 1, "what changes no decision is not recorded"


def test_V6_the_rates_of_a_provider_can_be_ignored(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider(rates=[ProviderRate("calls", 50)]) as provider:
        gate = proxied(provider, fake='rates = "ignore"')
        assert gate.chat().status == 200
        gate.check_nothing_is_held()
        assert not _observed(gate)


@pytest.mark.parametrize("api", SPOKEN)
def test_V6_calls_wait_for_a_rate_and_none_is_refused(proxied: Callable[..., Proxied], api: str) -> None:
    with FakeProvider(rates=[ProviderRate("calls", 10, per_s=2, start=8)]) as provider:
        gate = proxied(provider)
        path, body = SPOKEN[api]
        assert gate.chat(path, body).status == 200
        gate.wait_until(lambda: _observed(gate), "the rate is known")
        began = monotonic()
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: gate.chat(path, body).status, range(16)))
        assert answers == [200] * 16
        assert monotonic() - began > 1.0, "16 calls, of which 7 or 8 fit at once, and then five each second"
        assert provider.stats.refused <= 1


@pytest.mark.parametrize("api", SPOKEN)
def test_V8_a_refusal_empties_the_rate_that_it_names_and_pauses_nothing(
    proxied: Callable[..., Proxied], api: str
) -> None:
    with FakeProvider(rates=[ProviderRate("tokens", 3000, per_s=3, start=200)]) as provider:
        provider.usage = Usage(input=390, output=10)
        gate = proxied(provider, requests=f"{api} = 4")
        path, body = SPOKEN[api]
        large = {**body, "messages": [{"role": "user", "content": "x" * 1600}]}
        answer = gate.chat(path, large)
        assert answer.status == 200, "it was refused, waited and was sent again"
        assert provider.stats.refused_at_rates == {"tokens": 1}
        (event,) = (event for event in _observed(gate) if event.get("refused"))
        assert event["refused"] == "tokens"
        assert not gate.events("paused"), "no pool is paused"
        assert not gate.events("backed_off")
        first, second = gate.wait_until(lambda: gate.events("released")[1:] and gate.events("released"), "both ended")
        assert first["outcome"] == "rate_limited"
        assert not first.get("usage", {}).get("input"), "what was refused used nothing"
        assert second["usage"]["output"] == 10


def test_V8_a_refusal_of_calls_at_once_is_no_rate(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(requests="openai = 4")
    gate.provider.script(Fault(status=429, retry_after_s=0.1))
    assert gate.chat(*SPOKEN["openai"]).status == 200
    assert not _observed(gate)
    assert gate.events("paused")
