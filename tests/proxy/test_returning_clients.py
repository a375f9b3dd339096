"""A client that gives up waiting and asks again keeps its age; none gets another's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from fleetgate.proxy import returning_clients
from fleetgate.proxy.returning_clients import ReturningClients
from tests.proxy.proxied import CHAT, Proxied

KEY = "x-api-key: mine\r\n"


def test_a_client_that_comes_back_has_the_place_that_it_left(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(requests="fake = { cap = 1, cooldown = 0 }")
    gate.provider.latency_s = 60
    with ExitStack() as clients:
        clients.enter_context(gate.begin(extra=KEY))
        gate.provider.wait_until(lambda stats: stats.active == 1, 60)
        first = gate.begin({**CHAT, "n": 1}, extra=KEY)
        (old,) = gate.wait_until(gate.tickets, "it waits")
        clients.enter_context(gate.begin({**CHAT, "n": 2}, extra=KEY))
        gate.wait_until(lambda: len(gate.tickets()) == 2, "both wait")
        first.close()
        gate.wait_until(lambda: len(gate.tickets()) == 1, "the first has left")
        clients.enter_context(gate.begin({**CHAT, "n": 1}, extra=KEY))
        gate.wait_until(lambda: len(gate.tickets()) == 2, "it is back")
        assert gate.tickets()[0]["since"] == old["since"], "before the other"
        clients.enter_context(gate.begin({**CHAT, "n": 1}, extra=KEY))
        gate.wait_until(lambda: len(gate.tickets()) == 3, "once more the same")
        assert [ticket["since"] for ticket in gate.tickets()].count(old["since"]) == 1, "a place is given back once"


def _request(**changed: Any) -> Any:
    """An exchange as far as a place is concerned."""
    data = changed.pop("data", b"{}")
    sessions = {b"session_id": changed.pop("session", b"s1")}
    sent = [*sessions.items(), (b"x-stainless-retry-count", b"%d" % id(changed))]
    said = {
        "candidates": {"m": None},
        "body": SimpleNamespace(kept=True, data=data),
        "since": 1000,
        "headers": SimpleNamespace(sent=sent, sessions=sessions),
        "route": SimpleNamespace(provider="fake"),
        **dict.fromkeys(("account", "secret", "client", "project", "access_key_name"), "a"),
        "trusted": True,
        "uses_set": False,
        "priority": 0,
        "method": "POST",
        "path": b"/v1/messages",
        "query": b"",
    }
    return SimpleNamespace(**{**said, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"secret": "another key"},
        {"access_key_name": "another access key"},
        {"account": "work"},
        {"client": "another run"},
        {"project": "blue"},
        {"trusted": False},
        {"session": b"s2"},
        {"data": b"[]"},
        {"path": b"/v1/other"},
        {"query": b"beta=true"},
        {"candidates": {}},
    ],
    ids=str,
)
def test_another_caller_or_another_request_gets_nothing(changed: dict[str, Any]) -> None:
    kept = ReturningClients()
    kept.keep(_request())
    assert kept.take(_request(**changed)) == 0
    assert kept.take(_request()) == 1000
    assert kept.take(_request()) == 0


def test_places_are_kept_for_a_while_and_no_more_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(returning_clients, "monotonic", lambda: now[0])
    kept = ReturningClients()
    for number in range(returning_clients.MOST + 10):
        kept.keep(_request(data=b"%d" % number))
    assert len(kept) == returning_clients.MOST
    now[0] = returning_clients.KEPT_S - 1
    assert kept.take(_request(data=b"5")) == 1000
    now[0] = returning_clients.KEPT_S
    assert kept.take(_request(data=b"6")) == 0
    kept.keep(_request())
    assert len(kept) == 1
