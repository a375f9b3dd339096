"""Traces and metrics of a real service, as a small OTLP receiver gets them."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Spec
from fleetgate.core.usage import Usage
from fleetgate.core.views.pool_and_lease_views import PoolView
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log import open_log
from fleetgate.telemetry.exporter import Exporter, tell_results
from fleetgate.telemetry.otlp import Otlp, trace_ids
from fleetgate.telemetry.records import ProxiedCall, RunRecord, program_of
from fleetgate.testing import FakeProvider
from fleetgate.testing.script import Fault
from tests.api.served import Served

KEY = "sk-ant-secret-0123456789"
PROMPT = "a prompt that is private"
FAST = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_METRIC_EXPORT_INTERVAL": "200"}


class Receiver:
    """Collects what is exported; `broken` answers every export with 503."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        self.spans: list[Any] = []
        self.metrics: dict[str, Any] = {}
        self.resource: dict[str, Any] = {}
        self.broken = False
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                self.send_response(503 if receiver.broken else 200)
                self.end_headers()
                if not receiver.broken:
                    receiver.take(self.path, body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, path: str, body: bytes) -> None:
        self.raw.append(body)
        if path == "/v1/traces":
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resource = attributes(group.resource)
                self.spans += [span for scope in group.scope_spans for span in scope.spans]
        else:
            assert path == "/v1/metrics"
            for group in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics |= {metric.name: metric for scope in group.scope_metrics for metric in scope.metrics}

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def attributes(thing: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in thing.attributes}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(usage=Usage(input=30, cache_read=5, output=7)) as provider:
        yield provider


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver, provider: FakeProvider) -> Iterator[Served]:
    config = (
        f'[otel]\nendpoint = "{receiver.url}/"\n[prices]\numans = {{ input = 1, output = 2 }}\n'
        f'[providers.umans]\nbase_url = "{provider.url}/v1"\n[requests]\numans = 3\n'
    )
    with Served(tmp_path_factory.mktemp("otel"), config, **FAST) as served:
        yield served


def call(served: Served, path: str = "/umans/v1/chat/completions", **headers: str) -> int:
    body = {"model": "coder", "messages": [{"role": "user", "content": PROMPT}]}
    return served.request("POST", path, body, token="", authorization=f"Bearer {KEY}", **headers).status


def test_a_run_is_a_trace_with_its_wait_and_its_outcome(served: Served, receiver: Receiver):
    assert served.cli("run", "-m", "umans/coder", "--project", "web", "--role", "tester", "--", "false").returncode == 1
    served.wait_until(lambda: receiver.named("invoke_agent false"), "the span of the run")
    (span,) = receiver.named("invoke_agent false")
    said = attributes(span)
    assert said["fleetgate.outcome"] == said["error.type"] == "local_error"
    assert (said["gen_ai.operation.name"], said["gen_ai.agent.name"]) == ("invoke_agent", "false")
    assert (said["gen_ai.provider.name"], said["gen_ai.request.model"]) == ("umans", "coder")
    assert (said["fleetgate.project"], said["fleetgate.role"], said["process.exit.code"]) == ("web", "tester", 1)
    assert span.trace_id == trace_ids(said["fleetgate.lease.id"])[0].to_bytes(16)
    assert 0 <= span.end_time_unix_nano - span.start_time_unix_nano < 60 * 10**9
    assert receiver.resource["service.name"] == "fleetgate"


def test_a_proxied_call_is_a_span_with_wait_attempts_and_tokens(
    served: Served, receiver: Receiver, provider: FakeProvider
):
    provider.script(Fault(status=429, retry_after_s=0.1))
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    assert call(served, traceparent=f"00-{trace_id}-b7ad6b7169203331-01") == 200
    served.wait_until(lambda: receiver.named("chat coder"), "the span of the call")
    (span,) = receiver.named("chat coder")
    said = attributes(span)
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (35, 7)
    assert (said["fleetgate.attempts"], said["fleetgate.outcome"]) == (2, "ok")
    assert (said["http.response.status_code"], said["server.address"]) == (200, "127.0.0.1")
    assert said["fleetgate.cost_usd"] > 0
    assert said["fleetgate.wait_ms"] >= 90
    assert span.trace_id.hex() == trace_id


def test_the_calls_of_a_run_are_part_of_its_trace(served: Served, receiver: Receiver, tmp_path: Path):
    agent = tmp_path / "agent"
    agent.write_text(
        f"#!{sys.executable}\nimport os, urllib.request\n"
        f"url = 'http://127.0.0.1:{served.port}/l/' + os.environ['FLEETGATE_LEASE'] + '/umans/v1/chat/completions'\n"
        f"headers = {{'authorization': 'Bearer {KEY}', 'content-type': 'application/json'}}\n"
        """urllib.request.urlopen(urllib.request.Request(url, b'{"model": "small"}', headers)).read()\n"""
    )
    agent.chmod(0o755)
    assert served.cli("run", "-m", "umans/small", "--", str(agent)).returncode == 0
    served.wait_until(lambda: receiver.named("invoke_agent agent") and receiver.named("chat small"), "both spans")
    (run,), (inner,) = receiver.named("invoke_agent agent"), receiver.named("chat small")
    assert (inner.trace_id, inner.parent_span_id) == (run.trace_id, run.span_id)
    assert attributes(run)["gen_ai.usage.input_tokens"] == 35
    served.wait_until(lambda: "gen_ai.client.token.usage" in receiver.metrics, "the metrics")


