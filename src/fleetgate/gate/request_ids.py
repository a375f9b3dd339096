"""Ids of requests: short enough to type, random enough that two never meet.

Ten characters of 32, so fifty random bits. The alphabet leaves out what is misread: 0 and o, 1 and l.
"""

from __future__ import annotations

from collections.abc import Iterable

from fleetgate.log.random_bytes import random_bytes

ALPHABET = "23456789abcdefghijkmnpqrstuvwxyz"
LENGTH = 10
LEAST = 4  # characters of the beginning that stand for an id: fewer would too often mean another one

# A byte has 256 values and the alphabet divides them evenly, so that no character is more likely than another.
_TABLE = ALPHABET.encode() * (256 // len(ALPHABET))


def new_id() -> str:
    """A new random id."""
    return random_bytes(LENGTH).translate(_TABLE).decode()


def begun_by(start: str, idents: Iterable[str]) -> list[str]:
    """The ids that a user may mean who typed the beginning of one."""
    return sorted(ident for ident in idents if ident.startswith(start)) if len(start) >= LEAST else []
