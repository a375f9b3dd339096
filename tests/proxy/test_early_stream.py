"""With `comment_after` a stream begins with comments while its request waits: SDKs read what follows, errors too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import sleep
from typing import Any

import anthropic
import openai
import pytest

from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.script import Fault
from tests.proxy.proxied import CHAT, MESSAGES, Proxied

_COMMENT = b": Fleetgate: waiting in the queue\n\n"
_KEY = "x-api-key: key-of-a-client\r\n"
_CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/fake/v1/chat/completions", CHAT),
    "anthropic": ("/anthropic/v1/messages", MESSAGES),
}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    caps = "fake = { cap = 1, cooldown = 0 }\nanthropic = { cap = 1, cooldown = 0 }\ngemini = { cap = 1, cooldown = 0 }"
    with (
        FakeProvider() as provider,
        Proxied(tmp_path_factory.mktemp("early"), provider, requests=caps, fake='comment_after = "50ms"') as proxied,
    ):
        yield proxied
        proxied.check_nothing_is_held()


@contextmanager
def _full(gate: Proxied, api: str) -> Iterator[Callable[[], None]]:
    """The one slot of a provider is taken, until what it gives is called."""
    path, body = _CALLS[api]
    gate.check_nothing_is_held()
    gate.provider.latency_s = 60
    with gate.begin(body, path, _KEY) as holder:
        gate.provider.wait_until(lambda stats: stats.active == 1, 60)
        gate.provider.latency_s = 0
        yield holder.close


def _waited(gate: Proxied, api: str, fault: Fault | None = None, extra: str = "") -> bytes:
    """All that comes to a client that waits for a while, and then gets its turn."""
    path, body = _CALLS[api]
    with _full(gate, api) as free, gate.begin({**body, "stream": True}, path, _KEY + extra) as waiting:
        answer = b""
        while _COMMENT not in answer:
            answer += waiting.recv(65536)
        if fault is not None:
            gate.provider.script(fault)
        if not extra.startswith("x-fleetgate-hold"):
            free()
        while not answer.endswith(b"0\r\n\r\n"):
            answer += waiting.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    return answer


@pytest.mark.parametrize("api", _CALLS)
def test_a_stream_that_waits_begins_with_a_comment_and_goes_on_with_the_providers(gate: Proxied, api: str) -> None:
    answer = _waited(gate, api, extra="Accept-Encoding: gzip\r\n")
    last = b"message_stop" if api == "anthropic" else b"[DONE]"
    assert answer.count(b"HTTP/1.1") == 1
    assert answer.index(_COMMENT) < answer.index(b"data: ") < answer.index(last)
    sent = {name.lower(): value for name, value in dict(gate.provider.seen[-1].headers).items()}
    assert sent["accept-encoding"] == "identity"


@pytest.mark.parametrize("api", _CALLS)
@pytest.mark.parametrize("why", ["the provider refuses it", "its time is over"])
def test_an_error_that_comes_then_is_an_event_in_the_shape_of_the_api(gate: Proxied, api: str, why: str) -> None:
    if why == "its time is over":
        answer = _waited(gate, api, extra="x-fleetgate-hold: 300ms\r\n")
    else:
        answer = _waited(gate, api, Fault(status=400))
    event = answer[answer.index(_COMMENT) + len(_COMMENT) :]
    assert (b"event: error\n" in event) == (api == "anthropic")
    line = next(line for line in event.splitlines() if line.startswith(b"data: "))
    error = json.loads(line[6:])["error"]
    assert error["message"]
    assert error["type"] == {"its time is over": "rate_limit_error"}.get(why, "invalid_request_error")


def test_without_a_stream_and_from_gemini_nothing_comes_early(gate: Proxied) -> None:
    with _full(gate, "openai"):
        answer = gate.chat(*_CALLS["openai"], x_fleetgate_hold="300ms")
        assert answer.status == 429
    with gate.begin({"contents": []}, "/gemini/v1beta/models/g:streamGenerateContent?alt=sse") as waiting:
        assert _COMMENT not in waiting.recv(65536)


def _by_openai(base: str) -> str:
    with openai.OpenAI(base_url=f"{base}/fake/v1", api_key="key-of-a-client", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        stream = client.chat.completions.create(model="m1", messages=messages, stream=True)
        return "".join(str(chunk.choices[0].delta.content or "") for chunk in stream if chunk.choices)


def _by_anthropic(base: str) -> str:
    with anthropic.Anthropic(base_url=f"{base}/anthropic", api_key="key-of-a-client", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        with client.messages.stream(model="claude-x", max_tokens=9, messages=messages) as stream:
            return str(stream.get_final_text())


@pytest.mark.parametrize(
    ("api", "call", "error"),
    [("openai", _by_openai, openai.APIError), ("anthropic", _by_anthropic, anthropic.APIError)],
    ids=_CALLS,
)
def test_the_sdks_read_the_stream_and_raise_the_error(
    gate: Proxied, api: str, call: Callable[[str], str], error: type[Exception]
) -> None:
    with ThreadPoolExecutor() as pool:
        for fault in (None, Fault(status=400)):
            with _full(gate, api) as free:
                if fault is not None:
                    gate.provider.script(fault)
                answered = pool.submit(call, gate.url)
                gate.wait_until(gate.tickets, "it waits")
                sleep(0.2)  # until the first comment has gone
                free()
                if fault is None:
                    assert answered.result(60)
                else:
                    with pytest.raises(error):
                        answered.result(60)
