"""Budgets through the real proxy: never more than the amount, by the provider's own count (rules V2, V3, V7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fleetgate.core.usage import Usage
from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.script import Fault
from fleetgate.testing.server import SeenRequest
from tests.postgres_server import Server
from tests.postgres_stores import fresh_store
from tests.proxy.proxied import CHAT, MESSAGES, Proxied

# A thousand tokens of output are five cents.
MORE = """
[budgets]
"project:web" = { usd = 1, per = "day", estimate = "max" }
[prices]
fake = { input = 0, output = 50 }
anthropic = { input = 0, output = 50 }
"""
HOLD = 'hold = "1s"'
CALLS = {
    "chat": ("/p/web/fake/v1/chat/completions", {**CHAT, "max_tokens": 1000}),
    "messages stream": ("/p/web/anthropic/v1/messages", {**MESSAGES, "max_tokens": 1000, "stream": True}),
}


def served_dollars(provider: FakeProvider) -> float:
    """What the provider would bill."""
    return provider.served.total.output * 50 / 10**6


def budget(gate: Proxied) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = [each for each in gate.get("/v1/budgets").json["budgets"] if each["name"] == "project:web usd/day"]
    return found


def forty(path: str, body: object, *gates: Proxied) -> Counter[int]:
    """Forty calls at once, spread over the services; how many got which status."""
    with ThreadPoolExecutor(40) as threads:
        answers = threads.map(lambda number: gates[number % len(gates)].chat(path, body), range(40))
        return Counter(answer.status for answer in answers)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def services(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[FakeProvider], list[Proxied]]]:
    """Starts the services of one gate: one on SQLite, two on PostgreSQL, where `config apply` brings the budgets in."""
    with ExitStack() as stack:

        def start(provider: FakeProvider) -> list[Proxied]:
            if request.param == "sqlite":
                return [stack.enter_context(Proxied(tmp_path, provider, fake=HOLD, more=MORE))]
            server: Server = request.getfixturevalue("postgres")
            store = fresh_store(server)
            gates = []
            for name in ("one", "two"):
                (tmp_path / name).mkdir()
                gate = Proxied(tmp_path / name, provider, fake=HOLD, more=MORE, FLEETGATE_STORE=store)
                gates.append(stack.enter_context(gate))
            applied = gates[0].cli("config", "apply")
            assert applied.returncode == 0, applied.stderr
            return gates

        yield start


@pytest.mark.parametrize("call", CALLS)
def test_V2_forty_parallel_calls_of_five_cents_never_cost_more_than_the_dollar_there_is(
    services: Callable[[FakeProvider], list[Proxied]], call: str
) -> None:
    with FakeProvider(usage=Usage(input=7, output=1000), latency_s=0.2) as provider:
        gates = services(provider)
        statuses = forty(*CALLS[call], *gates)
        for gate in gates:
            gate.check_nothing_is_held()
        assert served_dollars(provider) == 1.0
        assert statuses == {200: 20, 429: 20}
        for gate in gates:
            now = budget(gate)
            assert (now["used"], now["reserved"], now["free"]) == (1, 0, 0)
            reached = [event["percent"] for event in gate.events("budget_reached")]
            assert reached == [50, 80, 100]


def test_V2_what_calls_did_not_use_is_left_for_others_and_the_dollar_still_holds(tmp_path: Path) -> None:
    def usage(seen: SeenRequest) -> Usage:
        return Usage(input=7, output=100 + 90 * (len(provider.seen) % 10))

    with (
        FakeProvider(usage=usage, latency_s=0.05) as provider,
        Proxied(tmp_path, provider, fake='hold = "3s"', more=MORE) as gate,
    ):
        statuses = forty(*CALLS["chat"], gate)
        gate.check_nothing_is_held()
        spent = served_dollars(provider)
        assert spent <= 1.0
        assert statuses[200] > 20, statuses
        assert round(budget(gate)["used"], 6) == round(spent, 6)


def test_V3_calls_that_the_provider_refuses_cost_nothing(tmp_path: Path) -> None:
    with (
        FakeProvider(usage=Usage(input=7, output=1000)) as provider,
        Proxied(tmp_path, provider, fake=HOLD, more=MORE) as gate,
    ):
        provider.script(*[Fault(status=400)] * 5)
        path, body = CALLS["chat"]
        assert [gate.chat(path, body).status for _ in range(5)] == [400] * 5
        gate.check_nothing_is_held()
        now = budget(gate)
        assert (now["used"], now["free"]) == (0, 1)


def test_V3_a_service_that_is_killed_loses_no_cent_of_what_was_reserved(tmp_path: Path) -> None:
    with FakeProvider(usage=Usage(input=7, output=1000), latency_s=60) as provider:
        gate = Proxied(tmp_path, provider, fake=HOLD, more=MORE)
        with gate:
            path, body = CALLS["chat"]
            connections = [gate.begin(body, path) for _ in range(15)]
            provider.wait_until(lambda stats: stats.active == 15, 60)
            assert budget(gate)["reserved"] == 0.75
            gate.kill()
            for connection in connections:
                connection.close()
            provider.latency_s = 0
            gate.start()
            gate.wait_until(lambda: budget(gate)["used"] == 0.75, "what was reserved counts as used")
            statuses = forty(path, body, gate)
            assert statuses == {200: 5, 429: 35}
            assert budget(gate)["free"] == 0
