"""What goes through the proxy, and what does not (rules X1, X5, X7)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.script import Fault
from tests.proxy.proxied import CHAT, MESSAGES, Proxied


def test_x1_method_path_query_headers_and_body_pass_unchanged(shared: Proxied) -> None:
    body = b'{ "model":"m1",\n "messages":[{"role":"user","content":"\\u00e9 hi"}],  "strange" : [1.0, 2e3] }'
    path = "/fake/v1/chat/completions?b=2&a=%20x%2Fy"
    answer = shared.chat(path, body, X_Custom="Some Value", User_Agent="tester/1", Accept_Encoding="gzip, br")
    assert answer.status == 200
    seen = shared.provider.seen[-1]
    assert seen.body == body
    assert seen.method == "POST"
    assert seen.target == "/v1/chat/completions?b=2&a=%20x%2Fy"
    assert seen.headers["x-custom"] == "Some Value"
    assert seen.headers["user-agent"] == "tester/1"
    assert seen.headers["accept-encoding"] == "gzip, br"
    assert seen.headers["x-api-key"] == "key-of-a-client"
    assert "accept" not in seen.headers, "nothing is added"
    assert seen.headers["host"] == shared.upstream.removeprefix("http://")


def test_x1_hop_by_hop_headers_and_our_own_stay_here(shared: Proxied) -> None:
    shared.chat(Connection="keep-alive, X-Private", X_Private="1", TE="trailers", x_fleetgate_priority="3")
    headers = shared.provider.seen[-1].headers
    assert not {"x-private", "te", "connection", "x-fleetgate-priority"} & headers.keys()


def test_x1_a_base_url_may_be_said_with_or_without_v1(shared: Proxied) -> None:
    for path in ("/fake/chat/completions", "/fake/v1/chat/completions", "/openai/v1/chat/completions"):
        assert shared.chat(path).status == 200
        assert shared.provider.seen[-1].path == "/v1/chat/completions"
    assert shared.chat("/anthropic/v1/messages", MESSAGES).status == 200


def test_x7_an_answer_says_how_it_came_about(shared: Proxied) -> None:
    headers = shared.chat().headers
    assert headers["x-fleetgate-attempts"] == "1"
    assert headers["x-fleetgate-waited-ms"].isdigit()
    assert headers["x-fleetgate-model"].startswith("fake@key-")
    assert "upstream;dur=" in headers["server-timing"]


def test_n4_a_call_takes_a_requests_slot_and_the_rest_takes_none(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider() as provider:
        gate = proxied(provider)
        assert gate.get("/fake/v1/models").status == 200
        count = gate.chat("/anthropic/v1/messages/count_tokens", MESSAGES)
        assert count.json == {"input_tokens": 12}
        assert not gate.events("granted")
        gate.chat()
        [granted] = gate.events("granted")
        assert granted["ticket"]["spec"]["kind"] == "requests"
        assert granted["model"].endswith("/m1")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/fake/v1/responses", {"model": "m1", "input": "hi"}),
        ("/gemini/v1beta/models/gemini-2:generateContent", {"contents": [{"parts": [{"text": "hi"}]}]}),
    ],
)
def test_x1_the_model_is_found_in_the_body_or_the_path(shared: Proxied, path: str, body: object) -> None:
    answer = shared.chat(path, body)
    assert answer.status == 200
    assert answer.headers["x-fleetgate-model"].rpartition("/")[2] in ("m1", "gemini-2")


def test_x1_a_stream_comes_piece_by_piece(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider(chunks=3, chunk_delay_s=0.3) as provider:
        gate = proxied(provider)
        with gate.begin({**CHAT, "stream": True}) as client:
            got = b""
            while b"word0" not in got:
                got += client.recv(4096)
            assert b"word2" not in got, "the first piece came before the last was written"
            assert provider.stats.active == 1
            assert len(gate.leases()) == 1, "the slot is held while the stream lasts"
            while b"[DONE]" not in got:
                got += client.recv(4096)


def test_x5_keys_are_accounts_and_the_key_of_the_config_is_the_default_one(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(
        fake='key_env = "FAKE_KEY"',
        more='[providers."fake@work"]\nkey_env = "WORK_KEY"',
        FAKE_KEY="key-of-the-config",
        WORK_KEY="key-of-the-work",
    )

    def account(**headers: str) -> str:
        model = gate.request("POST", "/fake/chat/completions", CHAT, token="", **headers).headers["x-fleetgate-model"]
        return model.partition("/")[0]

    one, other = account(x_api_key="one-key"), account(Authorization="Bearer other-key")
    assert one.startswith("fake@key-")
    assert other.startswith("fake@key-")
    assert one != other
    assert account(Authorization="Bearer one-key") == one, "wherever the key is"
    assert account(Authorization="Bearer key-of-the-config") == "fake"
    assert account(Authorization="Bearer key-of-the-work") == "fake@work"
    assert account() == "fake"
    assert gate.provider.seen[-1].headers["authorization"] == "Bearer key-of-the-config"
    assert account(Authorization="Bearer fleetgate") == "fake"
    assert gate.provider.seen[-1].headers["authorization"] == "Bearer key-of-the-config"
    assert account(x_api_key=gate.token) == "fake"
    assert "x-api-key" not in gate.provider.seen[-1].headers, "our token is nobody else's business"
    assert gate.chat("/fake@work/chat/completions").headers["x-fleetgate-model"] == "fake@work/m1"
    assert gate.provider.seen[-1].headers["authorization"] == "Bearer key-of-the-work"
    gate.stop()
    kept = b"".join(path.read_bytes() for path in gate.home.rglob("*") if path.is_file())
    for key in (b"one-key", b"other-key", b"key-of-the-config", b"key-of-the-work"):
        assert key not in kept, "keys are never stored"


def test_x5_a_key_keeps_its_account_across_a_restart(proxied: Callable[..., Proxied]) -> None:
    gate = proxied()
    before = gate.chat().headers["x-fleetgate-model"]
    gate.stop()
    gate.start()
    assert gate.chat().headers["x-fleetgate-model"] == before


def test_x2_project_priority_and_lease_are_told_by_headers_or_by_the_path(proxied: Callable[..., Proxied]) -> None:
    gate = proxied()
    gate.chat("/p/blue/fake/chat/completions")
    gate.chat(x_fleetgate_project="red", x_fleetgate_priority="7")
    lease = gate.ok("POST", "/v1/leases", {"models": ["umans/coder"], "project": "green", "wait_s": 0})["lease"]
    gate.chat(f"/l/{lease}/fake/chat/completions")
    gate.ok("POST", f"/v1/leases/{lease}/release", {})
    tickets = [event["ticket"] for event in gate.events("granted") if event["model"].startswith("fake")]
    assert [ticket["spec"].get("project", "default") for ticket in tickets] == ["blue", "red", "green"]
    assert tickets[1]["priority"] == 7
    for headers in ({"x_fleetgate_hold": "soon"}, {"x_fleetgate_priority": "high"}):
        answer = gate.chat(**headers)
        assert answer.status == 400
        assert "valid" in answer.json["error"]["message"] or "duration" in answer.json["error"]["message"]


def test_h5_a_page_elsewhere_cannot_use_the_proxy(shared: Proxied) -> None:
    assert shared.chat(Host="evil.example").status == 403
    assert shared.chat(Origin="https://evil.example").status == 403
    assert shared.chat(Sec_Fetch_Site="cross-site").status == 403


def test_the_access_log_has_a_line_for_each_request_and_no_secret(proxied: Callable[..., Proxied]) -> None:
    gate = proxied()
    gate.provider.script(Fault(status=400, body={"error": {"message": "bad key sk-abcdefghijklmnop1234"}}))
    gate.chat("/gemini/v1beta/models/g:generateContent?key=secret-in-the-query", {"contents": []})
    line = gate.line(1)
    assert line["status"] == 400
    assert line["provider"] == "gemini"
    assert line["attempts"] == 1
    text = json.dumps(line)
    assert "secret-in-the-query" not in text
    assert "sk-abcdef" not in text
    assert "key-of-a-client" not in text


def test_unknown_paths_are_the_apis(shared: Proxied) -> None:
    assert shared.get("/nobody/v1/models").json["reason"] == "not_found"
    assert shared.get("/p/x").json["reason"] == "not_found"


def test_google_and_gemini_are_one_provider(shared: Proxied) -> None:
    models = set()
    for name in ("gemini", "google"):
        answer = shared.request(
            "POST", f"/{name}/v1beta/models/gemini-2:generateContent", {"contents": []}, token="", x_goog_api_key="k1"
        )
        assert answer.status == 200
        models.add(answer.headers["x-fleetgate-model"])
    (model,) = models
    assert model.startswith("google@key-")
