"""Ids are short, typed without mistakes, and never the same twice."""

from __future__ import annotations

import os
from collections import Counter

from fleetgate.gate import request_ids


def test_an_id_is_ten_characters_that_nobody_misreads() -> None:
    for _ in range(1000):
        made = request_ids.new_id()
        assert len(made) == 10
        assert set(made) <= set("abcdefghijkmnpqrstuvwxyz23456789")


def test_ids_do_not_repeat() -> None:
    assert len({request_ids.new_id() for _ in range(100_000)}) == 100_000


def test_every_random_byte_maps_to_each_character_equally_often() -> None:
    mapped = Counter(bytes(range(256)).translate(request_ids._TABLE))
    assert set(mapped.values()) == {8}
    assert len(mapped) == len(request_ids.ALPHABET) == 32


def test_ids_after_a_fork_differ() -> None:
    """What is left over of the random bytes that a process asked for is not given out by two."""
    request_ids.new_id()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, request_ids.new_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    assert os.read(reader, 100).decode() != request_ids.new_id()
    os.close(reader)
