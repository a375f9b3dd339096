"""Seats that are free here, and perhaps not yet at the provider."""

from __future__ import annotations

from random import Random

from headgate.core.limits.ghosts import Ghosts


def counted(releases: list[tuple[int, int]], now: int, youngest: int, oldest: int) -> tuple[int, int]:
    """The same by looking at every release."""
    some = [(at, seats) for at, seats in releases if now - oldest < at <= now - youngest]
    return (sum(seats for _, seats in some), now - some[-1][0]) if some else (0, 0)


def test_p4_ghosts_are_counted_as_by_looking_at_every_release():
    random = Random(4)
    for _ in range(200):
        ghosts, now, lag = Ghosts(), 0, 500
        releases: list[tuple[int, int]] = []
        for _ in range(100):
            now += random.choice((0, 1, 7, 60, 400, 3_000))
            match random.randrange(8):
                case 0:
                    lag = random.choice((0, 500, 2_000))
                case 1:
                    releases[:] = [each for each in releases if each[0] > now - 3_000]
                    ghosts.forget()
                case 2:
                    releases = list(releases)  # as after a reload
                case _:
                    releases.append((now, random.randint(1, 3)))
            oldest = max(2_000, lag + 1_000)
            assert ghosts.count(releases, now, lag, oldest) == counted(releases, now, lag, oldest)
