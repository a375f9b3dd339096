"""Waiting in the queue, trying again, falling back (rules X2, X3, X6)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime

import aiohttp
import pytest

from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.script import Fault
from tests.proxy.proxied import CHAT, MESSAGES, Proxied
from tests.timed import within

CROWD = 50


async def _crowd(url: str, number: int) -> list[int]:
    """So many clients at once: their statuses."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(index: int) -> int:
            body = {**CHAT, "stream": index % 2 == 0}
            async with session.post(url, json=body, headers={"x-api-key": "one-key-for-all"}) as answer:
                text = await answer.read()
                whole = b"[DONE]" in text if answer.status == 200 and body["stream"] else True
                return answer.status if whole else 0

        return list(await asyncio.gather(*(one(index) for index in range(number))))


async def _called(provider: FakeProvider, times: int) -> None:
    await provider.until(lambda stats: stats.calls >= times, 60)


async def _refuse_now_and_then(provider: FakeProvider) -> int:
    """Rate limits that have nothing to do with how many there are, in the middle of it all: how many it were."""
    refusals = (Fault(status=429), Fault(status=429, retry_after_s=0.3))
    for number, fault in enumerate(refusals, 1):
        await _called(provider, 30 + 12 * number)
        provider.script(fault)
    await provider.until(lambda stats: stats.scripted == len(refusals), 60)
    provider.script(Fault(status=529, times=2))
    return len(refusals)


def test_x3_a_crowd_at_a_small_provider_sees_no_429(proxied: Callable[..., Proxied]) -> None:
    """And the provider says it once for each incident: nobody is sent after a refusal was heard."""
    with FakeProvider(limit=4, lag_s=0.4, latency_s=(0.01, 0.05)) as provider:
        gate = proxied(provider, requests='fake = { cap = 4, cooldown = "420ms" }')
        url = f"{gate.url}/fake/chat/completions"

        async def crowd() -> tuple[list[int], int]:
            return await asyncio.gather(_crowd(url, CROWD), _refuse_now_and_then(provider))

        provider.chunk_delay_s = 0.4
        assert asyncio.run(_crowd(url, 8)) == [200] * 8  # the streams among them prove that there are several slots
        assert len(gate.events("accepted")) > 2
        provider.chunk_delay_s = 0
        statuses, scripted = asyncio.run(crowd())
        assert statuses == [200] * CROWD
        incidents = [event for event in gate.events("paused") if event.get("incident")]
        assert scripted + provider.stats.refused <= len(incidents), (provider.stats, gate.events("refused"))
        assert {line["status"] for line in gate.lines()} <= {200}


def test_x3_without_the_proxy_the_same_crowd_does(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider(limit=4, lag_s=0.4, latency_s=(0.01, 0.05)) as provider:
        statuses = asyncio.run(_crowd(f"{provider.url}/v1/chat/completions", CROWD))
        assert statuses.count(429) > CROWD // 2


def test_x3_a_rate_limit_is_waited_out_with_the_place_kept(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(requests="fake = { cap = 1, cooldown = 0 }")
    gate.provider.script(Fault(status=429, retry_after_s=1.0))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(gate.chat, body={**CHAT, "model": "first"})
        gate.wait_until(lambda: gate.events("paused"), "the first was refused")
        second = pool.submit(gate.chat, body={**CHAT, "model": "second"})
        answers = [first.result(), second.result()]
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].headers["x-fleetgate-attempts"] == "2"
    assert int(answers[0].headers["x-fleetgate-waited-ms"]) >= 900
    assert [seen.json()["model"] for seen in gate.provider.seen] == ["first", "first", "second"], "the older goes first"


@pytest.mark.parametrize("status", [429, 529, 503])
def test_x3_of_a_model_without_a_cap_too(proxied: Callable[..., Proxied], status: int) -> None:
    gate = proxied()
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}} if status == 503 else None
    fault = Fault(status=status, retry_after_s=0.2) if body is None else Fault(status=status, body=body)
    gate.provider.script(fault)
    answer = gate.chat("/anthropic/v1/messages", MESSAGES)
    assert answer.status == 200
    assert answer.headers["x-fleetgate-attempts"] == "2"


def test_x3_a_refusal_at_once_again_and_again_is_not_answered_with_a_storm(proxied: Callable[..., Proxied]) -> None:
    gate = proxied()
    gate.provider.script(Fault(status=429, retry_after_s=0, times=1000))
    answer = gate.chat(x_fleetgate_hold="2s")
    assert answer.status == 429
    assert 2 <= gate.provider.stats.calls < 12


