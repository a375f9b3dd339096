"""Account sets of any shape, through the real proxy (rules Z1 to Z5).

Each shape has two to eight accounts with limits of 1 to 20, some in `use` and some in `then`, and more conversations
than slots. Midway some accounts break: the plan is used up, the key is revoked, or one model is refused.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise

import pytest
from msgspec import Struct

from fleetgate.testing import FakeProvider, Fault
from tests.proxy.proxied import Proxied
from tests.proxy.test_account_sets import LONG_S, SHORT_S, USED_UP, Fleet, run_full

MOST_SLOTS = 40
FAULTS = {
    "used up": USED_UP,
    "revoked": Fault(status=401, times=100_000),
    "model refused": Fault(status=429, retry_after_s=60, model="claude-y", times=100_000),
}


class Shape(Struct):
    """A set of accounts, and how some of them break. What stays has at least half of the slots."""

    limits: dict[str, int]
    used: int  # how many are in `use`
    choose: str
    clients: int
    broken: dict[str, str]

    @classmethod
    def at_random(cls, seed: int) -> Shape:
        chance = random.Random(seed)
        number = chance.randint(2, 8)
        limits = {f"a{each}": chance.randint(1, 20) for each in range(number)}
        while sum(limits.values()) > MOST_SLOTS:
            largest = max(limits, key=lambda name: limits[name])
            limits[largest] = max(limits[largest] // 2, 1)
        slots = sum(limits.values())
        broken: dict[str, str] = {}
        for name in chance.sample(sorted(limits), number - 1):
            if sum(limits[each] for each in (*broken, name)) <= slots // 2:
                broken[name] = chance.choice(sorted(FAULTS))
        clients = round(slots * chance.uniform(1.5, 2.5)) + 1
        return cls(limits, chance.randint(1, number), chance.choice(["most-left", "first"]), clients, broken)

    def config(self, found: dict[str, FakeProvider]) -> str:
        names = list(self.limits)
        use, then = json.dumps(names[: self.used]), json.dumps(names[self.used :])
        tables = [
            f'[providers."anthropic@{name}"]\nbase_url = "{each.url}"\napi = "anthropic"\n'
            f'key_env = "KEY_{name.upper()}"'
            for name, each in found.items()
        ]
        return "\n".join(
            [f'[accounts]\nanthropic = {{ use = {use}, then = {then}, choose = "{self.choose}" }}', *tables]
        )

    def requests(self) -> str:
        return "\n".join(
            f'"anthropic@{name}" = {{ cap = {limit}, cooldown = "20ms", on_429 = "pause" }}'
            for name, limit in self.limits.items()
        )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [4, 9, 12])
def test_z1_to_z5_a_set_of_any_shape_is_full_and_its_conversations_leave_accounts_that_break(
    proxied: Callable[..., Proxied], seed: int
) -> None:
    shape = Shape.at_random(seed)
    print(shape)
    with ExitStack() as stack:
        found = {
            name: stack.enter_context(FakeProvider(limit=limit, keys=[f"key-{name}"], latency_s=LONG_S))
            for name, limit in shape.limits.items()
        }
        keys = {f"KEY_{name.upper()}": f"key-{name}" for name in found}
        gate = proxied(found["a0"], requests=shape.requests(), more=shape.config(found), **keys)
        fleet = Fleet(gate.url, shape.clients, ("claude-x", "claude-y"))
        used: list[int] = []
        broke_at = 0.0

        async def steps() -> None:
            nonlocal broke_at
            used.extend(await run_full(found, 4.0))
            for name, how in shape.broken.items():
                found[name].script(FAULTS[how])
            broke_at = time.monotonic()
            await asyncio.sleep(3.0)

        asyncio.run(fleet.run(steps))
        before = fleet.homes(until=broke_at)
        part = sum(used) / len(used) / sum(shape.limits.values())
        switches = sum(one != other for homes in before.values() for one, other in pairwise(homes))
        assert set(fleet.statuses) == {200}
        assert part >= 0.95
        assert switches == 0
        assert sum(each.stats.refused for each in found.values()) == 0

        stranded = {talk for talk, homes in before.items() if homes[-1] in shape.broken}
        moved = {
            talk: min((at for at, each, _ in fleet.calls if each == talk and at > broke_at + SHORT_S), default=1e18)
            for talk in stranded
        }
        slowest = max(moved.values(), default=broke_at) - broke_at - SHORT_S
        print(f"used {part:.1%}; {len(stranded)} conversations moved, the last after {slowest:.2f} s")
        assert stranded
        assert slowest <= 2.0 + SHORT_S
        whole = set(shape.limits) - set(shape.broken)
        others = {talk: homes for talk, homes in fleet.homes(since=broke_at).items() if before[talk][-1] in whole}
        assert all(set(homes) == {before[talk][-1]} for talk, homes in others.items()), "others were pushed out"
