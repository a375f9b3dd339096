"""Waking those who wait on other machines, where no datagram goes: through the log that all share.

What is told is one short line to all who listen: for each that is to be woken a letter for why, and a checksum of where
it waits. Whoever finds its own checksum wakes; two with the same one wake together, which harms nobody.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fleetgate.gate.liveness import process_identity

ALL = "*"  # something may have been missed: whoever hears this looks
_LONGEST = 7000  # PostgreSQL takes 8000 bytes
_LETTERS = {b"granted": "g", b"left": "l", b"due": "d", b"ask": "a"}
_MESSAGES = {letter: message for message, letter in _LETTERS.items()}


class Wake(NamedTuple):
    """A process to be woken after the commit."""

    address: str
    message: bytes
    holder: str


def elsewhere(wakes: Sequence[Wake]) -> list[Wake]:
    """Those of other machines and containers."""
    return [wake for wake in wakes if process_identity.local_pid(wake.holder) is None]


def mark(host: str, address: str) -> str:
    """The checksum of where somebody waits."""
    return f"{crc32(f'{host}|{address}'.encode()):08x}"


def written(wakes: Iterable[Wake]) -> str:
    """The line to tell."""
    marks = {
        _LETTERS.get(wake.message, "g") + mark(process_identity.host_of(wake.holder), wake.address) for wake in wakes
    }
    line = " ".join(sorted(marks))
    return line if len(line) <= _LONGEST else ALL


def heard(lines: Iterable[str], own: str) -> list[bytes]:
    """The messages in these lines for whoever has this mark."""
    messages = []
    for line in lines:
        if line == ALL:
            messages.append(b"look")
            continue
        for word in line.split():
            if word[1:] == own:
                messages.append(message_of(word))
    return messages


def message_of(word: str) -> bytes:
    """Why somebody is told: the letter before its mark."""
    return _MESSAGES.get(word[:1], b"look")
