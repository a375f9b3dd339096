"""Checksums of each commit and of each value beside the log, to detect and report a flipped byte.

A commit's checksum is part of its ID, `<random>-<checksum>`: every store has it, even one that was copied from another,
and tables need no change. Older commits have an ID without a checksum, and are accepted unchecked.
"""

from __future__ import annotations

from zlib import crc32

from fleetgate.log.random_bytes import random_bytes

_RANDOM = 6  # bytes
_PLAIN_CHARS = 16  # of an id without a checksum
_CHARS = 2 * _RANDOM + 1 + 8


def new_id(number: int, at: int, seq: int, due: int | None, events: bytes) -> str:
    """An id for this commit, by which a replaced log is noticed, and a damaged one."""
    random = random_bytes(_RANDOM).hex()
    return f"{random}-{_of_commit(random, number, at, seq, due, events):08x}"


def is_whole(number: object, id: object, at: object, seq: object, due: object, events: object) -> bool:
    """Whether a commit is as it was written, as far as its id can tell. What is read may be of any type."""
    if type(number) is not int or type(at) is not int or type(seq) is not int or type(id) is not str:
        return False
    if type(events) is not str or (due is not None and type(due) is not int):
        return False
    if len(id) == _PLAIN_CHARS:
        return id.isalnum()
    random, dash, checksum = id.partition("-")
    if not dash or len(id) != _CHARS:
        return False
    return checksum == f"{_of_commit(random, number, at, seq, due, events.encode()):08x}"


def of_value(table: str, key: str, value: bytes) -> int:
    """The checksum of a value beside the log."""
    return crc32(value, crc32(f"{table} {key} ".encode()))


def _of_commit(random: str, number: int, at: int, seq: int, due: int | None, events: bytes) -> int:
    return crc32(events, crc32(f"{random} {number} {at} {seq} {due} ".encode()))
