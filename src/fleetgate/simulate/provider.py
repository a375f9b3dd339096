"""A provider that refuses at its limit or at a rate, and goes on counting a call for a while after it has finished."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from fleetgate.core.usage import Reading, Usage
from fleetgate.simulate.provider_rates import RateBuckets
from fleetgate.simulate.scenario import NO_LIMIT, ProviderScenario

MINUTE: Final = 60_000
NETWORK_MS: Final = (30, 81)  # from a grant to the arrival of the call
HEADERS_MS: Final = {"soon": (400, 1_501), "late": (2_000, 5_001)}  # from there to the beginning of the answer


class SimulatedProvider:
    """The provider's side of the story. Asked in the order of time."""

    def __init__(self, about: ProviderScenario, until: int) -> None:
        self.about = about
        self.counted: list[int] = []  # heap: until when each call is counted
        self.slowed_until = 0
        self._others = _others(about, until)
        self.changes = _room(about, self._others, until)  # (when, slots that are there for us)
        self.room = self.changes[0][1]
        self.has_limit = any(limit < NO_LIMIT for _, limit in about.limit)
        self.rates = RateBuckets([rate.rate() for rate in about.rates], 0)
        self.served = Usage()

    def count(self, now: int) -> int:
        counted = self.counted
        while counted and counted[0] <= now:
            heappop(counted)
        return len(counted)

    def told(self, now: int) -> int:
        """What the provider itself says is in flight: it counts everybody on the account."""
        return self.count(now) + _at(self._others, now)

    def takes(self, now: int) -> bool:
        return self.count(now) < self.room

    def readings(self, now: int) -> tuple[Reading, ...]:
        """Its rates, as the headers of a response that leaves now report them."""
        return tuple(
            Reading(rate.unit, rate.amount, state.remaining, state.full_ms, int(rate.per_s * 1000))
            for state in self.rates.states(now)
            for rate in (state.rate,)
        )

    def rate_used(self, until: int) -> float:
        """The part of the most used rate that was served, of all that was there up to then, in percent."""
        parts = [
            self.served.amount(rate.unit) / (bucket.burst + bucket.amount * until / bucket.per_ms)
            for rate, bucket in self.rates.buckets.items()
        ]
        return 100 * max(parts, default=0.0)

    def overloaded(self, now: int) -> bool:
        """Whether it refuses every call now, ours and those of others."""
        every = int(self.about.overload_every_min * MINUTE)
        return every > 0 and now >= every and now % every < self.about.overload_s * 1000

    def starts(self, finish: int, lag_ms: int) -> None:
        heappush(self.counted, finish + lag_ms)

    def refuses(self, now: int) -> None:
        if self.about.slowed != 1:
            self.slowed_until = now + int(self.about.slowed_min * MINUTE)

    def slowed(self, service_ms: int) -> int:
        """How long a call takes while refusals make all of them slower."""
        return int(service_ms * self.about.slowed)

    def slot_ms(self, until: int) -> int:
        """Slots times milliseconds that were there for us up to then."""
        total = 0
        ends = [at for at, _ in self.changes[1:]] + [until]
        for (at, room), end in zip(self.changes, ends, strict=True):
            total += room * max(min(end, until) - at, 0)
        return total


def changes_of(about: ProviderScenario, minutes: float) -> list[float]:
    """The minutes at which the slots that are there for us change, and 0."""
    until = int(minutes * MINUTE)
    rooms = _room(about, _others(about, until), until)
    changed = [at for (at, room), (_, before) in zip(rooms[1:], rooms, strict=False) if room != before and at < until]
    return [at / MINUTE for at in [0, *changed]]


def _others(about: ProviderScenario, until: int) -> list[tuple[int, int]]:
    """When the slots change that others on the account take, from 0 on."""
    others = [(0, 0)]
    every = int(about.others_every_min * MINUTE)
    start = 0
    while about.others and start <= until:
        others += [(start + int(minute * MINUTE), slots) for minute, slots in about.others]
        start += every or until + 1
    return others


def _room(about: ProviderScenario, others: list[tuple[int, int]], until: int) -> list[tuple[int, int]]:
    """When the slots that are there for us change, from 0 on."""
    limits = [(int(minute * MINUTE), limit) for minute, limit in about.limit]
    moments = sorted({at for at, _ in [*limits, *others] if at <= until})
    return [(at, max(_at(limits, at) - _at(others, at), 0)) for at in moments]


def _at(steps: list[tuple[int, int]], now: int) -> int:
    return next(value for at, value in reversed(steps) if at <= now)
