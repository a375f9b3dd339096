"""The fake provider: its shapes, its hidden limit and lag, its faults, and that no client can break it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetgate.testing import FakeClock, FakeProvider, Fault

ANTHROPIC = "/v1/messages"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
GEMINI = "/v1beta/models/gemini-x:generateContent"
GEMINI_STREAM = "/v1beta/models/gemini-x:streamGenerateContent"
CALLS = [ANTHROPIC, CHAT, RESPONSES, GEMINI]
STREAMS = [ANTHROPIC, CHAT, RESPONSES, GEMINI_STREAM + "?alt=sse", GEMINI_STREAM]
TEXT = "word0 word1 word2 word3 "


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(provider: FakeProvider, path: str, body: Any = None, method: str = "POST", **headers: str) -> Answer:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection(provider.url.removeprefix("http://"), timeout=60)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body if body is not None else {"model": "m"})
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        return Answer(response.status, {key.lower(): value for key, value in response.getheaders()}, response.read())
    finally:
        connection.close()


def events(body: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


# Shapes.

TEXTS: dict[str, Callable[[Any], str]] = {
    ANTHROPIC: lambda answer: answer["content"][0]["text"],
    CHAT: lambda answer: answer["choices"][0]["message"]["content"],
    RESPONSES: lambda answer: answer["output"][0]["content"][0]["text"],
    GEMINI: lambda answer: answer["candidates"][0]["content"]["parts"][0]["text"],
}


@pytest.mark.parametrize("path", CALLS)
def test_a_call_is_answered_whole_in_its_shape(path: str):
    with FakeProvider() as provider:
        answer = ask(provider, "/any/prefix" + path)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert TEXTS[path](answer.json) == TEXT
    assert (provider.stats.calls, provider.stats.most_at_once, provider.stats.active) == (1, 1, 0)


def test_an_anthropic_stream_has_its_events_in_order():
    with FakeProvider(chunks=2) as provider:
        answer = ask(provider, ANTHROPIC, {"model": "m", "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["transfer-encoding"] == "chunked"
    assert [event["type"] for event in events(answer.body)] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_an_openai_chat_stream_ends_with_its_usage_if_asked_and_done():
    with FakeProvider() as provider:
        plain = ask(provider, CHAT, {"model": "m", "stream": True})
        options = {"include_usage": True}
        counted = ask(provider, CHAT, {"model": "m", "stream": True, "stream_options": options})
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events(plain.body))
    assert text == TEXT
    assert plain.body.endswith(b"data: [DONE]\n\n")
    assert events(plain.body)[-1]["choices"][0]["finish_reason"] == "stop"
    assert events(counted.body)[-1]["usage"]["total_tokens"] == 16


def test_an_openai_responses_stream_is_numbered_and_completed():
    with FakeProvider() as provider:
        answer = ask(provider, RESPONSES, {"model": "m", "stream": True})
    seen = events(answer.body)
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    assert seen[0]["type"] == "response.created"
    assert seen[-1]["type"] == "response.completed"
    assert TEXTS[RESPONSES](seen[-1]["response"]) == TEXT


def test_a_gemini_stream_is_events_or_an_array():
    with FakeProvider() as provider:
        as_events = ask(provider, GEMINI_STREAM + "?alt=sse")
        as_array = ask(provider, GEMINI_STREAM)
    for answers in (events(as_events.body), as_array.json):
        assert "".join(TEXTS[GEMINI](answer) for answer in answers) == TEXT
        assert answers[-1]["candidates"][0]["finishReason"] == "STOP"


@pytest.mark.parametrize("path", STREAMS)
def test_an_answer_without_any_text_is_whole_too(path: str):
    with FakeProvider(chunks=0) as provider:
        assert ask(provider, path, {"model": "m", "stream": True}).status == 200


def test_a_refusal_speaks_each_providers_language_and_tells_the_wait_where_it_does():
    with FakeProvider(limit=0, retry_after_s=3) as provider:
        anthropic, chat, responses, gemini = (ask(provider, path) for path in CALLS)
    assert {anthropic.status, chat.status, responses.status, gemini.status} == {429}
    assert anthropic.json["error"]["type"] == "rate_limit_error"
    assert "exceeds your rate limit" in anthropic.json["error"]["message"]
    assert anthropic.json["request_id"] == anthropic.headers["request-id"]
    assert chat.json["error"]["code"] == responses.json["error"]["code"] == "rate_limit_exceeded"
    assert gemini.json["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert gemini.json["error"]["details"][0]["retryDelay"] == "3s"
    assert anthropic.headers["retry-after"] == chat.headers["retry-after"] == "3"
    assert "retry-after" not in gemini.headers
    assert (provider.stats.calls, provider.stats.refused) == (4, 4)


def test_without_a_wait_to_tell_none_is_told():
    with FakeProvider(limit=0) as provider:
        answers = [ask(provider, path) for path in CALLS]
    assert not any("retry-after" in answer.headers for answer in answers)
    assert "details" not in answers[-1].json["error"]


# What is counted.


class Caller:
    """A client that starts a call and keeps the connection open until it is told to leave."""

    def __init__(self, provider: FakeProvider) -> None:
        self._provider = provider

    async def call(self, path: str = ANTHROPIC, stream: bool = False) -> int:
        """Send the call. The status, or 0 while it is not known."""
        port = int(self._provider.url.rpartition(":")[2])
        before = self._provider.stats.calls
        self.reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"model": "m", "stream": stream}).encode()
        self._writer.write(
            b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body
        )
        await self._provider.until(lambda stats: stats.calls == before + 1)
        return 0

    async def status(self) -> int:
        async with asyncio.timeout(60):
            return int((await self.reader.readline()).split()[1])

    def leave(self) -> None:
        self._writer.close()


def test_the_limit_is_exact_and_a_client_that_leaves_frees_its_place_after_the_lag():
    async def scenario() -> None:
        clock = FakeClock()
        async with FakeProvider(limit=4, lag_s=0.4, latency_s=3600, clock=clock) as provider:
            callers = [Caller(provider) for _ in range(5)]
            for caller in callers:
                await caller.call()
            assert await callers[4].status() == 429
            assert (provider.stats.active, provider.stats.counted, provider.stats.refused) == (4, 4, 1)

            callers[0].leave()
            await provider.until(lambda stats: stats.active == 3)
            assert (provider.stats.counted, provider.stats.disconnected) == (4, 1)
            clock.advance(399)
            early = Caller(provider)
            await early.call()
            assert await early.status() == 429
            clock.advance(1)
            late = Caller(provider)
            await late.call()
            assert (provider.stats.active, provider.stats.counted, provider.stats.refused) == (4, 4, 2)
            assert provider.stats.most_at_once == provider.stats.most_counted == 4
            for caller in (*callers[1:], early, late):
                caller.leave()
            await provider.until(lambda stats: stats.active == 0)

    asyncio.run(scenario())


def test_a_client_that_leaves_in_the_middle_of_a_stream_is_noticed():
    async def scenario() -> None:
        async with FakeProvider(limit=1, chunks=1000, chunk_delay_s=0.001) as provider:
            caller = Caller(provider)
            await caller.call(stream=True)
            assert await caller.status() == 200
            await caller.reader.readuntil(b"content_block_delta")
            caller.leave()
            stats = await provider.until(lambda stats: stats.active == 0)
            assert (stats.disconnected, stats.counted) == (1, 0)

    asyncio.run(scenario())


def test_an_ended_call_counts_for_its_lag_on_one_kept_connection():
    clock = FakeClock()
    with FakeProvider(limit=1, lag_s=0.4, clock=clock) as provider:
        connection = http.client.HTTPConnection(provider.url.removeprefix("http://"), timeout=60)
        statuses = []
        for wait_ms in (0, 399, 1, 400):
            clock.advance(wait_ms)
            connection.request("POST", ANTHROPIC, b'{"model":"m"}')
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
        connection.close()
    assert statuses == [200, 429, 200, 200]


def test_the_limit_and_the_neighbours_can_change_while_it_runs():
    with FakeProvider(limit=4, others=3) as provider:
        assert ask(provider, CHAT).status == 200
        assert ask(provider, "/_script", {"others": 4}).status == 200
        assert ask(provider, CHAT).status == 429
        provider.limit = 5
        assert ask(provider, CHAT).status == 200
        assert ask(provider, "/_script", {"limit": None}).json["limit"] is None
        assert "no limit" in repr(provider)


def test_usage_tells_the_count_to_those_with_a_key():
    clock = FakeClock()
    with FakeProvider(lag_s=1, others=2, keys=["secret"], clock=clock) as provider:
        assert ask(provider, CHAT, authorization="Bearer secret").status == 200
        assert ask(provider, "/v1/usage", method="GET").status == 401
        seen = ask(provider, "/v1/usage", method="GET", authorization="Bearer secret").json
        assert seen == {"usage": {"concurrent_sessions": 3}}
        clock.advance(1000)
        assert ask(provider, "/usage?key=secret", method="GET").json == {"usage": {"concurrent_sessions": 2}}
    assert (provider.stats.usage_asked, provider.stats.usage_most_at_once) == (3, 1)


@pytest.mark.parametrize("path", CALLS)
def test_a_call_without_the_right_key_is_refused_and_not_counted(path: str):
    with FakeProvider(keys=["secret"]) as provider:
        assert ask(provider, path).status == 401
        assert ask(provider, path, **{"x-api-key": "wrong"}).status == 401
        assert ask(provider, path, **{"x-api-key": "secret"}).status == 200
        assert ask(provider, path, **{"x-goog-api-key": "secret"}).status == 200
        assert provider.stats.calls == 2


def test_the_latest_requests_can_be_looked_at():
    with FakeProvider(headers={"x-extra": "1"}) as provider:
        answer = ask(provider, ANTHROPIC + "?beta=true", {"model": "claude"}, **{"X-Mine": "yes"})
        assert answer.headers["x-extra"] == "1"
        seen = provider.seen[-1]
        assert (seen.path, seen.query, seen.headers["x-mine"]) == (ANTHROPIC, {"beta": "true"}, "yes")
        assert seen.json()["model"] == "claude"


# Faults.


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        (ANTHROPIC, 529, "overloaded_error"),
        (ANTHROPIC, 401, "authentication_error"),
        (ANTHROPIC, 418, "api_error"),
        (CHAT, 503, "server_is_overloaded"),
        (RESPONSES, 401, "invalid_api_key"),
        (GEMINI, 503, "UNAVAILABLE"),
    ],
)
def test_a_scripted_status_is_the_shapes_own_error_so_many_times(path: str, status: int, word: str):
    with FakeProvider(faults=[Fault(status=status, times=2, headers={"x-y": "z"})]) as provider:
        answers = [ask(provider, path) for _ in range(3)]
    assert [answer.status for answer in answers] == [status, status, 200]
    assert word.encode() in answers[0].body
    assert answers[0].headers["x-y"] == "z"
    assert (provider.stats.scripted, provider.stats.most_at_once, provider.stats.calls) == (2, 1, 3)


def test_a_scripted_body_is_sent_as_it_is():
    faults = [
        Fault(status=403, body="<html>gateway</html>", headers={"content-type": "text/html"}),
        Fault(status=429, body={"error": {"code": "insufficient_quota"}}, retry_after_s=1.5),
        Fault(body="not json"),
    ]
    with FakeProvider(faults=faults) as provider:
        html, quota, broken = (ask(provider, CHAT) for _ in faults)
    assert (html.status, html.headers["content-type"], html.body) == (403, "text/html", b"<html>gateway</html>")
    assert (quota.status, quota.headers["retry-after"]) == (429, "1.5")
    assert quota.json["error"]["code"] == "insufficient_quota"
    assert (broken.status, broken.body) == (200, b"not json")


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("drop", ["before", "head", "middle"])
def test_a_dropped_connection_is_no_whole_answer(path: str, drop: Any):
    with FakeProvider(limit=1, faults=[Fault(drop=drop), Fault(drop=drop, status=500)]) as provider:
        for _ in range(2):
            with pytest.raises((http.client.HTTPException, ConnectionResetError)):
                ask(provider, path, {"model": "m", "stream": True})
        assert ask(provider, path, {"model": "m", "stream": True}).status == 200


@pytest.mark.parametrize("path", STREAMS)
def test_an_error_can_follow_a_200_inside_the_stream(path: str):
    with FakeProvider(faults=[Fault(status=503, in_stream=True)]) as provider:
        answer = ask(provider, path, {"model": "m", "stream": True})
    assert answer.status == 200
    assert b"scripted for a test" in answer.body
    assert b"word1" in answer.body
    assert b"word2" not in answer.body
    if path == GEMINI_STREAM:
        assert answer.json[-1]["error"]["code"] == 503


def test_a_delayed_fault_counts_while_it_lasts_and_a_scripted_call_ignores_the_limit():
    async def scenario() -> None:
        async with FakeProvider(limit=0, faults=[Fault(delay_s=3600)]) as provider:
            caller = Caller(provider)
            await caller.call()
            assert (provider.stats.active, provider.stats.refused) == (1, 0)
            caller.leave()
            await provider.until(lambda stats: stats.active == 0)

    asyncio.run(scenario())


def test_a_fault_for_one_model_leaves_the_others_alone():
    with FakeProvider(faults=[Fault(status=429, model="opus", times=2)]) as provider:
        opus, sonnet = {"model": "opus"}, {"model": "sonnet"}
        statuses = [ask(provider, ANTHROPIC, body).status for body in (sonnet, opus, sonnet, opus, opus)]
    assert statuses == [200, 429, 200, 429, 200]


@pytest.mark.parametrize("value", [None, "three", -1, 2.9, {"deep": []}])
def test_usage_can_be_made_to_answer_anything(value: Any):
    body = {"usage": {"concurrent_sessions": value}}
    faults = [Fault(on="usage", body=body), Fault(on="usage", status=404), Fault(on="usage", body='{"usage":NaN}')]
    with FakeProvider(faults=faults) as provider:
        assert ask(provider, CHAT).status == 200
        assert ask(provider, "/usage", method="GET").json == body
        assert ask(provider, "/usage", method="GET").status == 404
        assert ask(provider, "/usage", method="GET").body == b'{"usage":NaN}'
        provider.script(Fault(on="usage", drop="before"))
        with pytest.raises((http.client.HTTPException, ConnectionResetError)):
            ask(provider, "/usage", method="GET")


def test_a_script_by_http_is_taken_whole_or_not_at_all():
    with FakeProvider(limit=1) as provider:
        for bad in (
            b"nonsense",
            {"faults": [{"status": 503}, {"status": 9}]},
            {"limit": 5, "other": 1},
            {"limit": -1},
            {"faults": [{"status": 503, "drop": "sometimes"}]},
        ):
            answer = ask(provider, "/_script", bad)
            assert answer.status == 400
            assert "nothing was changed" in answer.json["error"]
        assert (provider.stats.faults_left, provider.limit) == (0, 1)
        assert ask(provider, "/_script", {"faults": [{"status": 503, "times": 3}]}).json["faults_left"] == 3
        assert ask(provider, "/_script", {"clear": True}).json["faults_left"] == 0


# Whatever a client does.


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 5000, b'{"model":7}'])
def test_a_body_that_is_no_call_is_a_400_in_the_shape(path: str, body: bytes):
    with FakeProvider() as provider:
        answer = ask(provider, path, body)
        if path == GEMINI and body == b'{"model":7}':
            assert answer.status == 200  # Gemini's model is in its path
        else:
            assert answer.status == 400
            assert answer.json["error"]["message"]
            assert provider.stats.calls == 0


@settings(max_examples=60, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_any_json_is_answered(value: Any):
    with _shared() as provider:
        for path in CALLS:
            body = json.dumps({"model": value, "stream": value, "stream_options": value}).encode()
            assert ask(provider, path, body).status in (200, 400)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=100), max_size=4))
def test_any_bytes_leave_it_serving(parts: list[bytes]):
    with _shared() as provider:
        host, _, port = provider.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as client:
            try:
                for part in parts:
                    client.sendall(part)
            except OSError:
                pass  # it may have closed the connection already
        assert ask(provider, "/_stats", method="GET").status == 200
        assert provider.stats.active == 0


class _shared:  # noqa: N801
    """One provider for all the examples of a property."""

    provider: FakeProvider | None = None

    def __enter__(self) -> FakeProvider:
        if _shared.provider is None:
            _shared.provider = FakeProvider().__enter__()
        return _shared.provider

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(scope="module", autouse=True)
def _end_shared():
    yield
    if _shared.provider is not None:
        _shared.provider.__exit__()
        _shared.provider = None


def test_what_agents_ask_besides_calls_is_answered():
    with FakeProvider() as provider:
        assert ask(provider, "/", method="HEAD").body == b""
        assert ask(provider, "/v1/models", method="GET").json["data"] == []
        assert ask(provider, "/v1/messages/count_tokens").json == {"input_tokens": 12}
        assert ask(provider, "/nowhere", method="GET").status == 404
        wrong = ask(provider, ANTHROPIC, method="GET")
        assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
        assert provider.stats.calls == 0


def test_a_stream_to_an_http_1_0_client_ends_with_the_connection():
    with FakeProvider() as provider:
        host, _, port = provider.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as client:
            body = b'{"model":"m","stream":true}'
            client.sendall(b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
            with client.makefile("rb") as file:
                answer = file.read()
    assert b"Transfer-Encoding" not in answer
    assert answer.endswith(b"data: [DONE]\n\n")


def test_a_port_that_is_taken_is_an_error_at_the_start():
    with FakeProvider() as provider:
        port = int(provider.url.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"), FakeProvider(port=port):
            pass


def test_waiting_for_what_does_not_happen_says_what_was_seen():
    with FakeProvider() as provider, pytest.raises(TimeoutError, match="calls=0"):
        provider.wait_until(lambda stats: stats.calls > 0, timeout_s=0.01)
