"""Requests that are not plain calls of a model: upgrades, counting of tokens, models in other places."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from fleetgate.proxy.request_body import model_in_path, path_with_model
from tests.front.request_wire import RequestWire
from tests.proxy.in_process import asked, opened, until
from tests.proxy.proxied import CHAT, Proxied, read_all

_HANDSHAKE = (
    "GET /{provider}/v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    "Connection: keep-alive, Upgrade\r\nUpgrade: {upgrade}\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.mark.parametrize("upgrade", ["websocket", "WebSocket", "connect-udp", "TLS/1.0, HTTP/1.1"])
@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini"])
def test_an_upgrade_is_refused_at_once_in_the_apis_shape_and_nothing_is_sent(
    shared: Proxied, provider: str, upgrade: str
) -> None:
    before = len(shared.provider.seen)
    with shared.connect() as connection:
        connection.sendall(_HANDSHAKE.format(provider=provider, upgrade=upgrade).encode())
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 426 ")
    assert b"\r\nupgrade: HTTP/1.1" in head
    assert "plain HTTP/1.1" in json.loads(body)["error"]["message"]
    assert len(shared.provider.seen) == before


@pytest.mark.parametrize("path", ["/fake/v1/chat/completions", "/v1/leases"])
def test_an_upgrade_of_a_request_with_a_body_is_answered_too(shared: Proxied, path: str) -> None:
    with shared.begin(CHAT, path, "Connection: Upgrade\r\nUpgrade: h2c\r\n") as connection:
        connection.sendall(b"and what is not HTTP\r\n\r\n")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 426 " if "fake" in path else b"HTTP/1.1 4")
    assert answer.count(b"HTTP/1.1") - answer.count(b"plain HTTP/1.1") - answer.count(b"upgrade: HTTP/1.1") == 1


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/fake/v1/responses/input_tokens", ""),
        ("/anthropic/v1/messages/count_tokens", ""),
        ("/gemini/v1beta/models/g:countTokens", ""),
        ("/fake/model/anthropic.claude-opus-4-6-v1%3A0/count-tokens", ""),
        ("/fake/model/anthropic.claude-opus-4-6-v1%3A0/invoke", "anthropic.claude-opus-4-6-v1:0"),
        ("/fake/model/us.anthropic.claude-x-v1:0/invoke-with-response-stream", "us.anthropic.claude-x-v1:0"),
        ("/fake/model/amazon.nova-pro/converse", "amazon.nova-pro"),
        ("/fake/model/amazon.nova-pro/converse-stream", "amazon.nova-pro"),
        ("/gemini/v1beta/%6dodels/g:generateContent", "g"),
        ("/gemini/v1beta/models/g%3AgenerateContent", "g"),
        ("/fake/openai/Deployments/d/chat/completions", "d"),
    ],
)
def test_a_call_takes_a_slot_by_the_model_in_its_path_and_counting_takes_none(
    shared: Proxied, path: str, model: str
) -> None:
    answer = shared.chat(path, CHAT if "/input" in path else {"messages": []})
    assert answer.headers["x-fleetgate-model"].partition("/")[2] == model


def test_a_fallback_for_a_model_in_the_path_changes_the_path_alone() -> None:
    path = "/model/anthropic.claude-opus-4-6-v1%3A0/invoke"
    assert model_in_path(path) == "anthropic.claude-opus-4-6-v1:0"
    assert path_with_model(path.encode(), "amazon.nova:1") == b"/model/amazon.nova%3A1/invoke"


@pytest.mark.parametrize("priority", ["high", "--5", "-", "101", "1e1"])
def test_x2_a_priority_that_is_no_number_is_refused_as_such(shared: Proxied, priority: str) -> None:
    answer = shared.chat(x_fleetgate_priority=priority)
    assert (answer.status, "x-fleetgate-priority" in answer.body.decode()) == (400, True)


async def test_long_paths_and_long_names_of_models_are_not_remembered(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, proxy):
        tracemalloc.start()
        try:
            for number in range(1000):
                assert proxy.wants(RequestWire("GET", b"/anthropic/%d/" % number + b"a" * 15_000).request)
            assert tracemalloc.get_traced_memory()[0] < 8_000_000
            for number in range(100):
                call = asked(body=b'{"model":"%d%s"}' % (number, b"a" * 200_000))
                proxy(call.request)
                await until(lambda call=call: call.finished)  # type: ignore[misc]
            assert tracemalloc.get_traced_memory()[0] < 8_000_000
        finally:
            tracemalloc.stop()
