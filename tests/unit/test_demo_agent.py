"""The simulated agent as a real process: its calls, its retries, its last words, and its own record."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo import records
from demo.agent import append_record
from fleetgate.testing import FakeProvider, Fault

AGENT = [sys.executable, str(Path(__file__).parents[2] / "demo" / "agent.py")]
FAST = ["--think", "0", "--backoff", "0.001"]


def run(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*AGENT, "--url", url, *FAST, *options], capture_output=True, text=True, timeout=60)


@contextmanager
def running(provider: FakeProvider, *options: str) -> Iterator[subprocess.Popen[str]]:
    """An agent in the middle of its first call."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*AGENT, "--url", provider.url, *FAST, *options], stdout=pipe, stderr=pipe, text=True
    ) as agent:
        try:
            provider.wait_until(lambda stats: stats.active == 1, timeout_s=30)
            yield agent
        finally:
            agent.kill()


@pytest.mark.parametrize("api", ["anthropic", "openai", "gemini"])
def test_it_makes_its_calls_one_after_the_other_and_records_start_and_end(api: str, tmp_path: Path):
    record = tmp_path / "record"
    with FakeProvider(limit=1) as provider:
        done = run(provider.url + "/prefix/", "--api", api, "--calls", "3", "--record", str(record), "--name", "one")
    assert (done.returncode, done.stderr) == (0, "")
    assert (provider.stats.calls, provider.stats.most_at_once) == (3, 1)
    start, end = records.read(record)
    assert (start["event"], start["agent"], start["pid"]) == ("start", "one", end["pid"])
    assert (end["event"], end["outcome"], end["calls"], end["refused"]) == ("end", "ok", 3, 0)


def test_it_tries_a_refused_call_again():
    with FakeProvider(faults=[Fault(status=429, retry_after_s=0.001), Fault(status=529)]) as provider:
        assert run(provider.url, "--calls", "1").returncode == 0
    assert provider.stats.calls == 3


def test_it_gives_up_after_its_retries_with_exit_1_and_says_why(tmp_path: Path):
    record = tmp_path / "record"
    with FakeProvider(limit=0) as provider:
        done = run(provider.url, "--retries", "2", "--record", str(record))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ERROR: exceeded retry limit, last status: 429 Too Many Requests"
    assert provider.stats.refused == 3
    end = records.read(record)[-1]
    assert (end["outcome"], end["refused"]) == ("failed", 3)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(status=401), "unexpected status: 401 Unauthorized"),
        (Fault(drop="middle"), "ERROR: "),
        (Fault(drop="before"), "connection error"),
        (Fault(status=529, in_stream=True), "before the answer was whole"),
        (Fault(status=400, body="plain"), "plain"),
    ],
)
def test_what_is_no_matter_of_time_ends_it_at_once(fault: Fault, words: str):
    with FakeProvider(faults=[fault]) as provider:
        done = run(provider.url)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert provider.stats.calls == 1


def test_a_provider_that_is_gone_is_an_error_and_not_a_hang():
    with FakeProvider() as provider:
        url = provider.url
    done = run(url)
    assert done.returncode == 1
    assert "connection error" in done.stderr


@pytest.mark.parametrize(
    ("number", "outcome"), [(signal.SIGTERM, "ended"), (signal.SIGINT, "interrupted")], ids=["TERM", "INT"]
)
def test_a_signal_ends_it_and_its_end_is_recorded(number: signal.Signals, outcome: str, tmp_path: Path):
    record = tmp_path / "record"
    with FakeProvider(latency_s=3600) as provider, running(provider, "--record", str(record)) as agent:
        assert list(records.running(records.read(record)).values()) == [agent.pid]
        agent.send_signal(number)
        assert agent.wait(30) == 128 + number
        provider.wait_until(lambda stats: stats.active == 0)
    assert records.read(record)[-1]["outcome"] == outcome
    assert records.running(records.read(record)) == {}


def test_killed_it_leaves_its_start_alone(tmp_path: Path):
    record = tmp_path / "record"
    with FakeProvider(latency_s=3600) as provider, running(provider, "--record", str(record)) as agent:
        agent.kill()
        agent.wait(30)
        provider.wait_until(lambda stats: stats.disconnected == 1)
    assert [line["event"] for line in records.read(record)] == ["start"]


@pytest.mark.parametrize(
    "options", [["--url", "nowhere"], ["--url", "http://"], [], ["--url", "http://x", "--calls", "z"]]
)
def test_nonsense_is_a_usage_error(options: list[str]):
    done = subprocess.run([*AGENT, *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "usage:" in done.stderr


def test_most_at_once_is_counted_by_the_order_of_the_lines(tmp_path: Path):
    record = tmp_path / "record"
    assert records.read(record) == []
    for event, agent in [("start", "a"), ("start", "b"), ("end", "a"), ("start", "c"), ("end", "x"), ("start", "d")]:
        append_record(str(record), {"event": event, "agent": agent, "pid": 1})
    with record.open("a") as file:
        file.write(json.dumps({"event": "start"})[:5])  # a line that is still being written
    seen = records.read(record)
    assert records.most_at_once(seen) == 3
    assert set(records.running(seen)) == {"b", "c", "d"}
