"""The usage of every call through the proxy equals what the provider says, to the token (rule U1)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from msgspec import convert, structs

from fleetgate.core.usage import PARTIAL, RESPONSE, Usage
from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.script import Fault
from tests.proxy.proxied import Proxied, read_all

PROMPT = [{"role": "user", "content": "hi"}]
WITH_USAGE = {"stream_options": {"include_usage": True}}
# Shape: (path when whole, path when streamed, body).
SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "anthropic": (
        "/anthropic/v1/messages",
        "/anthropic/v1/messages",
        {"model": "claude-x", "max_tokens": 9_999, "messages": PROMPT},
    ),
    "chat": (
        "/openai/v1/chat/completions",
        "/openai/v1/chat/completions",
        {"model": "gpt-x", "messages": PROMPT, **WITH_USAGE},
    ),
    "responses": ("/openai/v1/responses", "/openai/v1/responses", {"model": "gpt-x", "input": "hi"}),
    "gemini": (
        "/gemini/v1beta/models/gemini-x:generateContent",
        "/gemini/v1beta/models/gemini-x:streamGenerateContent?alt=sse",
        {"contents": [{"parts": [{"text": "hi"}]}]},
    ),
}
ENCODINGS = ["identity", "gzip", "br", "zstd"]
NUMBERS = iter(range(1, 10_000))


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    prices = """
[prices]
"openai/priced" = { input = 2.5, output = 10 }
"""
    with (
        FakeProvider(encodings=ENCODINGS[1:], chunks=20) as provider,
        Proxied(tmp_path_factory.mktemp("usage"), provider, requests="openai = 4", more=prices) as proxied,
    ):
        yield proxied
        proxied.check_nothing_is_held()


def next_usage(gate: Proxied, *, writes: bool = False) -> Usage:
    """The usage of the next call, which no other call has."""
    number = next(NUMBERS)
    usage = Usage(1, 1000 + number, 500 + number, 300 + number if writes else 0, 40 + number)
    gate.provider.usages.append(usage)
    return usage


def released(gate: Proxied, before: int, number: int = 1) -> list[dict[str, Any]]:
    """The events of the calls that ended since, when there are so many."""
    found: list[dict[str, Any]] = gate.wait_until(
        lambda: len(events := gate.events("released")) >= before + number and events, "it ended"
    )
    return found[before:]


def counted(event: dict[str, Any], part: str = "usage") -> Usage | None:
    said = event.get(part)
    if said is None:
        return None
    dollars = said["cost_usd"]
    return convert({**said, "cost": None if dollars is None else round(dollars * 1_000_000)}, Usage)


def call(gate: Proxied, shape: str, encoding: str, *, stream: bool, model: str = "") -> Usage | None:
    """The usage that was counted for one call."""
    whole_path, stream_path, body = SHAPES[shape]
    body = body | ({"stream": True} if stream and shape != "gemini" else {}) | ({"model": model} if model else {})
    before = len(gate.events("released"))
    answer = gate.chat(stream_path if stream else whole_path, body, Accept_Encoding=encoding)
    assert answer.status == 200
    assert answer.headers.get("content-encoding", "identity") == encoding
    (event,) = released(gate, before)
    assert event["outcome"] == "ok"
    return counted(event)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("shape", SHAPES)
def test_U1_usage_equals_what_the_provider_says(gate: Proxied, shape: str, stream: bool, encoding: str) -> None:
    usage = next_usage(gate, writes=shape == "anthropic")
    assert call(gate, shape, encoding, stream=stream) == structs.replace(usage, source=RESPONSE)


def test_U1_gemini_may_stream_an_array(gate: Proxied) -> None:
    usage = next_usage(gate)
    before = len(gate.events("released"))
    gate.chat(SHAPES["gemini"][1].removesuffix("?alt=sse"), SHAPES["gemini"][2])
    (event,) = released(gate, before)
    assert counted(event) == structs.replace(usage, source=RESPONSE)


def test_U1_a_stream_of_openai_chat_without_usage_leaves_the_estimate(gate: Proxied) -> None:
    before = len(gate.events("released"))
    answer = gate.chat(SHAPES["chat"][1], {"model": "gpt-x", "messages": PROMPT, "stream": True})
    assert b"usage" not in answer.body, "what the client gets is what it asked for"
    (event,) = released(gate, before)
    usage = counted(event)
    assert usage is None or usage.source == "estimate"


def test_U3_a_known_model_has_a_cost_and_an_unknown_one_has_none(gate: Proxied) -> None:
    gate.provider.usages.append(Usage(1, 1000, 0, 0, 101))
    usage = call(gate, "chat", "identity", stream=False, model="priced")
    assert usage is not None
    assert usage.cost == 2500 + 1010
    next_usage(gate)
    usage = call(gate, "chat", "identity", stream=False, model="unknown-model")
    assert usage is not None
    assert usage.cost is None


def test_U3_a_cost_that_the_provider_reports_goes_before_prices(gate: Proxied) -> None:
    said = {"id": "x", "choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "cost": 0.0123}}
    gate.provider.script(Fault(body=said))
    usage = call(gate, "chat", "identity", stream=False, model="priced")
    assert usage == Usage(1, 10, 0, 0, 5, 12_300, RESPONSE)


def test_U1_counting_tokens_is_no_call(gate: Proxied) -> None:
    before = len(gate.events("granted", "released"))
    assert gate.chat("/anthropic/v1/messages/count_tokens", SHAPES["anthropic"][2]).status == 200
    assert len(gate.events("granted", "released")) == before


@pytest.mark.parametrize("status", [429, 500, 503])
def test_V3_a_refused_attempt_uses_nothing_and_the_call_counts_once(gate: Proxied, status: int) -> None:
    before = len(gate.events("released"))
    usage = next_usage(gate)
    gate.provider.script(Fault(status=status, retry_after_s=0))
    answer = gate.chat(SHAPES["anthropic"][0], SHAPES["anthropic"][2] | {"model": f"refused-{status}"})
    retried = answer.status == 200
    events = released(gate, before, 2 if retried else 1)
    used = [each for event in events if (each := counted(event)) is not None and each.tokens]
    if retried:
        assert used == [structs.replace(usage, source=RESPONSE)]
    else:
        gate.provider.usages.clear()
        assert used == []
    first = counted(events[0])
    assert first is not None, "it is known that nothing was used"
    assert first == Usage(source=RESPONSE)


def test_V3_a_call_that_never_reached_the_provider_uses_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Proxied(tmp_path, f"http://127.0.0.1:{port}") as gate:
        assert gate.chat().status == 502
        (event,) = released(gate, 0)
        assert counted(event) == Usage(source=RESPONSE)


def test_U1_a_client_that_leaves_pays_for_what_was_known(gate: Proxied) -> None:
    usage = next_usage(gate, writes=True)
    gate.provider.chunk_delay_s = 0.2
    before = len(gate.events("released"))
    try:
        connection = gate.begin({**SHAPES["anthropic"][2], "stream": True}, SHAPES["anthropic"][1])
        seen = b""
        while b"word1" not in seen:
            seen += connection.recv(65536)
        connection.close()
        (event,) = released(gate, before)
    finally:
        gate.provider.chunk_delay_s = 0.0
    assert counted(event) == structs.replace(usage, output=0, source=PARTIAL)


def test_U1_an_answer_that_breaks_off_counts_what_was_known(gate: Proxied) -> None:
    usage = next_usage(gate, writes=True)
    gate.provider.script(Fault(drop="middle"))
    before = len(gate.events("released"))
    with gate.begin({**SHAPES["anthropic"][2], "stream": True}, SHAPES["anthropic"][1]) as connection:
        assert b"word1" in read_all(connection)
    (event,) = released(gate, before)
    assert event["outcome"] == "server_error"
    assert counted(event) == structs.replace(usage, output=0, source=PARTIAL)


def test_U1_an_error_inside_a_stream_counts_what_was_known(gate: Proxied) -> None:
    usage = next_usage(gate, writes=True)
    gate.provider.script(Fault(status=529, in_stream=True))
    before = len(gate.events("released"))
    gate.chat(SHAPES["anthropic"][1], {**SHAPES["anthropic"][2], "model": "broken", "stream": True})
    (event,) = released(gate, before)
    assert event["outcome"] == "overloaded"
    assert counted(event) == structs.replace(usage, output=0, source=PARTIAL)


def test_U2_the_calls_of_a_run_count_for_it_and_once(gate: Proxied) -> None:
    lease = gate.ok("POST", "/v1/leases", {"models": ["openai/gpt-x"], "project": "runs", "wait_s": 0})["lease"]
    before = len(gate.events("released"))
    usages = [next_usage(gate) for _ in range(3)]
    path, _, body = SHAPES["chat"]
    for prefix in (f"/l/{lease}", f"/p/elsewhere/l/{lease}"):
        assert gate.chat(prefix + path, body).status == 200
    assert gate.chat(path, body, x_fleetgate_lease=lease).status == 200
    calls = released(gate, before, 3)
    assert [call["run"] for call in calls] == [lease] * 3
    assert not any(lease in seen.path for seen in gate.provider.seen), "the provider does not see it"
    gate.ok("POST", f"/v1/leases/{lease}/release", {})
    (run,) = (event for event in released(gate, before, 4) if event["id"] == lease)
    total = counted(run, "total")
    assert total is not None
    assert (total.calls, total.input) == (3, sum(usage.input for usage in usages))
    assert not run.get("usage"), "its calls were counted"


@pytest.mark.parametrize("lease", ["nosuchlease", "0" * 26, "x" * 199, "%2e%2e", "a%00b", "é"])
def test_U2_a_call_that_names_a_run_which_does_not_exist_belongs_to_none(gate: Proxied, lease: str) -> None:
    usage = next_usage(gate)
    before = len(gate.events("released"))
    path, _, body = SHAPES["chat"]
    answer = gate.chat(f"/l/{quote(lease, safe='%')}{path}", body)
    if answer.status != 200:  # it cannot be a name
        gate.provider.usages.clear()
        assert answer.status in (400, 404)
        return
    (event,) = released(gate, before)
    assert not event.get("run")
    assert counted(event) == structs.replace(usage, source=RESPONSE)


def test_U2_a_call_is_not_a_run(gate: Proxied) -> None:
    gate.provider.latency_s = 60
    try:
        with gate.begin(SHAPES["chat"][2] | {"model": "slow"}, SHAPES["chat"][0]):
            gate.provider.wait_until(lambda stats: stats.active == 1, 60)
            (lease,) = gate.leases()
            gate.provider.latency_s = 0
            next_usage(gate)
            before = len(gate.events("released"))
            assert gate.chat(f"/l/{lease['id']}{SHAPES['chat'][0]}", SHAPES["chat"][2]).status == 200
            (event,) = released(gate, before)
            assert not event.get("run")
    finally:
        gate.provider.latency_s = 0
    gate.wait_until(lambda: not gate.leases(), "the client has left")
