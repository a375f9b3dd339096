"""Spans and metrics with the official SDK of OpenTelemetry, sent as OTLP over HTTP.

Names follow the semantic conventions for GenAI where they have one; the others begin with `fleetgate.`. The ids of a
run's trace are made from the id of its lease, so that the calls of a run, which end before it does, are part of its
trace, and a run that two services export is one trace.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from fleetgate import __version__
from fleetgate.core.usage import Usage
from fleetgate.core.views.pool_and_lease_views import PoolView
from fleetgate.telemetry.records import ProxiedCall, RunRecord

Attributes = dict[str, AttributeValue]

_TIMEOUT_S = 5
_SHUTDOWN_S = 2.0
# The buckets that the semantic conventions advise.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 600.0, 3600.0)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
_PROVIDERS = {"google": "gcp.gemini", "bedrock": "aws.bedrock", "azure": "azure.ai.openai", "mistral": "mistral_ai"}
_OPERATIONS = {"anthropic": "chat", "openai": "chat", "gemini": "generate_content"}
_GOOD = ("ok",)


class _Ids(RandomIdGenerator):
    """Random ids, unless the next span has ids of its own. Used by one thread."""

    trace_id = span_id = 0

    def generate_trace_id(self) -> int:
        found, self.trace_id = self.trace_id, 0
        return found or super().generate_trace_id()

    def generate_span_id(self) -> int:
        found, self.span_id = self.span_id, 0
        return found or super().generate_span_id()


class Otlp:
    """Where runs and calls become spans and metrics. Its methods are called by one thread."""

    def __init__(self, endpoint: str, host: str, on_result: Callable[[bool], None]) -> None:
        """`on_result` hears, in other threads, whether something could be sent."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # `on_result` says it once
        resource = Resource.create(
            {
                "service.name": os.environ.get("OTEL_SERVICE_NAME") or "fleetgate",
                "service.version": __version__,
                "host.name": host,
            }
        )
        self._ids = _Ids()
        self._tracers = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._tracers.add_span_processor(BatchSpanProcessor(_Spans(f"{endpoint}/v1/traces", on_result)))
        self._tracer = self._tracers.get_tracer("fleetgate", __version__)
        reader = PeriodicExportingMetricReader(_Metrics(f"{endpoint}/v1/metrics", on_result))
        self._meters = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = self._meters.get_meter("fleetgate", __version__)
        self._durations = meter.create_histogram(
            "gen_ai.client.operation.duration",
            "s",
            "How long calls and runs took, with their wait for a slot.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens used.", explicit_bucket_boundaries_advisory=_TOKENS
        )
        self._waits = meter.create_histogram(
            "fleetgate.wait.duration",
            "s",
            "How long calls and runs waited for a slot.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._costs = meter.create_counter("fleetgate.cost", "USD", "Cost, as far as it is known.")
        self._pools: Sequence[PoolView] = ()
        for name, text, read in (
            ("in_flight", "Slots in use.", lambda pool: pool.in_flight),
            ("limit", "The limit in force now.", lambda pool: pool.limit),
            ("queued", "Requests that wait for a slot.", lambda pool: pool.queued),
        ):
            meter.create_observable_gauge(f"fleetgate.pool.{name}", [self._observer(read)], "{slot}", text)

    def _observer(self, read: Callable[[PoolView], int | None]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(value, {"fleetgate.pool": pool.pool, "fleetgate.kind": pool.kind})
                for pool in self._pools
                if (value := read(pool)) is not None
            ]

        return observe

    def observe_pools(self, pools: Sequence[PoolView]) -> None:
        """The pools, for the next export."""
        self._pools = pools

    def add_run(self, run: RunRecord) -> None:
        """A run has ended: a trace with its wait and its work."""
        ended, held, waited = run.ended_ms, run.held_ms, run.waited_ms
        attributes: Attributes = {"gen_ai.operation.name": "invoke_agent", **_about(run.model, run.project)}
        attributes |= {
            "fleetgate.lease.id": run.id,
            "fleetgate.outcome": run.outcome,
            "fleetgate.wait_ms": waited,
            "fleetgate.job": run.job,
        }
        if run.program:
            attributes |= {"gen_ai.agent.name": run.program}
        if run.role:
            attributes |= {"fleetgate.role": run.role}
        if run.exit_code is not None:
            attributes |= {"process.exit.code": run.exit_code}
        if run.signal is not None:
            attributes |= {"fleetgate.signal": run.signal}
        attributes |= _used(run.usage)
        self._ids.trace_id, self._ids.span_id = trace_ids(run.id)
        span = self._tracer.start_span(
            f"invoke_agent {run.program}".strip(),
            trace.set_span_in_context(trace.INVALID_SPAN),
            SpanKind.INTERNAL,
            attributes,
            start_time=_ns(ended - held - waited),
        )
        if waited:
            inside = trace.set_span_in_context(span)
            wait = self._tracer.start_span("wait for a slot", inside, start_time=_ns(ended - held - waited))
            wait.end(_ns(ended - held))
        _judge(span, run.outcome)
        span.end(_ns(ended))
        self._count(attributes, run.outcome, held + waited, waited, run.usage)

    def add_call(self, call: ProxiedCall) -> None:
        """A proxied call has ended: a trace, or a part of its run's or its program's."""
        started = call.ended_ms - call.ms
        name = call.model.partition("/")[2]
        operation = _OPERATIONS.get(call.api, "chat")
        attributes: Attributes = {"gen_ai.operation.name": operation, **_about(call.model, call.project)}
        attributes |= {
            "server.address": call.server,
            "fleetgate.outcome": call.outcome,
            "fleetgate.wait_ms": call.waited_ms,
            "fleetgate.attempts": call.attempts,
            "fleetgate.upstream_ms": call.upstream_ms,
        }
        if call.status:
            attributes |= {"http.response.status_code": call.status}
        if call.client_left:
            attributes |= {"fleetgate.client_left": True}
        if call.run:
            attributes |= {"fleetgate.run": call.run}
        attributes |= _used(call.usage)
        span = self._tracer.start_span(
            f"{operation} {name}".strip(), _parent(call), SpanKind.CLIENT, attributes, start_time=_ns(started)
        )
        _judge(span, call.outcome)
        span.end(_ns(call.ended_ms))
        # The tokens of a run's calls are part of what the run used.
        self._count(attributes, call.outcome, call.ms, call.waited_ms, None if call.run else call.usage)

    def _count(self, attributes: Attributes, outcome: str, ms: int, waited_ms: int, usage: Usage | None) -> None:
        names = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "fleetgate.project")
        labels: Attributes = {name: attributes[name] for name in names if name in attributes}
        failed: Attributes = {} if outcome in _GOOD else {"error.type": outcome}
        self._durations.record(ms / 1000, {**labels, **failed})
        self._waits.record(waited_ms / 1000, labels)
        if usage is not None:
            given = usage.input + usage.cache_read + usage.cache_write
            self._tokens.record(given, {**labels, "gen_ai.token.type": "input"})
            self._tokens.record(usage.output, {**labels, "gen_ai.token.type": "output"})
            if usage.cost:
                self._costs.add(usage.cost / 1_000_000, labels)

    def close(self) -> None:
        """Send what is left, within two seconds."""

        def stop() -> None:
            self._tracers.shutdown()
            self._meters.shutdown(timeout_millis=_SHUTDOWN_S * 1000)

        thread = threading.Thread(target=stop, daemon=True)
        thread.start()
        thread.join(_SHUTDOWN_S)


