"""`/healthz`, `/readyz` and `/metrics` (rule H4)."""

from __future__ import annotations

from fleetgate.api.bodies import HealthAnswer
from fleetgate.api.metrics.prometheus import CONTENT_TYPE
from fleetgate.api.router.route import ApiResponse, DocumentedAnswer, get
from fleetgate.api.security.caller import ANYONE
from fleetgate.api.service import Service
from fleetgate.core.errors import FleetgateError


@get("/healthz", summary="Whether the process responds", role=ANYONE)
async def healthz() -> HealthAnswer:
    return HealthAnswer("ok")


@get(
    "/readyz",
    summary="Whether the store can be read, the workers are running and the service is not stopping",
    role=ANYONE,
    answers={503: DocumentedAnswer(HealthAnswer, "Not now")},
)
async def readyz(service: Service) -> ApiResponse[HealthAnswer]:
    if service.stopping.is_set():
        return ApiResponse(HealthAnswer("stopping", "the service is stopping"), status=503)
    try:
        await service.gate.read()
    except FleetgateError as error:
        return ApiResponse(HealthAnswer("store_unavailable", str(error)), status=503)
    if trouble := service.workers_trouble():
        return ApiResponse(HealthAnswer("workers_down", trouble), status=503)
    return ApiResponse(HealthAnswer("ok"))


@get(
    "/metrics",
    summary="Metrics for Prometheus",
    media_type="text/plain",
    answers={200: DocumentedAnswer(str, "Prometheus' text format", "text/plain")},
)
async def metrics(service: Service) -> ApiResponse[str]:
    state, _ = await service.look()
    text = service.counters.text(
        state, streams=len(service.feed), waiting=service.clients.listening, version=service.version
    )
    return ApiResponse(text, media_type=CONTENT_TYPE)
