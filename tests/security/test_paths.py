"""Where a request's path and Host lead: to the provider that it names, below its base URL, or to a helpful error."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fleetgate.proxy.routes import leaves_base
from fleetgate.testing.provider import FakeProvider
from tests.proxy.proxied import CHAT, MESSAGES, Proxied, read_all


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    with FakeProvider() as provider:
        more = '[providers.based]\nbase_url = "{url}/tenant/v1"\n[providers.unplaced]\nkey_env = "SOME_KEY"'
        more = more.replace("{url}", provider.url)
        with Proxied(tmp_path_factory.mktemp("paths"), provider, more=more) as proxied:
            yield proxied


def send(gate: Proxied, request: str) -> tuple[int, str]:
    with gate.connect() as connection:
        connection.sendall(request.encode("latin-1"))
        head, _, body = read_all(connection).decode("latin-1").partition("\r\n\r\n")
    return int(head.split()[1]), body


# Out of the base path.


@pytest.mark.parametrize(
    "path",
    [
        "/../admin",
        "/chat/../../admin",
        "/..",
        "/%2e%2e/admin",
        "/%2E./admin",
        "/.%2e/admin",
        "/..%2fadmin",
        "/..%5cadmin",
        "/..\\admin",
        "/x%2f..%2f..%2fadmin",
        "/%252e%252e/admin",
        "/..;a=b/admin",
    ],
)
def test_a_path_that_climbs_is_refused_and_nothing_goes_upstream(gate: Proxied, path: str) -> None:
    before = len(gate.provider.seen)
    for method, body in (("GET", ""), ("POST", json.dumps(CHAT))):
        status, said = send(
            gate,
            f"{method} /based{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nx-api-key: key-of-a-client\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}",
        )
        assert status == 400
        assert "base URL" in json.loads(said)["error"]["message"]
    assert len(gate.provider.seen) == before


@pytest.mark.parametrize("path", ["", "/", "/v1/models/gpt-5..1", "/a...b", "/v1/files/%2e", "/x.y/..z/%20", "/./x"])
def test_dots_that_do_not_climb_pass(path: str) -> None:
    assert not leaves_base(path.encode())


# Two Hosts.


def test_two_host_headers_are_refused(gate: Proxied) -> None:
    before = len(gate.provider.seen)
    body = json.dumps(CHAT)
    for second in ("evil.example", "localhost"):
        status, said = send(
            gate,
            f"POST /fake/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nHost: {second}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}",
        )
        assert (status, json.loads(said)["reason"]) == (400, "two_hosts")
    assert len(gate.provider.seen) == before


# No such provider.


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/antropic/v1/messages", "/anthropic/"),
        ("/anthropics/v1/messages/count_tokens", "/anthropic/"),
        ("/antropic@work/v1/messages", "/anthropic/"),
        ("/p/blue/antropic/v1/messages", "/anthropic/"),
        ("/l/some-lease/Anthropic2/v1/messages", "/anthropic/"),
        ("/v1/messages", "/anthropic/v1/messages"),
    ],
)
def test_a_mistyped_provider_is_a_404_in_anthropics_shape_with_the_nearest_name(
    gate: Proxied, path: str, nearest: str
) -> None:
    for headers in ({"x_api_key": "sk-ant-1"}, {"Authorization": "Bearer sk-ant-oat01-1"}, {}):
        answer = gate.request("POST", path, MESSAGES, token="", **headers)
        assert answer.status == 404
        assert answer.json["type"] == "error"
        assert answer.json["error"]["type"] == "not_found_error"
        assert nearest in answer.json["error"]["message"]
        assert "token" not in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/opnai/v1/chat/completions", "/openai/"),
        ("/opnai/v1/responses", "/openai/"),
        ("/open-router/v1/chat/completions", "/openrouter/"),
        ("/opnai/v1/models", "/openai/"),
        ("/v1/chat/completions", "/openai/v1/chat/completions"),
        ("/v1/responses", "/openai/v1/responses"),
        ("/chat/completions", "/openai/chat/completions"),
    ],
)
def test_the_same_in_openais_shape(gate: Proxied, path: str, nearest: str) -> None:
    answer = gate.request("POST", path, CHAT, token="", Authorization="Bearer sk-1")
    assert answer.status == 404
    assert answer.json["error"]["code"] == "unknown_provider"
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert nearest in answer.json["error"]["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/gemni/v1beta/models/gemini-2.5-pro:generateContent",
        "/gemni/v1/models/gemini-2.5-pro:streamGenerateContent",
        "/v1beta/models/gemini-2.5-pro:generateContent",
    ],
)
def test_the_same_in_geminis_shape(gate: Proxied, path: str) -> None:
    answer = gate.request("POST", path, {"contents": []}, token="", x_goog_api_key="AIza-1")
    assert answer.status == 404
    assert (answer.json["error"]["code"], answer.json["error"]["status"]) == (404, "NOT_FOUND")
    assert "/gemini" in answer.json["error"]["message"]


def test_a_name_like_no_other_lists_what_there_is_and_where_to_add_one(gate: Proxied) -> None:
    message = gate.request("POST", "/zzz/v1/chat/completions", CHAT, token="").json["error"]["message"]
    assert "based" in message
    assert "[providers.NAME]" in message
    message = gate.request("POST", "/unplaced/v1/chat/completions", CHAT, token="").json["error"]["message"]
    assert "base_url" in message
    assert "unplaced" in message


def test_paths_of_the_api_and_pages_that_are_not_there_are_as_before(gate: Proxied) -> None:
    assert gate.get("/v1/nothing").json["reason"] == "not_found"
    assert gate.get("/nothing").json["reason"] == "not_found"
    assert gate.request("POST", "/v1/leases", {"models": ["fake/m1"]}, token="").status == 401
