"""The reader of a passing response: one decoded copy for errors and usage, in bounded memory (rule U1)."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import pytest

from fleetgate.core.usage import PARTIAL, RESPONSE, Usage
from fleetgate.proxy.calls.response_reader import ResponseReader

USAGE = {"prompt_tokens": 7, "completion_tokens": 3}
BODY = json.dumps({"choices": [], "usage": USAGE}).encode()
ERROR = b'data: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
STREAM = b'data: {"choices":[]}\n\n' * 9 + b"data: " + BODY + b"\n\n"


def _usage(data: bytes, encoding: str = "", *, stream: bool, complete: bool = True) -> Usage | None:
    reader = ResponseReader("openai", "m", encoding, stream=stream)
    for start in range(0, len(data), 1000):
        reader.feed(data[start : start + 1000])
    if complete:
        reader.end()
    return reader.usage()


def test_U1_a_compressed_response_is_read_in_pieces() -> None:
    known = Usage(1, 7, 0, 0, 3, source=RESPONSE)
    assert _usage(gzip.compress(BODY), "gzip", stream=False) == known
    assert _usage(gzip.compress(STREAM * 500), "gzip", stream=True) == known


def test_U1_a_response_that_did_not_end_is_partial() -> None:
    assert _usage(STREAM, stream=True, complete=False) == Usage(1, 7, 0, 0, 3, source=PARTIAL)
    assert _usage(BODY[:-2], stream=False, complete=False) is None


def test_U1_an_error_in_a_stream_leaves_what_was_known() -> None:
    assert _usage(STREAM + ERROR, stream=True) == Usage(1, 7, 0, 0, 3, source=PARTIAL)
    assert _usage(ERROR, stream=True) is None


def test_V3_an_error_with_the_status_of_a_success_used_nothing() -> None:
    assert _usage(b'{"error":{"message":"Provider returned error","code":502}}', stream=False) == Usage(source=RESPONSE)


def test_U1_what_cannot_be_decoded_is_not_known() -> None:
    assert _usage(BODY, "no-such-encoding", stream=False) is None
    assert _usage(b"not gzip" + BODY, "gzip", stream=False) is None
    cut = gzip.compress(STREAM)[:-40] + b"x" * 40
    assert _usage(cut, "gzip", stream=True) in (None, Usage(1, 7, 0, 0, 3, source=PARTIAL))


DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":"%s"}\n\n' % (b"some words " * 9)
START = b'event: message_start\ndata: {"message":{"usage":{"input_tokens":7,"output_tokens":1}}}\n\n'
LAST = b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":3}}\n\nevent: message_stop\n\n'
COMPLETED = (
    b'data: {"type":"response.completed","response":{"output":["%s"],"usage":{"input_tokens":7,"output_tokens":3},'
    b'"metadata":{}}}\n\n'
)


@pytest.mark.parametrize("number", [0, 1, 50, 170, 171, 172, 345, 1000, 5000])
@pytest.mark.parametrize("size", [1, 60, 1000, 4096, 65_536, 10_000_000])
def test_U1_the_beginning_and_the_end_of_a_stream_are_read_however_long_it_is(number: int, size: int) -> None:
    data = START + DELTA * number + LAST
    if size == 1 and number > 171:
        return  # slow, and no other case
    reader = ResponseReader("anthropic", "m")
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
    reader.end()
    assert reader.outcome is None
    assert reader.usage() == Usage(1, 7, 0, 0, 3, source=RESPONSE)


@pytest.mark.parametrize("length", [10, 20_000, 200_000, 3_000_000])
@pytest.mark.parametrize("size", [1000, 100_000])
def test_U1_a_last_event_that_repeats_the_whole_answer_is_read_at_its_end(length: int, size: int) -> None:
    data = DELTA * 300 + COMPLETED % (b"x" * length)
    reader = ResponseReader("openai", "m")
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
    reader.end()
    assert reader.usage() == Usage(1, 7, 0, 0, 3, source=RESPONSE)


@pytest.mark.parametrize("number", [0, 1, 60, 500, 3000])
def test_U1_nulls_in_all_events_but_the_last_are_no_usage(number: int) -> None:
    reader = ResponseReader("openai", "m")
    for _ in range(number):
        reader.feed(b'data: {"choices":[{"delta":{"content":"word"}}],"usage":null,"obfuscation":"abc"}\n\n')
    reader.feed(b"data: " + BODY + b"\n\ndata: [DONE]\n\n")
    reader.end()
    assert reader.usage() == Usage(1, 7, 0, 0, 3, source=RESPONSE)


@pytest.mark.parametrize("number", [0, 100, 1000])
def test_an_error_at_the_end_of_a_stream_is_found_however_long_it_is(number: int) -> None:
    reader = ResponseReader("anthropic", "m")
    for _ in range(number):
        reader.feed(DELTA)
    reader.feed(ERROR)
    reader.end()
    assert reader.outcome is not None
    assert reader.outcome.kind == "overloaded"


def test_U1_a_client_that_leaves_a_long_stream_pays_for_what_was_known() -> None:
    reader = ResponseReader("anthropic", "m")
    reader.feed(START)
    for _ in range(1000):
        reader.feed(DELTA)
    assert reader.usage() == Usage(1, 7, 0, 0, 1, source=PARTIAL)


def test_U1_a_bomb_is_not_looked_at_and_takes_no_memory() -> None:
    bomb = gzip.compress(b"x" * 60_000_000 + BODY)
    tracemalloc.start()
    try:
        reader = ResponseReader("openai", "m", "gzip", stream=False)
        reader.feed(bomb)
        reader.end()
        assert reader.usage() is None
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
