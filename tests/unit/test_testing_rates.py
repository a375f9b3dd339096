"""The fake provider's rates and usage: what it counts, how it refuses, what its headers say, and what it served."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import re
import time
from calendar import timegm
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from fleetgate.core.usage import Usage
from fleetgate.simulate.token_bucket import TokenBucket
from fleetgate.testing import FakeClock, FakeProvider, Fault, ProviderRate
from fleetgate.testing.server import SeenRequest
from tests.unit.test_testing_provider import (
    ANTHROPIC,
    CALLS,
    CHAT,
    GEMINI,
    GEMINI_STREAM,
    RESPONSES,
    STREAMS,
    Caller,
    ask,
    events,
)

steps = st.lists(st.tuples(st.integers(0, 5000), st.integers(-50, 300)), max_size=40)


@given(amount=st.integers(1, 500), per_ms=st.integers(1, 70_000), burst=st.integers(1, 500), steps=steps)
def test_a_bucket_loses_nothing_but_what_it_has_no_room_for(
    amount: int, per_ms: int, burst: int, steps: list[tuple[int, int]]
):
    bucket = TokenBucket(amount, per_ms, burst)
    free, lost, now = Fraction(burst), Fraction(0), 0
    for wait_ms, taken in steps:
        now += wait_ms
        for change in (Fraction(amount * wait_ms, per_ms), Fraction(-taken)):
            free += change
            lost += max(free - burst, Fraction(0))
            free = min(free, Fraction(burst))
        bucket.free(now)
        bucket.take(taken, now)
        assert bucket.free(now) == free.__floor__()
        assert bucket.lost(now) == lost.__floor__()
        there = burst + Fraction(amount * now, per_ms)
        assert bucket.used_part(now) == pytest.approx(float((there - lost - free) / there))


@given(amount=st.integers(1, 500), per_ms=st.integers(1, 70_000), wanted=st.integers(0, 900), taken=st.integers(0, 900))
def test_a_wait_is_exact_to_the_millisecond(amount: int, per_ms: int, wanted: int, taken: int):
    bucket = TokenBucket(amount, per_ms)
    bucket.take(taken, 0)
    fits = min(wanted, amount)  # more than the bucket holds fits when it is full
    wait_ms = bucket.wait_ms(wanted, 0)
    assert bucket.free(0) >= fits if wait_ms == 0 else bucket.free(wait_ms - 1) < fits
    assert bucket.free(wait_ms) >= fits


# Refusals and headers.


def fields(answer: Any, start: str) -> dict[str, str]:
    return {name.removeprefix(start): value for name, value in answer.headers.items() if name.startswith(start)}


def test_anthropic_counts_input_without_cache_reads_and_reserves_output_from_max_tokens():
    clock = FakeClock()
    rates = [ProviderRate("calls", 50), ProviderRate("input", 1000), ProviderRate("output", 600)]
    usage = Usage(input=300, cache_read=5000, cache_write=100, output=50)
    with FakeProvider(rates=rates, usage=usage, clock=clock) as provider:
        call = {"model": "m", "max_tokens": 500}
        seen = fields(ask(provider, ANTHROPIC, call), "anthropic-ratelimit-")
        # The headers leave when the response begins: the output is still reserved.
        assert {name: value for name, value in seen.items() if not name.endswith("reset")} == {
            "requests-limit": "50",
            "requests-remaining": "49",
            "input-tokens-limit": "1000",
            "input-tokens-remaining": "600",
            "output-tokens-limit": "600",
            "output-tokens-remaining": "100",
            "tokens-limit": "1600",
            "tokens-remaining": "700",
        }
        states = {state.rate.unit: state.free for state in provider.buckets["", "m"].states(0)}
        assert states == {"calls": 49, "input": 600, "output": 550}
        assert ask(provider, ANTHROPIC, call).status == 200
        refused = ask(provider, ANTHROPIC, call)
        assert refused.status == 429
        assert refused.json["error"]["type"] == "rate_limit_error"
        assert "rate limit of 1,000 input tokens per minute" in refused.json["error"]["message"]
        assert refused.headers["retry-after"] == "12"  # 200 of 400 are there, 1000 come in a minute
        assert refused.headers["anthropic-ratelimit-input-tokens-remaining"] == "200"
        assert provider.stats.refused_at_rates == {"input": 1}
        clock.advance(11_999)
        assert ask(provider, ANTHROPIC, call).status == 429
        clock.advance(1)
        assert ask(provider, ANTHROPIC, call).status == 200


def test_the_reset_of_anthropic_is_when_the_bucket_is_full_again_in_whole_seconds():
    with FakeProvider(rates=[ProviderRate("calls", 2)]) as provider:
        before = time.time()
        reset = ask(provider, ANTHROPIC).headers["anthropic-ratelimit-requests-reset"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", reset)
    wait_s = timegm(time.strptime(reset, "%Y-%m-%dT%H:%M:%SZ")) - before
    assert 29 < wait_s < 60


def test_what_remains_is_rounded_where_the_provider_rounds_it():
    rate = ProviderRate("input", 40_000, rounding=1000)
    with FakeProvider(rates=[rate], usage=Usage(input=600), clock=FakeClock()) as provider:
        answers = [ask(provider, ANTHROPIC) for _ in range(2)]
    remaining = [answer.headers["anthropic-ratelimit-input-tokens-remaining"] for answer in answers]
    assert remaining == ["39000", "39000"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_openai_refuses_in_its_own_words(path: str):
    clock = FakeClock()
    rates = [ProviderRate("calls", 3), ProviderRate("tokens", 30_000)]
    name = "max_output_tokens" if path == RESPONSES else "max_completion_tokens"
    with FakeProvider(rates=rates, usage=Usage(input=9000, cache_read=1000, output=5), clock=clock) as provider:
        first = ask(provider, path, {"model": "gpt", name: 10_000})
        seen = fields(first, "x-ratelimit-")
        assert seen == {
            "limit-requests": "3",
            "remaining-requests": "2",
            "reset-requests": "20s",
            "limit-tokens": "30000",
            "remaining-tokens": "10000",
            "reset-tokens": "40s",
        }
        refused = ask(provider, path, {"model": "gpt", name: 10_001})
        assert refused.status == 429
        error = refused.json["error"]
        assert (error["type"], error["code"]) == ("tokens", "rate_limit_exceeded")
        sentence = "on tokens per min (TPM): Limit 30000, Used 10005, Requested 20001. Please try again in 12ms."
        assert sentence in error["message"]
        assert (refused.headers["retry-after"], refused.headers["retry-after-ms"]) == ("1", "12")
        clock.advance(12)  # a refused call took neither a request nor tokens
        assert ask(provider, path, {"model": "gpt", name: 10_001}).headers["x-ratelimit-remaining-requests"] == "1"
        provider.usage = Usage(input=1)
        assert [ask(provider, path, {"model": "gpt", name: 1}).status for _ in range(2)] == [200, 429]
        assert provider.stats.refused_at_rates == {"tokens": 1, "calls": 1}


def test_gemini_names_the_quota_in_the_body_alone():
    rates = [ProviderRate("calls", 1, per_s=10)]
    with FakeProvider(rates=rates, clock=FakeClock()) as provider:
        assert ask(provider, GEMINI).status == 200
        refused = ask(provider, GEMINI)
    assert refused.status == 429
    failure, retry = refused.json["error"]["details"]
    assert failure["violations"][0]["quotaId"] == "GenerateRequestsPerMinutePerProjectPerModel"
    assert retry["retryDelay"] == "10s"
    assert "retry-after" not in refused.headers


def test_each_model_and_key_has_buckets_of_its_own():
    with FakeProvider(rates=[ProviderRate("calls", 1)], clock=FakeClock()) as provider:
        calls = [("a", "k1"), ("b", "k1"), ("a", "k2"), ("a", "k1")]
        statuses = [ask(provider, ANTHROPIC, {"model": model}, **{"x-api-key": key}).status for model, key in calls]
    assert statuses == [200, 200, 200, 429]


def test_a_call_larger_than_the_bucket_is_accepted_when_the_bucket_is_full():
    clock = FakeClock()
    with FakeProvider(rates=[ProviderRate("output", 60)], usage=Usage(output=90), clock=clock) as provider:
        call = {"model": "m", "max_tokens": 100}
        assert ask(provider, ANTHROPIC, call).status == 200
        clock.advance(89_999)
        assert ask(provider, ANTHROPIC, call).status == 429
        clock.advance(1)
        assert ask(provider, ANTHROPIC, call).status == 200


def test_a_scripted_error_and_a_refusal_at_the_limit_take_nothing_from_the_rates():
    rates = [ProviderRate("calls", 1)]
    with FakeProvider(rates=rates, faults=[Fault(status=529)], limit=0, clock=FakeClock()) as provider:
        assert [ask(provider, ANTHROPIC).status for _ in range(2)] == [529, 429]
        provider.limit = None
        assert [ask(provider, ANTHROPIC).status for _ in range(2)] == [200, 429]
        assert (provider.stats.refused, provider.served.total.calls) == (2, 1)


# Usage.

USAGE = Usage(input=30, cache_read=200, cache_write=7, output=41)

USAGES: dict[str, Callable[[Any], tuple[int, int, int]]] = {  # input with caches, of which read, output
    ANTHROPIC: lambda it: (
        it["usage"]["input_tokens"]
        + it["usage"]["cache_read_input_tokens"]
        + it["usage"]["cache_creation_input_tokens"],
        it["usage"]["cache_read_input_tokens"],
        it["usage"]["output_tokens"],
    ),
    CHAT: lambda it: (
        it["usage"]["prompt_tokens"],
        it["usage"]["prompt_tokens_details"]["cached_tokens"],
        it["usage"]["completion_tokens"],
    ),
    RESPONSES: lambda it: (
        it["usage"]["input_tokens"],
        it["usage"]["input_tokens_details"]["cached_tokens"],
        it["usage"]["output_tokens"],
    ),
    GEMINI: lambda it: (
        it["usageMetadata"]["promptTokenCount"],
        it["usageMetadata"]["cachedContentTokenCount"],
        it["usageMetadata"]["candidatesTokenCount"],
    ),
}


@pytest.mark.parametrize("path", CALLS)
def test_a_response_reports_the_usage_that_was_set(path: str):
    with FakeProvider(usage=USAGE) as provider:
        assert USAGES[path](ask(provider, path).json) == (237, 200, 41)
        model = "gemini-x" if path == GEMINI else "m"
        assert provider.served.by("model") == {model: Usage(1, 30, 200, 7, 41)}


def test_a_stream_reports_the_same_usage_at_its_end():
    with FakeProvider(usage=USAGE) as provider:
        anthropic = events(ask(provider, ANTHROPIC, {"model": "m", "stream": True}).body)
        assert anthropic[0]["message"]["usage"]["cache_read_input_tokens"] == 200
        assert anthropic[-2]["usage"] == {"output_tokens": 41}
        options = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
        assert USAGES[CHAT](events(ask(provider, CHAT, options).body)[-1]) == (237, 200, 41)
        responses = events(ask(provider, RESPONSES, {"model": "m", "stream": True}).body)
        assert USAGES[RESPONSES](responses[-1]["response"]) == (237, 200, 41)
        gemini = ask(provider, GEMINI_STREAM).json
        assert [USAGES[GEMINI](piece)[2] for piece in gemini] == [10, 20, 30, 41]


def test_usage_comes_from_a_script_from_the_request_or_from_one_setting():
    def by_size(request: SeenRequest) -> Usage:
        return Usage(input=len(request.body) // 4, output=int(request.headers["x-output"]))

    with FakeProvider(usage=by_size, limit=1) as provider:
        body = {"model": "m", "messages": "x" * 385}  # 400 bytes and more
        size = len(json.dumps(body))
        assert ask(provider, "/_script", {"usages": [{"input": 1, "output": 2}, {"input": 3}]}).status == 200
        provider.limit = 0
        assert ask(provider, ANTHROPIC, body).status == 429  # a refused call uses up no script
        provider.limit = 1
        used = [ask(provider, ANTHROPIC, body, **{"x-output": "9"}).json["usage"] for _ in range(3)]
    assert [(each["input_tokens"], each["output_tokens"]) for each in used] == [(1, 2), (3, 0), (size // 4, 9)]


def test_no_call_generates_more_than_its_max_tokens():
    with FakeProvider(usage=Usage(input=1, output=100)) as provider:
        assert ask(provider, ANTHROPIC, {"model": "m", "max_tokens": 7}).json["usage"]["output_tokens"] == 7


def test_what_was_served_is_counted_by_model_key_and_project():
    with FakeProvider(usage=Usage(input=10, output=1)) as provider:
        for model, key, project in [("a", "k1", "web"), ("a", "k2", "web"), ("b", "k1", "")]:
            ask(provider, CHAT, {"model": model}, authorization=f"Bearer {key}", **{"x-project": project})
        served = provider.served
        assert {name: usage.calls for name, usage in served.by("model").items()} == {"a": 2, "b": 1}
        assert {name: usage.input for name, usage in served.by("key").items()} == {"k1": 20, "k2": 10}
        assert {name: usage.tokens for name, usage in served.by("project").items()} == {"web": 22, "": 11}
        assert served.total == Usage(calls=3, input=30, output=3)
        rows = ask(provider, "/_served", method="GET").json
        assert len(rows) == 3
        assert rows[0]["project"] == "web"


def test_a_client_that_leaves_is_charged_for_what_was_generated_until_then():
    async def scenario() -> None:
        rates = [ProviderRate("output", 1000)]
        usage = Usage(input=10, output=2000)
        provider = FakeProvider(chunks=1000, chunk_delay_s=0.002, usage=usage, rates=rates, clock=FakeClock())
        async with provider:
            caller = Caller(provider)
            await caller.call(stream=True)
            await caller.reader.readuntil(b"content_block_delta")
            caller.leave()
            await provider.until(lambda stats: stats.active == 0)
        served = provider.served.total
        assert (served.calls, served.input) == (1, 10)
        assert 2 <= served.output < 2000
        [state] = provider.buckets["", "m"].states(0)
        assert state.free == 1000 - served.output

    asyncio.run(scenario())


@pytest.mark.parametrize("drop", ["head", "middle"])
def test_a_dropped_stream_is_charged_for_its_part(drop: Any):
    with FakeProvider(faults=[Fault(drop=drop)], usage=Usage(input=8, output=40)) as provider:
        with pytest.raises((http.client.HTTPException, ConnectionResetError)):
            ask(provider, ANTHROPIC, {"model": "m", "stream": True})
        provider.wait_until(lambda stats: stats.active == 0)
        assert provider.served.total == Usage(calls=1, input=8, output=20 if drop == "middle" else 0)


# Compressed responses.

DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "br": brotli.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}


@pytest.mark.parametrize("encoding", DECODERS)
@pytest.mark.parametrize("path", STREAMS)
def test_a_response_is_compressed_for_a_client_that_accepts_it(path: str, encoding: str):
    body = {"model": "m", "stream": True}
    with FakeProvider(encodings=list(DECODERS), limit=1, seed=3) as provider:
        packed = ask(provider, path, body, **{"accept-encoding": f"x, {encoding};q=0.5"})
        plain = ask(provider, path, body)
        provider.limit = 0
        refused = ask(provider, path, body, **{"accept-encoding": encoding})
    assert packed.headers["content-encoding"] == encoding
    assert "content-encoding" not in plain.headers
    ids = re.compile(rb"[0-9]{6}[0-9a-f]{8}")
    assert ids.sub(b"ID", DECODERS[encoding](packed.body)) == ids.sub(b"ID", plain.body)
    assert "error" in json.loads(DECODERS[encoding](refused.body))


def test_each_piece_of_a_compressed_stream_can_be_read_at_once():
    async def scenario() -> None:
        async with FakeProvider(encodings=["br"], chunks=2, faults=[Fault(drop="middle")]) as provider:
            port = int(provider.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            body = b'{"model":"m","stream":true}'
            head = b"POST /v1/messages HTTP/1.0\r\nAccept-Encoding: br\r\nContent-Length: %d\r\n\r\n" % len(body)
            writer.write(head + body)
            _, _, sent = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
        seen = brotli.Decompressor().process(sent)
        assert b"word0" in seen
        assert b"message_stop" not in seen

    asyncio.run(scenario())