def test_metrics_follow_the_conventions_and_show_the_pools(served: Served, receiver: Receiver):
    call(served)
    names = {"gen_ai.client.operation.duration", "gen_ai.client.token.usage", "fleetgate.wait.duration"}
    names |= {"fleetgate.cost", "fleetgate.pool.in_flight", "fleetgate.pool.limit", "fleetgate.pool.queued"}
    served.wait_until(lambda: names <= set(receiver.metrics), f"{names}, not {set(receiver.metrics)}")
    points = receiver.metrics["gen_ai.client.token.usage"].histogram.data_points
    sums = {(attributes(point)["gen_ai.token.type"], attributes(point)["gen_ai.request.model"]) for point in points}
    assert {("input", "coder"), ("output", "coder")} <= sums
    limits = receiver.metrics["fleetgate.pool.limit"].gauge.data_points
    assert ("umans", 3) in {(attributes(point)["fleetgate.pool"], point.as_int) for point in limits}


def test_neither_keys_nor_prompts_nor_arguments_are_exported(served: Served, receiver: Receiver):
    before = len(receiver.spans)
    assert served.cli("run", "--", "sh", "-c", f"true {KEY} {PROMPT}").returncode == 0
    served.wait_until(lambda: len(receiver.spans) > before, "the span of the run")
    everything = b"".join(receiver.raw)
    assert KEY.encode() not in everything
    assert b"prompt" not in everything


def test_an_endpoint_that_is_down_disturbs_nothing_and_is_used_again_later(served: Served, receiver: Receiver):
    receiver.broken = True
    try:
        assert call(served) == 200
        assert served.cli("run", "--", "true").returncode == 0
    finally:
        receiver.broken = False
    before = len(receiver.named("chat coder"))
    assert call(served) == 200
    served.wait_until(lambda: len(receiver.named("chat coder")) > before, "calls are exported again")


def test_closing_takes_two_seconds_at_most_while_nothing_answers():
    said: list[str] = []
    sink = Otlp("http://127.0.0.1:9", "host", tell_results("http://127.0.0.1:9", said.append))
    began = monotonic()
    for _ in range(500):
        sink.add_call(ProxiedCall("umans/coder", "web", 1, 1, 0, 1, 1, 200, "ok", "openai", "host"))
    sink.close()
    assert monotonic() - began < 30  # not the minutes that its tries would take
    tell = tell_results("http://x", said.append)
    for worked in (True, False, False, True, True):
        tell(worked)
    assert said[-2:] == [
        "telemetry cannot be sent to http://x (still trying; nothing else is affected)",
        "telemetry is sent to http://x again",
    ]


def test_a_run_imports_nothing_of_telemetry_even_where_it_is_configured(served: Served):
    program = "import sys; from fleetgate.cli.main import invoke; code = invoke(['run', '--', 'true']); "
    program += "print(code, sorted(name for name in sys.modules if 'telemetry' in name))"
    argv = [sys.executable, "-c", program]
    ran = subprocess.run(argv, env=served.environ, capture_output=True, text=True, check=False)
    assert ran.stdout == "0 []\n", ran


@pytest.mark.parametrize(
    ("command", "program"),
    [("/usr/bin/claude -p secret", "claude"), ("", ""), ("a\x1bb", ""), ("opencode", "opencode")],
)
def test_of_a_command_only_the_name_of_its_program_is_kept(command: str, program: str):
    assert program_of(command) == program


class Collected:
    """A sink that keeps the runs."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.reads = False

    def add_run(self, run: RunRecord) -> None:
        self.runs.append(run.program)

    def add_call(self, call: ProxiedCall) -> None: ...
    def observe_pools(self, pools: list[PoolView]) -> None:
        self.reads = True

    def close(self) -> None: ...


@pytest.mark.parametrize("shared", [False, True])
def test_of_a_store_that_hosts_share_a_service_exports_the_runs_of_its_own_host(tmp_path: Path, shared: bool):
    def open_gate() -> DirectGate:
        return DirectGate(open_log(f"sqlite://{tmp_path}"), None, str(tmp_path))

    def open_other() -> DirectGate:
        gate = open_gate()
        gate.log.is_shared = shared  # type: ignore[misc]
        return gate

    gate, sink = open_gate(), Collected()
    exporter = Exporter(open_other, sink, print)
    exporter.start()
    Served.wait_until(lambda: sink.reads, "the exporter reads the log")
    try:
        for ident, host in (("elsewhere", "another"), ("here", gate.host)):
            spec = Spec(models=(), host=host)
            gate.one(cmd.Acquire(ident, spec, gate.me, wait=False, command=f"/bin/{ident} -p secret"))
            gate.one(cmd.Claim(ident, f"{host}|boot|1|2|3"))
            gate.one(cmd.Release(ident))
        Served.wait_until(lambda: "here" in sink.runs, "the run")
    finally:
        exporter.close()
        gate.close()
    assert sink.runs == (["here"] if shared else ["elsewhere", "here"])
