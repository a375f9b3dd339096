"""The service is killed in the middle of calls: usage is counted once, by the provider's own count (rule U5).

Each call has its own number of input tokens, so the history shows which calls were counted, and how often.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.client import HTTPException
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fleetgate.core.usage import ESTIMATE, PARTIAL, RESPONSE, Usage
from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.server import SeenRequest
from tests.api.served import Served
from tests.postgres_server import Server
from tests.postgres_stores import fresh_store

pytestmark = pytest.mark.processes

CALLS = 500
AT_ONCE = 12
KILLS = (60, 170, 330)  # after so many calls that reached the provider
OUTPUT = 4
CONFIG = """
[budgets]
"project:default" = {{ tokens = 1_000_000_000, per = "day" }}

[providers.fake]
base_url = "{url}/v1"
"""


def usage_of(request: SeenRequest) -> Usage:
    """The call says how many tokens it has."""
    return Usage(input=int(json.loads(request.body)["messages"][0]["content"]), output=OUTPUT)


class Clients:
    """Make calls until all are made, whatever happens to the service; each call is made once."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._numbers = count(1)
        self._lock = threading.Lock()
        self.answered: set[int] = set()  # calls whose whole answer came
        self._threads = [threading.Thread(target=self._call, daemon=True) for _ in range(AT_ONCE)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()

    def _call(self) -> None:
        while True:
            with self._lock:
                number = next(self._numbers)
            if number > CALLS:
                return
            body: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": str(number)}]}
            if number % 2:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            self._wait_for_the_service()
            try:
                answer = self._served.request("POST", "/fake/v1/chat/completions", body, token="", x_api_key="a-key")
            except (OSError, HTTPException):
                continue  # it was killed meanwhile
            if answer.status == 200 and (not number % 2 or b"[DONE]" in answer.body):
                self.answered.add(number)

    def _wait_for_the_service(self) -> None:
        self._served.wait_until(self._answers, "the service is there")

    def _answers(self) -> bool:
        try:
            return self._served.get("/healthz").status == 200
        except (OSError, HTTPException):
            return False


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_u5_usage_is_what_the_provider_served_though_the_service_is_killed(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environ = {}
    if store == "postgres":
        server: Server = request.getfixturevalue("postgres")
        environ["FLEETGATE_STORE"] = fresh_store(server)
    with FakeProvider(usage=usage_of, latency_s=(0.005, 0.03), chunk_delay_s=(0.0, 0.005)) as provider:
        served = Served(tmp_path, CONFIG.format(url=provider.url), **environ)
        with served:
            clients = Clients(served)
            clients.start()
            for kill_at in KILLS:
                served.wait_until(lambda at=kill_at: provider.stats.calls >= at, "enough calls were made")
                served.kill()
                served.start()
            clients.join()
            served.wait_until(lambda: not served.get("/v1/leases").json["leases"], "nothing is held", 120)
            served.wait_until(lambda: provider.stats.active == 0, "the provider is idle")
            total = provider.served.total
            sums = {line["source"]: line for line in served.ok("GET", "/v1/usage?by=source&since=2h")["rows"]}
            printed = json.loads(served.cli("usage", "--by", "source", "--since", "2h", "--json").stdout)
            of_runs = served.ok("GET", "/v1/usage?by=run&since=2h")
            events = served.ok("GET", "/v1/history?limit=10000&types=released,reclaimed")["events"]

    assert {line["source"]: line for line in printed["rows"]} == sums
    assert of_runs["total"] == printed["total"], "the history and the sums differ"
    seen = [event["usage"] for event in events if event.get("usage")]
    known = Counter(usage["input"] for usage in seen if usage["source"] in (RESPONSE, PARTIAL))
    assert set(known.values()) == {1}, "a call counts twice"
    exact, nothing = sums[RESPONSE], {"calls": 0, "input": 0}
    partial, estimated = sums.get(PARTIAL, nothing), sums.get(ESTIMATE, nothing)
    assert len(known) == exact["calls"] + partial["calls"]
    assert sum(known) == exact["input"] + partial["input"]
    assert exact["output"] == exact["calls"] * OUTPUT
    unknown = total.calls - len(known)  # what the provider served and no process lived to see the end of
    assert 0 <= unknown <= estimated["calls"], "a call is missing, or one was counted that was not served"
    assert estimated["calls"] <= len(KILLS) * AT_ONCE, "more was estimated than was in flight"
    others = sorted(set(range(1, CALLS + 1)) - set(known), reverse=True)
    assert sum(known) <= total.input <= sum(known) + sum(others[:unknown])
    assert len(clients.answered - set(known)) <= estimated["calls"]