def trace_ids(lease: str) -> tuple[int, int]:
    """The ids of the trace and of the outermost span of a run."""
    digest = hashlib.sha256(f"fleetgate run {lease}".encode()).digest()
    return int.from_bytes(digest[:16]), int.from_bytes(digest[16:24])


def _parent(call: ProxiedCall) -> Context:
    if call.run:
        trace_id, span_id = trace_ids(call.run)
        above = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        return trace.set_span_in_context(NonRecordingSpan(above))
    nothing = trace.set_span_in_context(trace.INVALID_SPAN)
    return TraceContextTextMapPropagator().extract({"traceparent": call.traceparent}, nothing)


def _about(model: str, project: str) -> Attributes:
    found: Attributes = {"fleetgate.project": project}
    if model:
        head, _, name = model.partition("/")
        provider, _, account = head.partition("@")
        found |= {"gen_ai.provider.name": _PROVIDERS.get(provider, provider), "gen_ai.request.model": name}
        if account:
            found |= {"fleetgate.account": account}
    return found


def _used(usage: Usage | None) -> Attributes:
    if usage is None:
        return {}
    found: Attributes = {
        "gen_ai.usage.input_tokens": usage.input + usage.cache_read + usage.cache_write,
        "gen_ai.usage.output_tokens": usage.output,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
        "fleetgate.usage.source": usage.source,
    }
    return found if usage.cost is None else {**found, "fleetgate.cost_usd": usage.cost / 1_000_000}


def _judge(span: trace.Span, outcome: str) -> None:
    if outcome not in _GOOD:
        span.set_attribute("error.type", outcome)
        span.set_status(Status(StatusCode.ERROR, outcome))


def _ns(ms: int) -> int:
    return ms * 1_000_000


class _Spans(OTLPSpanExporter):
    """The exporter of spans, which says whether it worked."""

    def __init__(self, endpoint: str, on_result: Callable[[bool], None]) -> None:
        super().__init__(endpoint, timeout=_TIMEOUT_S)
        self._on_result = on_result

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result: SpanExportResult = super().export(spans)
        self._on_result(result is SpanExportResult.SUCCESS)
        return result


class _Metrics(OTLPMetricExporter):
    """The exporter of metrics, which says whether it worked."""

    def __init__(self, endpoint: str, on_result: Callable[[bool], None]) -> None:
        super().__init__(endpoint, timeout=_TIMEOUT_S)
        self._on_result = on_result

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **more: object
    ) -> MetricExportResult:
        result: MetricExportResult = super().export(metrics_data, timeout_millis, **more)
        self._on_result(result is MetricExportResult.SUCCESS)
        return result
