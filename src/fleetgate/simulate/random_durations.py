"""Random durations as integers of milliseconds, the same on every machine.

Each distribution is a table of 4096 quantiles; a draw is an index of 12 random bits. The generator is Python's own
(Mersenne Twister), whose bits are the same everywhere.
"""

from __future__ import annotations

from functools import cache
from math import exp, log
from random import Random
from statistics import NormalDist
from typing import Final

BITS: Final = 12
_SIZE: Final = 1 << BITS

Table = tuple[int, ...]


@cache
def lognormal(median_ms: int, sigma: float) -> Table:
    normal = NormalDist()
    return tuple(round(median_ms * exp(sigma * normal.inv_cdf((index + 0.5) / _SIZE))) for index in range(_SIZE))


@cache
def exponential(mean_ms: int) -> Table:
    return tuple(round(-mean_ms * log(1 - (index + 0.5) / _SIZE)) for index in range(_SIZE))


@cache
def uniform(low_ms: int, high_ms: int) -> Table:
    return tuple(low_ms + (high_ms - low_ms) * (2 * index + 1) // (2 * _SIZE) for index in range(_SIZE))


@cache
def mixed(parts: tuple[tuple[float, int], ...]) -> Table:
    """Fixed durations with their shares, which add up to 1."""
    table: list[int] = []
    share = 0.0
    for part, duration_ms in parts:
        share += part
        table += [duration_ms] * (round(share * _SIZE) - len(table))
    return tuple(table)


def stream(seed: int, name: str, number: int) -> Random:
    """A generator of its own for each use, so that one more draw here changes nothing there."""
    return Random(f"{seed}/{name}/{number}")  # a string is hashed the same everywhere
