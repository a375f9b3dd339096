"""Inputs of the fuzzer (`tools/fuzz_front.py`): a client's bytes mean the same however they are divided into pieces."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.front.split_requests import check
from tests.front.test_connection import SMUGGLED, STRANGE_LINES

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
HEAD = b"POST /first?a=b HTTP/1.1\r\nhost: x\r\n"
NEXT = b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n"


def test_every_input_that_the_fuzzer_kept_means_the_same_in_pieces() -> None:
    assert CORPUS
    for file in CORPUS:
        data = file.read_bytes()
        for step in (0, 1, 6, 63):
            check(bytes([step]) + data[1:])


@pytest.mark.parametrize("step", [0, 1, 2, 3, 4, 10, 40])
def test_requests_that_others_may_read_differently_mean_the_same_in_pieces(step: int) -> None:
    for rest in SMUGGLED.values():
        check(bytes([step]) + HEAD + rest + NEXT)
    for line in STRANGE_LINES.values():
        check(bytes([step]) + line + NEXT)
    check(bytes([step]) + NEXT * 3 + HEAD + b"content-length: 5\r\n\r\nhello" + NEXT)
    check(bytes([step]) + HEAD + b"transfer-encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nt: u\r\n\r\n" + NEXT)
    check(bytes([step]) + HEAD + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\nhi" + NEXT)
