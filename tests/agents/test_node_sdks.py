"""The SDKs of Node.js through the proxy: what they use is counted as the provider served it, to the token (rule U1)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fleetgate.core.usage import Usage
from fleetgate.testing.provider import FakeProvider
from tests.agents.calling import bare_environment
from tests.agents.installing import CannotInstall, installed_library
from tests.proxy.proxied import Proxied

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("node_sdks.mjs")
WITHIN_S = 60
CHUNKS = 8
# Shape: (SDK, its base URL on the proxy, names of the input and output tokens in the SDK).
SHAPES = {
    "chat": ("openai-node", "/openai/v1", "prompt_tokens", "completion_tokens"),
    "responses": ("openai-node", "/openai/v1", "input_tokens", "output_tokens"),
    "messages": ("anthropic-node", "/anthropic", "input_tokens", "output_tokens"),
}
_numbers = count(1)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("node")
    with (
        FakeProvider(encodings=["gzip", "br", "zstd"], chunks=CHUNKS) as provider,
        Proxied(folder, provider) as proxied,
    ):
        yield proxied
        proxied.check_nothing_is_held()


class NodeCall:
    """One call with a real SDK, in a process of its own that lives until `end`."""

    def __init__(self, gate: Proxied, home: Path, shape: str, way: str) -> None:
        sdk, path, _, _ = SHAPES[shape]
        try:
            folder = installed_library(sdk)
        except CannotInstall as error:
            pytest.skip(str(error))
        node = shutil.which("node")
        assert node is not None, "npm has installed it, so Node.js is here"
        self._process = subprocess.Popen(
            [node, str(SCRIPT), str(folder), f"{gate.url}{path}", shape, way],
            env=bare_environment(home),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> NodeCall:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def first_line(self) -> dict[str, Any]:
        """What the SDK saw, as soon as the script says it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            pytest.fail(self._process.communicate()[1])
        seen: dict[str, Any] = json.loads(line)
        return seen

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        _, err = self._process.communicate(timeout=WITHIN_S)
        assert self._process.returncode == 0, err


def next_usage(gate: Proxied, shape: str) -> Usage:
    """The usage of the next call, which no other call has."""
    number = next(_numbers)
    usage = Usage(1, 1000 + number, 500 + number, 300 + number if shape == "messages" else 0, 80 + number)
    gate.provider.usages.append(usage)
    return usage


def parts(usage: Usage | dict[str, Any]) -> tuple[int, ...]:
    """Calls and tokens, of an event as of the provider."""
    found = usage if isinstance(usage, dict) else structs.asdict(usage)
    return tuple(found[name] for name in ("calls", "input", "cache_read", "cache_write", "output"))


def served_since(gate: Proxied, before: Usage) -> tuple[int, ...]:
    return tuple(now - then for now, then in zip(parts(gate.provider.served.total), parts(before), strict=True))


def only_release(gate: Proxied, before: int) -> dict[str, Any]:
    """The event of the one call that has ended since."""
    (event,) = gate.wait_until(lambda: gate.events("released")[before:], "the call ended")
    usage: dict[str, Any] = event["usage"]
    return usage


@pytest.mark.parametrize("way", ["whole", "stream"])
@pytest.mark.parametrize("shape", SHAPES)
def test_U1_what_a_node_sdk_uses_is_counted_as_the_provider_served_it(
    gate: Proxied, tmp_path: Path, shape: str, way: str
) -> None:
    usage = next_usage(gate, shape)
    events, served = len(gate.events("released")), gate.provider.served.total
    with NodeCall(gate, tmp_path, shape, way) as call:
        seen = call.first_line()
        call.end()
    assert seen["encoding"] == "gzip", "the SDK asks for compression, and the provider compresses"
    assert seen["parts"] >= (CHUNKS if way == "stream" else 1)
    counted = only_release(gate, events)
    assert parts(counted) == served_since(gate, served) == parts(usage)
    assert counted["source"] == "response"
    _, _, input_name, output_name = SHAPES[shape]
    cached = 0 if shape == "messages" else usage.cache_read  # OpenAI counts it in the input
    assert (seen["usage"][input_name], seen["usage"][output_name]) == (usage.input + cached, usage.output)


def test_U1_a_stream_that_a_node_sdk_aborts_counts_as_partial(gate: Proxied, tmp_path: Path) -> None:
    usage = next_usage(gate, "messages")
    events, served = len(gate.events("released")), gate.provider.served.total
    gate.provider.chunk_delay_s = 1.0
    try:
        with NodeCall(gate, tmp_path, "messages", "abort") as call:
            seen = call.first_line()
            counted = only_release(gate, events)
            assert call.lives, "the abort alone has closed the connection"
            gate.wait_until(lambda: gate.provider.served.total.calls > served.calls, "the provider stopped, too")
            call.end()
    finally:
        gate.provider.chunk_delay_s = 0.0
    assert counted["source"] == "partial"
    *of_input, output = served_since(gate, served)
    assert parts(counted) == (*of_input, seen["usage"]["output_tokens"]), "as far as the stream has said"
    assert tuple(of_input) == parts(usage)[:-1]
    assert 0 < output < usage.output
    assert seen["parts"] < CHUNKS


def test_U1_all_calls_of_the_node_sdks_add_up_in_fleetgate_usage(gate: Proxied, tmp_path: Path) -> None:
    before = json.loads(gate.cli("usage", "--json").stdout)["total"]
    served = gate.provider.served.total
    events = len(gate.events("released"))
    for number, shape in enumerate(SHAPES, 1):
        next_usage(gate, shape)
        with NodeCall(gate, tmp_path, shape, "stream") as call:
            call.first_line()
            call.end()
        gate.wait_until(lambda done=events + number: len(gate.events("released")) >= done, "the call ended")
    after = json.loads(gate.cli("usage", "--json").stdout)["total"]
    counted = tuple(now - then for now, then in zip(parts(after), parts(before), strict=True))
    assert counted == served_since(gate, served)
    assert counted[0] == len(SHAPES)
