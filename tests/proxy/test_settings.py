"""What the config and the client's own wishes do to a call (rules X2, X3, X5, H5)."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.script import Fault
from tests.proxy.proxied import CHAT, MESSAGES, Proxied
from tests.timed import within

BODY = b'{"stream": false, "model" : "m1",\n  "messages": [ {"role":"user", "content":"x"} ], "n" : 1}'


# Another provider.


def test_x3_a_fallback_may_be_at_another_provider(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider() as other:
        gate = proxied(
            more=f"""
            [providers.other]
            base_url = "{other.url}/api/v1"
            key_env = "OTHER_KEY"
            [providers.keyless]
            base_url = "{other.url}/v1"
            [fallback]
            "fake/m1" = ["nobody/x", "keyless/m1", "anthropic/m1", "other/vendor/m2"]
            """,
            OTHER_KEY="key-of-the-other",
        )
        gate.provider.script(Fault(status=429, retry_after_s=60))
        answer = gate.chat("/fake/v1/chat/completions?a=%20b", BODY, X_Custom="Some Value")
        assert answer.status == 200
        assert answer.headers["x-fleetgate-model"] == "other/vendor/m2"
        assert answer.headers["x-fleetgate-attempts"] == "2"
        [first], [second] = gate.provider.seen, other.seen
        assert first.body == BODY
        assert second.body == BODY.replace(b'"m1"', b'"vendor/m2"'), "byte for byte, but for the model"
        assert second.target == "/api/v1/chat/completions?a=%20b"
        assert second.headers["authorization"] == "Bearer key-of-the-other"
        assert "x-api-key" not in second.headers, "a key of the client's is the first provider's business alone"
        assert second.headers["host"] == other.url.removeprefix("http://")
        ours = {"host", "x-api-key", "content-length"}
        assert {name: first.headers[name] for name in first.headers.keys() - ours} == {
            name: second.headers[name] for name in second.headers.keys() - ours - {"authorization"}
        }


def test_x3_what_the_other_provider_refuses_is_its_own_affair(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider(keys=["another-key"]) as other:
        gate = proxied(
            more=f"""
            [providers.other]
            base_url = "{other.url}/v1"
            key_env = "OTHER_KEY"
            [fallback]
            "fake/m1" = ["other/m2"]
            """,
            OTHER_KEY="key-that-is-refused",
        )
        gate.provider.script(Fault(status=429, retry_after_s=60))
        assert gate.chat().status == 401
        backoffs = gate.get("/v1/backoffs").json["backoffs"]
        assert {backoff["key"].partition("/")[0].partition("@")[0] for backoff in backoffs} == {"fake", "other"}


# Elsewhere than on loopback.


def test_h5_elsewhere_than_on_loopback_a_call_needs_a_key(tmp_path: Path) -> None:
    with FakeProvider() as provider:
        gate = Proxied(tmp_path, provider, fake='key_env = "FAKE_KEY"', FAKE_KEY="key-of-the-config")
        try:
            gate.start("--host", "0.0.0.0", "--new-token")
            for path, body in (("/fake/chat/completions", CHAT), ("/anthropic/v1/messages", MESSAGES)):
                for headers in ({}, {"x_api_key": "fleetgate"}, {"Authorization": "Bearer fleetgate"}):
                    answer = gate.request("POST", path, body, token="", **headers)
                    assert answer.status == 401
                    assert "not on loopback" in answer.json["error"]["message"]
            assert gate.request("GET", "/fake/v1/models", token="").status == 401, "nor is anything else free"
            assert not provider.seen
            assert gate.chat().status == 200
            assert provider.seen[-1].headers["x-api-key"] == "key-of-a-client"
            assert gate.request("POST", "/fake/chat/completions", CHAT).status == 200, "or with Fleetgate's token"
            assert provider.seen[-1].headers["authorization"] == "Bearer key-of-the-config"
        finally:
            gate.kill()


# The config, read anew.


def _write(gate: Proxied, config: str) -> None:
    """As editors do."""
    new = gate.config.with_suffix(".new")
    new.write_text(config)
    new.replace(gate.config)


def test_c2_the_config_is_read_anew_while_calls_are_under_way(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider(chunks=2, chunk_delay_s=100) as old, FakeProvider() as new, ThreadPoolExecutor() as pool:
        gate = proxied(old, requests="fake = { cap = 1, cooldown = 0 }")
        before = gate.config.read_text()
        with gate.begin({**CHAT, "stream": True}) as streams:
            old.wait_until(lambda stats: stats.active == 1)
            assert b"200 OK" in streams.recv(65536)
            waits = pool.submit(gate.chat, x_api_key="")
            gate.wait_until(gate.tickets, "the second waits")
            more = f'\n[providers.fresh]\nbase_url = "{new.url}/v1"\n'
            _write(gate, before.replace(f"{old.url}/v1", f"{new.url}/v1").replace("cap = 1", "cap = 2") + more)
            assert waits.result().status == 200, "there is room for two now"
            gate.wait_until(lambda: gate.chat("/fresh/chat/completions").status == 200, "a new provider is there")
            assert gate.chat().status == 200
            assert new.stats.calls >= 2, "new calls go where the provider is now"
            assert old.stats.active == 1, "and the one under way goes on"
        old.wait_until(lambda stats: stats.active == 0)


# What a client asks for itself.


def test_x2_a_client_says_how_long_it_waits(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(requests="fake = { cap = 1, cooldown = 0 }", fake='hold = "100s"')
    gate.provider.latency_s = 100
    with gate.begin(), ThreadPoolExecutor() as pool:
        gate.provider.wait_until(lambda stats: stats.active == 1)
        at_once = gate.chat(x_api_key="", x_fleetgate_hold="0")
        assert at_once.status == 429
        within(int(at_once.headers["x-fleetgate-waited-ms"]), 5000, "ms that it waited")
        longer = pool.submit(gate.chat, x_api_key="", x_fleetgate_hold="1500ms")
        assert longer.result().status == 429
        assert int(longer.result().headers["x-fleetgate-waited-ms"]) >= 1400
        for bad in ("soon", "-1s", "1e9999", "5 parsecs"):
            answer = gate.chat(x_fleetgate_hold=bad)
            assert (answer.status, answer.json["error"]["code"]) == (400, "bad_request"), bad


def _order(gate: Proxied, begin: Callable[[int], socket.socket], number: int) -> list[str]:
    """The models in the order in which they got in, of calls that queue up behind another in this order."""
    gate.provider.latency_s = 100
    with gate.begin({**CHAT, "model": "before"}), ExitStack() as clients:
        gate.provider.wait_until(lambda stats: stats.active == 1)
        for index in range(number):
            clients.enter_context(begin(index))
            gate.wait_until(lambda index=index: len(gate.tickets()) == index + 1, "it waits")
        gate.provider.latency_s = 0
        gate.ok("PUT", "/v1/caps", {"selector": "fake", "cap": 2, "cooldown_ms": 0, "on_429": "pause"})
        gate.wait_until(lambda: not gate.tickets(), "all are in")
    return [seen.json()["model"] for seen in gate.provider.seen][1:]


@pytest.mark.parametrize("by", ["header", "path"])
def test_a4_priority_and_projects_order_the_queue(proxied: Callable[..., Proxied], by: str) -> None:
    gate = proxied(requests='fake = { cap = 1, cooldown = 0, on_429 = "pause" }')

    def begin(index: int) -> socket.socket:
        project = "blue" if index < 3 else "red"
        path = f"/p/{project}/fake/chat/completions" if by == "path" else "/fake/chat/completions"
        extra = "" if by == "path" else f"x-fleetgate-project: {project}\r\n"
        if index == 2:
            extra += "x-fleetgate-priority: 10\r\n"
        return gate.begin({**CHAT, "model": f"{project}-{index}"}, path, extra)

    order = _order(gate, begin, 5)
    assert [model for model in order if model.startswith("blue")] == ["blue-2", "blue-0", "blue-1"], "priority"
    assert [model for model in order if model.startswith("red")] == ["red-3", "red-4"]
    assert set(order[:2]) == {"blue-2", "red-3"}, "and the projects take turns"
