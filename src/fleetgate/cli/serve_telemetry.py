"""Telemetry of `fleetgate serve`: the exporter that the config asks for, and records of the proxy's calls for it."""

from __future__ import annotations

from collections.abc import Callable
from time import time_ns

from msgspec.structs import replace

from fleetgate.config.file import Loaded
from fleetgate.config.install_hint import NotInstalled
from fleetgate.config.paths import store_url
from fleetgate.config.settings import Settings
from fleetgate.core.usage import Usage
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.prices.lookup import price_of
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log import open_log
from fleetgate.log.store_url import local_folder
from fleetgate.proxy.calls.exchange import Exchange
from fleetgate.telemetry.exporter import Exporter, tell_results
from fleetgate.telemetry.records import ProxiedCall


class Telemetry:
    """The exporter of one service, or nothing where the config names no endpoint."""

    def __init__(self, loaded: Loaded | None, say: Callable[[str], None]) -> None:
        self._settings = loaded.settings if loaded is not None else Settings()
        self._exporter = _exporter(loaded, self._settings.otel_endpoint, say) if self._settings.otel_endpoint else None
        if self._exporter is not None:
            self._exporter.start()

    @property
    def on_end(self) -> Callable[[Exchange, float], None] | None:
        """What the proxy calls at the end of each request."""
        return None if self._exporter is None else self._note

    def _note(self, exchange: Exchange, seconds: float) -> None:
        if exchange.model and self._exporter is not None:
            self._exporter.note_call(_record(exchange, seconds, self._usage_of(exchange)))

    def _usage_of(self, exchange: Exchange) -> Usage | None:
        usage = exchange.usage if exchange.reader is None else exchange.reader.usage()
        if usage is None or not usage.calls or usage.cost is not None:
            return usage
        price = price_of(exchange.model, self._settings.prices)
        return usage if price is None else replace(usage, cost=price.cost(usage))

    def close(self) -> None:
        if self._exporter is not None:
            self._exporter.close()


def _exporter(loaded: Loaded | None, endpoint: str, say: Callable[[str], None]) -> Exporter | None:
    try:
        from fleetgate.telemetry.otlp import Otlp
    except ModuleNotFoundError as error:
        say(f"telemetry is off: {NotInstalled('[otel] endpoint', 'otel', error)}")
        return None

    def open_gate() -> DirectGate:
        url = store_url()
        return DirectGate(open_log(url), loaded, local_folder(url))

    sink = Otlp(endpoint, process_identity.host_name(), tell_results(endpoint, say))
    return Exporter(open_gate, sink, say)


def _record(exchange: Exchange, seconds: float, usage: Usage | None) -> ProxiedCall:
    said = exchange.outcome
    parents = [value for name, value in exchange.headers.sent if name == b"traceparent"]
    return ProxiedCall(
        model=exchange.model,
        project=exchange.project,
        ended_ms=time_ns() // 1_000_000,
        ms=int(seconds * 1000),
        waited_ms=int(exchange.queue_s * 1000),
        upstream_ms=int(exchange.upstream_s * 1000),
        attempts=exchange.attempts,
        status=exchange.status,
        outcome="ok" if said is None else said.kind,
        api=exchange.api,
        server=exchange.upstream.host,
        client_left=exchange.gone,
        run=exchange.run,
        traceparent=parents[0].decode("latin-1")[:100] if parents else "",
        usage=usage,
    )
