"""The usage in responses of every API shape: whole, streamed, split anywhere, very large, or not what it should be."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetgate.core.usage import PARTIAL, RESPONSE, Usage
from fleetgate.signals import response_usage
from fleetgate.signals.response_usage import UsageReader


def sse(*events: dict[str, Any] | str, named: bool = False) -> bytes:
    lines = []
    for event in events:
        if named and isinstance(event, dict):
            lines.append(f"event: {event['type']}")
        lines.append(f"data: {event if isinstance(event, str) else json.dumps(event)}")
        lines.append("")
    return ("\n".join(lines) + "\n").encode()


ANTHROPIC_USAGE = {
    "input_tokens": 25,
    "cache_creation_input_tokens": 100,
    "cache_read_input_tokens": 4_000,
    "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 0},
    "output_tokens": 1,
    "service_tier": "standard",
}
ANTHROPIC_STREAM = sse(
    {"type": "message_start", "message": {"id": "m", "model": "claude-opus-4-6", "usage": ANTHROPIC_USAGE}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": '"usage": {"output_tokens": 9}'},
    },
    {"type": "ping"},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 312}},
    {"type": "message_stop"},
    named=True,
)
ANTHROPIC_BODY = json.dumps(
    {
        "type": "message",
        "content": [{"type": "tool_use", "input": {"usage": {"output_tokens": 7}}}],
        "usage": {**ANTHROPIC_USAGE, "output_tokens": 312},
    }
).encode()
OPENAI_USAGE = {
    "prompt_tokens": 1_100,
    "completion_tokens": 50,
    "total_tokens": 1_150,
    "prompt_tokens_details": {"cached_tokens": 1_024, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 30},
}
CHAT_STREAM = sse(
    *[{"object": "chat.completion.chunk", "choices": [{"delta": {"content": "x"}}], "usage": None}] * 5,
    {"object": "chat.completion.chunk", "choices": [], "usage": OPENAI_USAGE},
    "[DONE]",
)
RESPONSES_USAGE = {
    "input_tokens": 328,
    "input_tokens_details": {"cached_tokens": 128},
    "output_tokens": 52,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 380,
}
RESPONSES_STREAM = sse(
    {"type": "response.created", "response": {"id": "r", "usage": None}},
    {"type": "response.output_text.delta", "delta": "Hello"},
    {"type": "response.completed", "response": {"id": "r", "output": [], "usage": RESPONSES_USAGE, "metadata": {}}},
    named=True,
)
GEMINI_USAGE = {
    "promptTokenCount": 400,
    "cachedContentTokenCount": 100,
    "toolUsePromptTokenCount": 20,
    "candidatesTokenCount": 30,
    "thoughtsTokenCount": 12,
    "totalTokenCount": 462,
}
GEMINI_ANSWERS = [
    {"candidates": [{}], "usageMetadata": {"promptTokenCount": 400, "cachedContentTokenCount": 100}},
    {"candidates": [{}], "usageMetadata": GEMINI_USAGE, "modelVersion": "gemini-3-pro"},
]
ANTHROPIC = Usage(calls=1, input=25, cache_read=4_000, cache_write=100, output=312, source=RESPONSE)
CHAT = Usage(calls=1, input=76, cache_read=1_024, output=50, source=RESPONSE)
RESPONSES = Usage(calls=1, input=200, cache_read=128, output=52, source=RESPONSE)
GEMINI = Usage(calls=1, input=320, cache_read=100, output=42, source=RESPONSE)

STREAMS = {
    "anthropic": (ANTHROPIC_STREAM, ANTHROPIC),
    "anthropic, CRLF": (ANTHROPIC_STREAM.replace(b"\n", b"\r\n"), ANTHROPIC),
    "openai chat": (CHAT_STREAM, CHAT),
    "openai responses": (RESPONSES_STREAM, RESPONSES),
    "gemini": (sse(*GEMINI_ANSWERS), GEMINI),
    "no space after the colon": (CHAT_STREAM.replace(b"data: ", b"data:"), CHAT),
    "without a last newline": (RESPONSES_STREAM.rstrip(b"\n"), RESPONSES),
}
BODIES = {
    "anthropic": (ANTHROPIC_BODY, ANTHROPIC),
    "openai chat": (json.dumps({"object": "chat.completion", "usage": OPENAI_USAGE}).encode(), CHAT),
    "openai responses": (json.dumps({"object": "response", "usage": RESPONSES_USAGE}).encode(), RESPONSES),
    "gemini": (json.dumps(GEMINI_ANSWERS[-1]).encode(), GEMINI),
    "gemini, an array": (json.dumps(GEMINI_ANSWERS, indent=2).encode(), GEMINI),
    "deepseek": (
        b'{"usage": {"prompt_tokens": 90, "completion_tokens": 4, "prompt_cache_hit_tokens": 64}}',
        Usage(calls=1, input=26, cache_read=64, output=4, source=RESPONSE),
    ),
    "openrouter": (
        b'{"usage": {"prompt_tokens": 194, "completion_tokens": 2, "cost": 0.95001}}',
        Usage(calls=1, input=194, output=2, cost=950_010, source=RESPONSE),
    ),
    "embeddings": (b'{"usage": {"prompt_tokens": 8, "total_tokens": 8}}', Usage(calls=1, input=8, source=RESPONSE)),
}


def read(pieces: list[bytes], *, stream: bool, complete: bool = True) -> Usage | None:
    reader = UsageReader(stream=stream)
    for piece in pieces:
        reader.feed(piece)
    return reader.result(complete=complete)


@pytest.mark.parametrize("shape", STREAMS)
def test_the_usage_of_a_stream_is_read(shape: str) -> None:
    data, usage = STREAMS[shape]
    assert read([data], stream=True) == usage


@pytest.mark.parametrize("shape", BODIES)
def test_the_usage_of_a_body_is_read(shape: str) -> None:
    data, usage = BODIES[shape]
    assert read([data], stream=False) == usage


@given(st.sampled_from(sorted(STREAMS)), st.lists(st.integers(0, 2_000), max_size=30))
def test_however_a_stream_is_split_its_usage_is_the_same(shape: str, cuts: list[int]) -> None:
    data, usage = STREAMS[shape]
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    assert read([data[a:b] for a, b in pairwise(places)], stream=True) == usage


def test_a_stream_may_come_byte_by_byte() -> None:
    for data, usage in STREAMS.values():
        assert read([data[at : at + 1] for at in range(len(data))], stream=True) == usage


def test_a_stream_that_breaks_off_reports_what_was_known_until_then() -> None:
    start = ANTHROPIC_STREAM[: ANTHROPIC_STREAM.index(b"event: ping")]
    known = Usage(calls=1, input=25, cache_read=4_000, cache_write=100, output=1, source=PARTIAL)
    assert read([start], stream=True, complete=False) == known


def test_a_response_without_usage_has_none() -> None:
    for data in (
        b"",
        b"{}",
        b'{"usage": null}',
        b"[1, 2]",
        b"[]",
        b"[{",
        b"not JSON",
        b'{"usage": {}}',
        b'\xff"usage": {',
    ):
        assert read([data], stream=False) is None
        assert read([b"data: " + data + b"\n\n"], stream=True) is None
    assert read([b'event: "usage": {\n: comment "usage": {}\n\n'], stream=True) is None


@pytest.mark.parametrize("bad", ["-1", '"12"', "1.5", "true", "null", "[]", "{}", "9" * 30])
def test_what_cannot_be_a_count_is_ignored(bad: str) -> None:
    body = f'{{"usage": {{"input_tokens": {bad}, "output_tokens": 5, "cost": {bad if bad != "1.5" else "-2"}}}}}'
    found = read([body.encode()], stream=False)
    assert found == Usage(calls=1, output=5, source=RESPONSE)


def test_the_usage_of_a_very_large_answer_is_found_at_its_end_in_bounded_memory() -> None:
    text = "word " * 1_000_000
    response = {"output": [{"text": text}], "usage": RESPONSES_USAGE, "metadata": {"note": '}{ \\"usage\\": {'}}
    body = json.dumps(response).encode()
    assert len(body) > 4 * response_usage.MOST_BODY
    assert read([body[at : at + 16_384] for at in range(0, len(body), 16_384)], stream=False) == RESPONSES
    event = sse({"type": "response.completed", "response": response})
    reader = UsageReader(stream=True)
    for at in range(0, len(event), 16_384):
        reader.feed(event[at : at + 16_384])
        assert sum(map(len, reader._kept)) <= response_usage.MOST_BODY + 16_384
    assert reader.result(complete=True) == RESPONSES
    cut_off = body[: body.index(b'"usage"') + 30]
    assert read([cut_off], stream=False, complete=False) is None


def test_tokens_are_all_kinds_together() -> None:
    assert ANTHROPIC.tokens == 4_437
    assert Usage().tokens == 0
