"""Streams in pieces: lines and end are the same however the output was cut, and memory stays small (rules R2, S2)."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetgate.signals.output_buffers import LINE_BYTES, Lines, OutputEnd

PIECES = st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([b"\n", b"a\nb", b"\n\n", b"word " * 9])))


def cut(pieces: list[bytes], longest: int) -> list[bytes | None]:
    lines = Lines(longest)
    found = [line for piece in pieces for line in lines.feed(piece)]
    return [*found, lines.unfinished()]


def test_r2_lines_come_as_soon_as_they_end():
    lines = Lines()
    assert lines.feed(b'{"a":1}\n{"b"') == [b'{"a":1}']
    assert lines.feed(b":2}") == []
    assert lines.unfinished() == b'{"b":2}'
    assert lines.feed(b"\n\n3") == [b'{"b":2}', b""]
    assert lines.unfinished() == b"3"


@given(PIECES, st.integers(1, 60))
def test_s2_how_output_is_cut_into_pieces_does_not_change_its_lines(pieces, longest):
    whole = b"".join(pieces)
    want = [line if len(line) <= longest else None for line in whole.split(b"\n")]
    assert cut(pieces, longest) == cut([whole], longest) == want
    assert cut([whole[at : at + 1] for at in range(len(whole))], longest) == want


def test_s2_a_line_that_is_too_long_is_passed_over_and_the_next_one_is_read():
    lines = Lines()
    found = [line for _ in range(40) for line in lines.feed(b"x" * 65_536)]
    assert lines.unfinished() is None
    found += lines.feed(b"yz\n" + b"x" * LINE_BYTES + b"\nthe next\n")
    assert found == [None, b"x" * LINE_BYTES, b"the next"]


@given(PIECES, st.integers(1, 60), st.integers(0, 80))
def test_s2_how_output_is_cut_into_pieces_does_not_change_its_end(pieces, size, offset):
    whole = b"".join(pieces)
    kept = max(0, len(whole) - size)
    offset = min(offset, len(whole))
    want = whole[offset:] if kept <= offset else b"\n".join(whole[kept:].split(b"\n")[1:])
    for cuts in (pieces, [whole], [whole[at : at + 1] for at in range(len(whole))]):
        ending = OutputEnd(size)
        for piece in cuts:
            ending.feed(piece)
        assert ending.whole_lines(offset) == want
        assert ending.seen == len(whole)


@pytest.mark.parametrize(
    "lengths", [[100], [5000], [32_767], [32_768], [65_536], [200_000], [40_000, 7], [99, 99, 65_536]]
)
def test_s2_the_end_of_a_long_output_is_its_end_whatever_the_size_of_its_pieces(lengths):
    whole = b"".join(b"line %d\n" % number for number in range(60_000))
    ending, rest = OutputEnd(100_000), whole
    for length in itertools.cycle(lengths):
        if not rest:
            break
        ending.feed(rest[:length])
        rest = rest[length:]
    assert ending.whole_lines() == whole[-100_000:].partition(b"\n")[2]


@pytest.mark.parametrize("length", [700, 65_536])
@pytest.mark.parametrize("kind", [Lines, lambda: OutputEnd(262_144)])
def test_s2_50_mb_in_one_line_are_read_in_little_memory(kind, length):
    reading = kind()
    tracemalloc.start()
    try:
        for _ in range(50_000_000 // length):
            reading.feed(bytes(length))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000
