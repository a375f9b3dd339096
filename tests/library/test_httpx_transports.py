"""Programs that call models with the real SDKs, through a transport that gets a slot for every call."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

import fleetgate
from fleetgate.core.usage import PARTIAL, Usage, UsageRow
from fleetgate.httpx import AsyncTransport, Transport
from fleetgate.simulate.provider_rates import ProviderRate
from fleetgate.testing import FakeProvider
from fleetgate.testing.script import Fault
from tests.library.helpers import PATIENCE_S, until

pytestmark = pytest.mark.filterwarnings("default")  # the SDKs warn of what is deprecated among themselves

DOCS = Path(__file__).parents[2] / "docs"
HI: Any = [{"role": "user", "content": "hi"}]
CONFIG: Any = {"requests": {"openai": {"cap": 2, "cooldown": "0s", "on_429": "step"}, "anthropic": 2}}


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(usage=Usage(input=30, output=7)) as provider:
        yield provider


@pytest.fixture
def gate(provider: FakeProvider) -> Iterator[fleetgate.sync.Gate]:
    with fleetgate.sync.open_gate("memory://", CONFIG) as gate:
        yield gate


def openai_client(provider: FakeProvider, gate: fleetgate.sync.Gate, **options: Any) -> openai.OpenAI:
    http = openai.DefaultHttpxClient(transport=Transport(gate, provider="openai", **options))
    return openai.OpenAI(base_url=f"{provider.url}/v1", api_key="some-key", http_client=http, max_retries=1)


def async_client(provider: FakeProvider, gate: fleetgate.Gate, **options: Any) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(transport=AsyncTransport(gate, provider="openai", **options))
    return openai.AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="some-key", http_client=http, max_retries=0)


def wait_for(true: Callable[[], object]) -> None:
    end = monotonic() + PATIENCE_S
    while not true():
        assert monotonic() < end
        sleep(0.005)


def in_flight(gate: fleetgate.sync.Gate, name: str = "openai") -> int:
    (pool,) = [pool for pool in gate.status() if pool.pool == name]
    return pool.in_flight


def used(gate: fleetgate.Gate) -> list[UsageRow]:
    return list(gate.core.replica.state.usage.rows())


def test_threads_never_have_more_calls_than_slots_and_their_usage_is_counted(
    provider: FakeProvider, gate: fleetgate.sync.Gate
):
    provider.limit, provider.latency_s = 2, 0.01
    before = provider.stats
    with openai_client(provider, gate, project="web") as client, ThreadPoolExecutor(8) as threads:

        def call(number: int) -> str:
            if number % 2:
                chunks = client.chat.completions.create(
                    model="m1", messages=HI, stream=True, stream_options={"include_usage": True}
                )
                return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            return str(client.responses.create(model="m1", input="hi").output_text)

        answers = set(threads.map(call, range(24)))
    provider.limit, provider.latency_s = None, 0.0
    after = provider.stats
    assert answers == {"word0 word1 word2 word3 "}
    assert (after.calls - before.calls, after.refused - before.refused) == (24, 0)
    wait_for(lambda: in_flight(gate) == 0)
    (row,) = used(gate.thread.gate)
    assert (row.model, row.project) == ("openai/m1", "web")
    assert (row.usage.calls, row.usage.input, row.usage.output) == (24, 24 * 30, 24 * 7)
    assert row.usage.source != PARTIAL


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_both_packages_of_httpx_can_use_it(provider: FakeProvider, gate: fleetgate.sync.Gate, library: Any):
    with library.Client(transport=Transport(gate, provider="anthropic")) as client:
        body = {"model": "claude-x", "max_tokens": 9, "messages": HI}
        with client.stream("POST", f"{provider.url}/v1/messages", json=body) as response:
            assert in_flight(gate, "anthropic") == 1
            assert response.read()
        wait_for(lambda: in_flight(gate, "anthropic") == 0)
        assert client.get(f"{provider.url}/_stats").status_code == 200  # no model is called, no slot is needed
    (row,) = used(gate.thread.gate)
    assert (row.model, row.usage.input, row.usage.calls) == ("anthropic/claude-x", 30, 1)


def test_a_stream_holds_its_slot_until_it_is_closed_and_what_it_used_so_far_counts(
    provider: FakeProvider, gate: fleetgate.sync.Gate
):
    http = anthropic.DefaultHttpxClient(transport=Transport(gate, provider="anthropic"))
    with anthropic.Anthropic(base_url=provider.url, api_key="some-key", http_client=http) as client:
        stream = client.messages.create(model="claude-x", max_tokens=9, messages=HI, stream=True)
        next(iter(stream))
        assert in_flight(gate, "anthropic") == 1
        stream.close()
        wait_for(lambda: in_flight(gate, "anthropic") == 0)
    (row,) = used(gate.thread.gate)
    assert (row.usage.source, row.usage.input) == (PARTIAL, 30)


def test_a_response_that_the_program_forgets_releases_its_slot(provider: FakeProvider, gate: fleetgate.sync.Gate):
    client = httpx.Client(transport=Transport(gate, provider="openai"))
    request = client.build_request("POST", f"{provider.url}/v1/chat/completions", json={"model": "m1"})
    response = client.send(request, stream=True)
    assert in_flight(gate) == 1
    del response
    gc.collect()
    wait_for(lambda: in_flight(gate) == 0)
    client.close()


def test_a_429_pauses_the_pool_for_as_long_as_the_provider_says(provider: FakeProvider, gate: fleetgate.sync.Gate):
    provider.script(Fault(status=429, retry_after_s=30))
    with openai_client(provider, gate) as client, pytest.raises(openai.RateLimitError):
        client.with_options(max_retries=0).chat.completions.create(model="m1", messages=HI)
    (pool,) = [pool for pool in gate.status() if pool.pool == "openai"]
    assert (pool.in_flight, pool.paused_until is not None, pool.limit) == (0, True, 1)
    gate.resume("openai")
    assert [row for row in used(gate.thread.gate) if row.usage.calls] == []


def test_the_sdk_tries_again_and_waits_in_the_queue_then(provider: FakeProvider, gate: fleetgate.sync.Gate):
    provider.script(Fault(status=429, retry_after_s=0.2))
    with openai_client(provider, gate) as client:
        assert client.chat.completions.create(model="m1", messages=HI).choices
    assert provider.stats.faults_left == 0


def test_without_a_slot_in_time_the_sdk_raises_its_rate_limit_error_with_the_reason(
    provider: FakeProvider, gate: fleetgate.sync.Gate
):
    before = provider.stats.calls
    with (
        gate.lease("openai/m1"),
        gate.lease("openai/m1"),
        openai_client(provider, gate, timeout_s=0.05) as client,
        pytest.raises(openai.RateLimitError) as raised,
    ):
        client.chat.completions.create(model="m1", messages=HI)
    assert "2 of 2 slots of openai are taken" in str(raised.value)
    assert provider.stats.calls == before
    assert gate.queue() == []


def test_a_host_that_is_no_known_provider_is_explained(provider: FakeProvider, gate: fleetgate.sync.Gate):
    http = openai.DefaultHttpxClient(transport=Transport(gate))
    with (
        openai.OpenAI(base_url=f"{provider.url}/v1", api_key="some-key", http_client=http) as client,
        pytest.raises(openai.BadRequestError, match=r"which provider is .*127.0.0.1.*provider="),
    ):
        client.chat.completions.create(model="m1", messages=HI)


def test_the_provider_is_found_by_the_base_url_of_the_config(provider: FakeProvider):
    config = {"providers": {"umans": {"base_url": f"{provider.url}/v1"}}, "requests": {"umans": 1}}
    with fleetgate.sync.open_gate("memory://", config) as gate:
        http = openai.DefaultHttpxClient(transport=Transport(gate, account="work"))
        with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="some-key", http_client=http) as client:
            client.chat.completions.create(model="coder", messages=HI)
        wait_for(lambda: used(gate.thread.gate))
        (row,) = used(gate.thread.gate)
    assert row.model == "umans@work/coder"


def test_a_provider_that_cannot_be_reached_costs_no_slot_and_counts_no_usage(gate: fleetgate.sync.Gate):
    with httpx2.Client(transport=Transport(gate, provider="openai")) as client, pytest.raises(httpx2.ConnectError):
        client.post("http://127.0.0.1:9/v1/chat/completions", json={"model": "m1"})
    wait_for(lambda: in_flight(gate) == 0)
    assert [row for row in used(gate.thread.gate) if row.usage.calls] == []


def test_a_key_that_is_refused_does_not_hold_back_the_account(provider: FakeProvider, gate: fleetgate.sync.Gate):
    provider.script(Fault(status=401))
    with openai_client(provider, gate) as client:
        with pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(model="m1", messages=HI)
        assert client.chat.completions.create(model="m1", messages=HI).choices


def test_the_rates_that_the_headers_report_are_followed(gate: fleetgate.sync.Gate):
    with (
        FakeProvider(rates=[ProviderRate("calls", 50)]) as provider,
        httpx2.Client(transport=Transport(gate, provider="openai")) as client,
    ):
        client.post(f"{provider.url}/v1/chat/completions", json={"model": "m1"})
        wait_for(gate.budgets)
    (rate,) = gate.budgets()
    assert (rate.unit, rate.amount) == ("calls", 50)


def test_an_error_inside_a_stream_is_reported(provider: FakeProvider, gate: fleetgate.sync.Gate):
    provider.script(Fault(status=429, in_stream=True))
    with openai_client(provider, gate) as client:
        stream = client.chat.completions.create(model="m1", messages=HI, stream=True)
        with pytest.raises(openai.APIError):
            list(stream)
    wait_for(lambda: in_flight(gate) == 0)
    (pool,) = [pool for pool in gate.status() if pool.pool == "openai"]
    assert pool.paused_until is not None


async def test_a_cancelled_task_leaves_the_queue_or_releases_its_slot(provider: FakeProvider):
    provider.latency_s = 60.0
    try:
        async with fleetgate.open_gate("memory://", CONFIG) as gate, async_client(provider, gate) as client:
            tasks = [asyncio.create_task(client.chat.completions.create(model="m1", messages=HI)) for _ in range(3)]
            state = gate.core.replica
            await until(lambda: len(state.state.leases) == 2 and len(state.state.tickets) == 1)
            for task in tasks:
                task.cancel()
            assert all(
                isinstance(error, asyncio.CancelledError)
                for error in await asyncio.gather(*tasks, return_exceptions=True)
            )
            await until(lambda: not state.state.leases and not state.state.tickets)
    finally:
        provider.latency_s = 0.0


async def test_asyncio_programs_stream_and_close_early(provider: FakeProvider):
    async with fleetgate.open_gate("memory://", CONFIG) as gate, async_client(provider, gate) as client:
        whole = await client.chat.completions.create(model="m1", messages=HI)
        assert whole.usage is not None
        stream = await client.chat.completions.create(model="m1", messages=HI, stream=True)
        async for _ in stream:
            assert len(gate.core.replica.state.leases) == 1
            break
        await stream.close()
        await until(lambda: not gate.core.replica.state.leases)
        counted = sum(row.usage.calls for row in used(gate))
    assert counted == 2


async def test_a_gate_of_another_loop_is_refused(provider: FakeProvider):
    async with fleetgate.open_gate("memory://", CONFIG) as gate:
        transport = AsyncTransport(gate, provider="openai")

        async def call() -> None:
            async with httpx2.AsyncClient(transport=transport) as client:
                await client.post(f"{provider.url}/v1/chat/completions", json={"model": "m1"})

        def run() -> BaseException | None:
            try:
                asyncio.run(call())
            except fleetgate.FleetgateError as error:
                return error
            return None

        assert "another event loop" in str(await asyncio.to_thread(run))


def test_a_call_that_is_interrupted_while_it_waits_leaves_the_queue(provider: FakeProvider, gate: fleetgate.sync.Gate):
    interrupted = threading.Event()

    def interrupt() -> None:
        wait_for(lambda: len(gate.queue()) == 1)
        while not interrupted.wait(0.1):  # Python loses a signal that comes just before a thread blocks
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def once(number: int, frame: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, once)
    try:
        with gate.lease("openai/m1"), gate.lease("openai/m1"), openai_client(provider, gate) as client:
            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                client.chat.completions.create(model="m1", messages=HI)
            thread.join()
            wait_for(lambda: gate.queue() == [])
    finally:
        signal.signal(signal.SIGINT, before)
    wait_for(lambda: in_flight(gate) == 0)


def test_the_base_installation_is_enough_to_import_it():
    needless = ("httpx", "httpx2", "httptools", "uvicorn", "aiohappyeyeballs", "brotli", "zstandard")
    program = f"import sys; sys.modules.update(dict.fromkeys({needless!r}))\nimport fleetgate.httpx"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_example_of_the_page_runs(provider: FakeProvider, tmp_path: Path):
    """With one line more: the address of the provider of this test."""
    (program,) = re.findall(r"```python\n(.*?)```", (DOCS / "sdk-transport.md").read_text(), re.DOTALL)[:1]
    assert len(program.splitlines()) <= 14
    config = tmp_path / "config.toml"
    config.write_text(f'[providers.anthropic]\nbase_url = "{provider.url}"\napi = "anthropic"\n')
    env = {"ANTHROPIC_BASE_URL": provider.url, "ANTHROPIC_API_KEY": "some-key", "FLEETGATE_CONFIG": str(config)}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": "/usr/bin:/bin", "FLEETGATE_HOME": str(tmp_path / "s"), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout, ran.returncode) == ("word0 word1 word2 word3 \n", 0), ran.stderr
