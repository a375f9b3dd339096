"""The proxy while the store is away: requests are held, then answered 503 in the provider's shape (rule Q2)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fleetgate.testing.provider import FakeProvider
from tests.proxy.proxied import Proxied

CAP = "fake = { cap = 4, cooldown = 0 }"
DATABASE = ("fleetgate.db", "fleetgate.db-wal")


def take_away(home: Path) -> None:
    """A store that cannot be used, with what was in it kept aside."""
    for name in DATABASE:
        (home / name).rename(home / f"{name}.aside")
    (home / "fleetgate.db").write_bytes(b"this is no database" * 100)


def bring_back(home: Path) -> None:
    for name in DATABASE:
        (home / f"{name}.aside").rename(home / name)


def test_q2_a_request_is_held_while_the_store_is_away(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider() as provider:
        gate = proxied(provider, requests=CAP)
        assert gate.chat().status == 200
        take_away(gate.home)
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(gate.chat)
            gate.wait_until(lambda: gate.request("GET", "/readyz").status == 503, "the service knows")
            assert not asked.done()
            bring_back(gate.home)
            assert asked.result(30).status == 200


def test_q2_a_store_that_stays_away_is_a_503_in_the_providers_shape(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider() as provider:
        gate = proxied(provider, requests=CAP, fake='hold = "1s"')
        assert gate.chat().status == 200
        take_away(gate.home)
        answer = gate.chat()
        assert answer.status == 503
        assert "fleetgate.db" in answer.json["error"]["message"]
        assert answer.json["error"]["type"]
        bring_back(gate.home)
