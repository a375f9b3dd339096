"""A limit that outlasts a request's time is told at once, to every request, as the provider itself would tell it."""

from __future__ import annotations

from collections.abc import Callable
from time import time

import anthropic
import pytest

from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.script import Fault
from tests.proxy.proxied import CHAT, MESSAGES, Proxied
from tests.timed import within

OPUS, SONNET = ({**MESSAGES, "model": f"claude-{name}-4-6"} for name in ("opus", "sonnet"))
BODY = {"type": "error", "error": {"type": "rate_limit_error", "message": "This request would exceed your limit."}}


def _window(claim: str, wait_s: int, **more: str) -> dict[str, str]:
    name = "anthropic-ratelimit-unified-"
    reset = str(int(time()) + wait_s)
    return {f"{name}status": "rejected", f"{name}reset": reset, f"{name}representative-claim": claim, **more}


@pytest.mark.parametrize(
    "caps", ["", "anthropic = 4", '"anthropic/claude-opus-*" = 4'], ids=["none", "account", "opus"]
)
def test_a_closed_window_is_told_at_once_to_every_request_of_those_it_is_about(
    proxied: Callable[..., Proxied], caps: str
) -> None:
    gate = proxied(requests=caps)
    gate.provider.script(
        Fault(status=429, body=BODY, headers=_window("seven_day_opus", 259_200), model="claude-opus-4-6")
    )
    first, *others = (gate.chat("/anthropic/v1/messages", OPUS) for _ in range(4))
    assert (first.status, first.headers["anthropic-ratelimit-unified-representative-claim"]) == (429, "seven_day_opus")
    for answer in others:
        assert answer.status == 429
        assert answer.json["error"]["type"] == "rate_limit_error"
        assert answer.headers["anthropic-ratelimit-unified-status"] == "rejected"
        assert answer.headers["anthropic-ratelimit-unified-representative-claim"] == "seven_day_opus"
        assert answer.headers["x-should-retry"] == "false"
        assert abs(int(answer.headers["anthropic-ratelimit-unified-reset"]) - time() - 259_200) < 60
        assert int(answer.headers["retry-after"]) > 259_000
    assert gate.provider.stats.calls == 1
    served = gate.chat("/anthropic/v1/messages", SONNET)
    assert served.status == 200, "the window of one family is not that of another"
    within(int(served.headers["x-fleetgate-waited-ms"]), 1000, "ms that it waited")


def test_a_window_of_the_account_holds_all_its_models_and_no_client_is_made_to_wait(
    proxied: Callable[..., Proxied],
) -> None:
    gate = proxied(requests="anthropic = 4")
    fault = Fault(status=429, body=BODY, headers=_window("five_hour", 7_200), model="claude-opus-4-6")
    gate.provider.script(fault)
    assert gate.chat("/anthropic/v1/messages", OPUS).status == 429
    answer = gate.chat("/anthropic/v1/messages", SONNET)
    assert answer.headers["anthropic-ratelimit-unified-representative-claim"] == "five_hour"
    client = anthropic.Anthropic(base_url=f"{gate.url}/anthropic", api_key="key-of-a-client", max_retries=5)
    with client, pytest.raises(anthropic.RateLimitError, match="usage_window"):
        client.messages.create(model="claude-sonnet-4-6", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
    assert gate.provider.stats.calls == 1
    assert len(gate.lines()) <= 3, "the SDK has not tried again"


@pytest.mark.parametrize(
    ("path", "body"),
    [("/fake/chat/completions", CHAT), ("/gemini/v1beta/models/g:generateContent", {"contents": []})],
)
def test_a_rate_limit_of_a_pool_that_outlasts_hold_is_told_at_once_too(
    proxied: Callable[..., Proxied], path: str, body: dict[str, object]
) -> None:
    refusal = {"error": {"code": 429, "message": "Too many at once.", "status": "RESOURCE_EXHAUSTED"}}
    with FakeProvider() as provider:
        gate = proxied(provider, requests="fake = 4\ngemini = 4")
        provider.script(Fault(status=429, body=refusal, headers={"retry-after": "3000"}))
        assert gate.chat(path, body).status == 429
        gate.wait_until(lambda: gate.events("paused"), "its pool is paused")
        for _ in range(2):
            answer = gate.chat(path, body)
            assert answer.status == 429
            assert 2_900 < int(answer.headers["retry-after"]) <= 3_000
        if "gemini" in path:
            assert answer.json["error"]["details"][0]["retryDelay"] == f"{answer.headers['retry-after']}s"
        assert provider.stats.calls == 1


def test_a_pause_by_hand_is_waited_for_as_it_may_end_at_any_time(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(requests="fake = 4")
    assert gate.chat(x_api_key="").status == 200
    assert gate.cli("pause", "fake", "--for", "1h", "--kind", "requests").returncode == 0
    with gate.begin() as waiting:
        gate.wait_until(gate.tickets, "it waits")
        assert gate.cli("resume", "fake", "--kind", "requests").returncode == 0
        assert waiting.recv(65536).startswith(b"HTTP/1.1 200")
