"""The reader of a passing response: one decoded copy for errors and usage, in bounded memory (rule U1)."""

from __future__ import annotations

import gzip
import json
import tracemalloc

from fleetgate.core.usage import PARTIAL, RESPONSE, Usage
from fleetgate.proxy.response_reader import ResponseReader

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
