"""Notices that wake processes on other machines, through the shared log.

A notice is one short text for all listeners. For each process to be woken it has a letter for the reason, and a
checksum of the address where the process waits. A process that finds its own checksum wakes up; two with the same
checksum wake up together, which does no harm.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fleetgate.gate.liveness import process_identity

ALL = "*"  # a notice may have been missed: every process looks
_LONGEST = 7000  # PostgreSQL takes 8000 bytes
_LETTERS = {b"granted": "g", b"left": "l", b"due": "d", b"ask": "a", b"stop": "s"}
_MESSAGES = {letter: message for message, letter in _LETTERS.items()}


class Wake(NamedTuple):
    """A process to be woken after the commit."""

    address: str
    message: bytes
    holder: str


def elsewhere(wakes: Sequence[Wake]) -> list[Wake]:
    """The wakes for other machines and containers."""
    return [wake for wake in wakes if process_identity.local_pid(wake.holder) is None]


def mark(host: str, address: str) -> str:
    """The checksum of the address where a process waits."""
    return f"{crc32(f'{host}|{address}'.encode()):08x}"


def written(wakes: Iterable[Wake]) -> str:
    """The notice for these processes."""
    marks = {
        _LETTERS.get(wake.message, "g") + mark(process_identity.host_of(wake.holder), wake.address) for wake in wakes
    }
    notice = " ".join(sorted(marks))
    return notice if len(notice) <= _LONGEST else ALL


def heard(notices: Iterable[str], own: str) -> list[bytes]:
    """The messages in these notices for the process with this mark."""
    messages = []
    for notice in notices:
        if notice == ALL:
            messages.append(b"look")
            continue
        for word in notice.split():
            if word[1:] == own:
                messages.append(message_of(word))
    return messages


def message_of(word: str) -> bytes:
    """Why a process is woken: the letter before its mark."""
    return _MESSAGES.get(word[:1], b"look")