def test_x2_after_hold_the_answer_is_a_429_of_the_providers_own_shape(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(requests="fake = { cap = 1, cooldown = 0 }\nanthropic = 1\ngemini = 1", fake='hold = "300ms"')
    gate.provider.latency_s = 30
    shapes = {}
    for path, body in (
        ("/fake/chat/completions", CHAT),
        ("/anthropic/v1/messages", MESSAGES),
        ("/gemini/v1beta/models/g:generateContent", {"contents": []}),
    ):
        with gate.begin(body, path):
            gate.wait_until(gate.leases, "the first has the slot")
            answer = gate.chat(path, body, x_fleetgate_hold="300ms", x_api_key="")
            assert answer.status == 429, answer
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.headers["x-fleetgate-attempts"] == "0"
            shapes[path] = answer.json
        gate.check_nothing_is_held()
    openai, anthropic, gemini = shapes.values()
    assert openai["error"]["code"] == "concurrency_cap"
    assert anthropic["error"]["type"] == "rate_limit_error"
    assert gemini["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert "1 of 1 slots of fake are taken" in openai["error"]["message"]


def test_x2_what_cannot_end_in_time_is_told_at_once(proxied: Callable[..., Proxied]) -> None:
    gate = proxied()
    gate.provider.script(Fault(status=429, retry_after_s=3000))
    first = gate.chat()
    assert first.status == 429, "its own refusal, as it came"
    assert first.headers["retry-after"] == "3000"
    second = gate.chat()
    assert second.status == 429
    assert 2900 <= int(second.headers["retry-after"]) <= 3000
    assert gate.provider.stats.calls == 1, "the second was not even sent"


def test_b1_a_refused_key_is_refused_by_us_until_a_person_sees_to_it(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(fake='key_env = "OWN_KEY"', OWN_KEY="key-of-a-client")
    gate.provider.script(Fault(status=401))
    assert gate.chat("/anthropic/v1/messages", MESSAGES).status == 401
    again = gate.chat("/anthropic/v1/messages", MESSAGES)
    assert again.status == 401
    assert again.json["error"]["type"] == "authentication_error"
    assert "backoff clear" in again.json["error"]["message"]
    assert gate.chat("/anthropic/v1/messages", MESSAGES, x_api_key="another").status == 200
    key = gate.get("/v1/backoffs").json["backoffs"][0]["key"]
    assert gate.cli("backoff", "clear", key).returncode == 0
    assert gate.chat("/anthropic/v1/messages", MESSAGES).status == 200


def test_x3_a_server_error_is_passed_on_and_holds_nobody_up(proxied: Callable[..., Proxied]) -> None:
    gate = proxied()
    gate.provider.script(Fault(status=500))
    assert gate.chat().status == 500
    again = gate.chat()
    assert again.status == 200
    assert gate.events("released")[0]["outcome"] == "server_error"
    within(int(again.headers["x-fleetgate-waited-ms"]), 1000, "ms that the next was held up")


def test_x3_a_fallback_is_taken_and_only_the_model_is_another(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(
        requests='"fake/m1" = 1',
        more='[fallback]\n"fake/m1" = ["fake/m2"]\n"gemini/g1" = ["gemini/g2"]',
    )
    gate.provider.script(
        Fault(status=429, retry_after_s=60, model="m1"), Fault(status=429, retry_after_s=60, model="g1")
    )
    body = b'{"stream": false, "model": "m1",  "messages": [ {"role":"user", "content":"x"} ], "n" : 1}'
    answer = gate.chat(body=body)
    assert answer.status == 200
    assert answer.headers["x-fleetgate-attempts"] == "2"
    assert answer.headers["x-fleetgate-model"].endswith("/m2")
    sent = gate.provider.seen[-1]
    assert json.loads(sent.body) == {**json.loads(body), "model": "m2"}
    assert b'[ {"role":"user", "content":"x"} ]' in sent.body
    assert gate.chat(body=body).headers["x-fleetgate-attempts"] == "1", "while the first is paused, the other is taken"
    gate.chat("/gemini/v1beta/models/g1:generateContent", {"contents": []})
    assert gate.provider.seen[-1].path == "/v1beta/models/g2:generateContent"


def test_p4_a_limit_that_is_learned_is_learned_from_the_heads_of_answers(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider(chunks=2, chunk_delay_s=100) as provider, ExitStack() as clients:
        gate = proxied(provider, requests="fake = 6")
        for _ in range(6):
            clients.enter_context(gate.begin({**CHAT, "stream": True}))
        provider.wait_until(lambda stats: stats.active == 6, 60)
        levels = [event["level"] for event in gate.events("accepted")]
        assert levels[:5] == [1, 2, 3, 4, 5], "each before the next was let in, and all of them still stream"
        first, *_, last = (event["at"] for event in gate.events("granted"))
        took = datetime.fromisoformat(last) - datetime.fromisoformat(first)
        within(took.total_seconds(), 6, "two seconds each, if nobody told that the answers have begun")


def test_x6_headers_that_say_nothing_is_left_pause_the_pool(proxied: Callable[..., Proxied]) -> None:
    headers = {
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1s",
    }  # of a limit that is not known
    with FakeProvider(headers=headers) as provider:
        gate = proxied(provider, requests="fake = { cap = 3, cooldown = 0 }")
        assert gate.chat().status == 200
        provider.headers.clear()
        again = gate.chat()
        assert int(again.headers["x-fleetgate-waited-ms"]) > 500
        assert not gate.events("reduced"), "it is a pause, and no incident"


def test_an_error_inside_a_stream_is_passed_on_and_told(proxied: Callable[..., Proxied]) -> None:
    gate = proxied()
    gate.provider.script(Fault(status=529, in_stream=True))
    answer = gate.chat("/anthropic/v1/messages", {**MESSAGES, "stream": True})
    assert answer.status == 200
    assert b"overloaded_error" in answer.body
    assert gate.wait_until(lambda: gate.events("released"), "it ended")[0]["outcome"] == "overloaded"


def test_a_large_body_goes_straight_through_and_is_not_sent_twice(proxied: Callable[..., Proxied]) -> None:
    gate = proxied()
    large = {**CHAT, "messages": [{"role": "user", "content": "x" * (28 << 20)}]}
    answer = gate.chat(body=large)
    assert answer.status == 200, answer.body[:200]
    assert len(gate.provider.seen[-1].body) > 28 << 20
    gate.provider.script(Fault(status=429, retry_after_s=0.1))
    assert gate.chat(body=large).status == 429
