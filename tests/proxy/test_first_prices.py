"""The first start of a service, without prices yet: calls wait for them, and nothing else does (rule U3)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleetgate.core.usage import Usage
from fleetgate.testing.provider import FakeProvider
from tests.api.served import Answer
from tests.proxy.proxied import CHAT, Proxied

# A package of prices that takes as long to import as the test wants. A million tokens of output cost $50.
PACKAGE = """
import os, time
from types import SimpleNamespace as S

def get_snapshot():
    open({folder!r} + "/asked", "w").close()
    while not os.path.exists({folder!r} + "/go"):
        time.sleep(0.01)
    if os.path.exists({folder!r} + "/broken"):
        raise SystemExit("the package is broken")
    price = S(input_mtok=0, output_mtok=50, cache_read_mtok=None, cache_write_mtok=None)
    models = [S(match=S(starts_with=""), prices=price)]
    return S(providers=[S(id="openai", models=models, fallback_model_providers=None)])
"""
BUDGET = """
[budgets]
"project:web" = { usd = 1, per = "day", estimate = "max" }
"""
PATH, BODY = "/p/web/openai/v1/chat/completions", {**CHAT, "max_tokens": 11_000}  # 55 cents


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(usage=Usage(input=7, output=11_000)) as provider:
        yield provider


@pytest.fixture
def gate(tmp_path: Path, provider: FakeProvider) -> Iterator[Proxied]:
    """A service that has no table of prices, and does not get one before `go` exists."""
    package = tmp_path / "path" / "genai_prices"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "data.py").touch()
    (package / "data_snapshot.py").write_text(PACKAGE.format(folder=str(tmp_path)))
    path = os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH", "")]))
    gate = Proxied(tmp_path, provider, more=BUDGET, PYTHONPATH=path)
    gate.home.mkdir(mode=0o700)
    with gate:
        gate.wait_until((tmp_path / "asked").exists, "a child reads the package")
        yield gate
        (tmp_path / "go").touch()


def call(gate: Proxied) -> Answer:
    return gate.chat(PATH, BODY, x_fleetgate_hold="1s")


def costs(gate: Proxied) -> list[int | None]:
    return [event["usage"].get("cost_usd") for event in gate.events("released") if event.get("usage")]


def test_V2_calls_wait_for_the_prices_so_that_no_budget_of_dollars_is_exceeded(
    tmp_path: Path, gate: Proxied, provider: FakeProvider
) -> None:
    with ThreadPoolExecutor(6) as threads:
        answers = [threads.submit(call, gate) for _ in range(5)]
        gone = gate.begin(BODY, PATH)
        for _ in range(10):
            assert gate.get("/readyz").status == 200, "the service itself does not wait"
            assert gate.lease().status == 201
        gone.close()
        assert not any(each.done() for each in answers)
        assert provider.stats.calls == 0
        (tmp_path / "go").touch()
        statuses = sorted(each.result().status for each in answers)
    assert statuses == [200, 429, 429, 429, 429]
    assert provider.stats.calls == 1
    gate.wait_until(lambda: costs(gate) == [0.55], "the call has its cost")
    assert (gate.home / "prices.json").stat().st_mode & 0o777 == 0o644
    gate.kill()
    (tmp_path / "asked").unlink()
    gate.start()
    assert call(gate).status == 429, "the cost is in the log"
    assert not (tmp_path / "asked").exists(), "the table was kept"


def test_U3_prices_that_cannot_be_read_leave_costs_unknown_and_calls_go_on(
    tmp_path: Path, gate: Proxied, provider: FakeProvider
) -> None:
    (tmp_path / "broken").touch()
    (tmp_path / "go").touch()
    assert call(gate).status == 200
    gate.wait_until(lambda: costs(gate) == [None], "the call has no cost")
    process = gate.process
    assert process is not None
    assert process.stderr is not None
    process.terminate()
    assert "the prices of genai-prices cannot be read: the package is broken" in process.stderr.read()
