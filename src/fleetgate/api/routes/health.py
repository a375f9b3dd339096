"""`/healthz`, `/readyz` and `/metrics` (rule H4)."""

from __future__ import annotations

from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec

from fleetgate.api.bodies import HealthAnswer
from fleetgate.api.metrics.prometheus import CONTENT_TYPE
from fleetgate.api.service import Service
from fleetgate.core.errors import FleetgateError


@get("/healthz", summary="Whether the process responds")
async def healthz() -> HealthAnswer:
    return HealthAnswer("ok")


@get(
    "/readyz",
    summary="Whether the store can be read, the workers are running and the service is not stopping",
    responses={503: ResponseSpec(HealthAnswer, description="Not now", generate_examples=False)},
)
async def readyz(service: Service) -> Response[HealthAnswer]:
    if service.stopping.is_set():
        return Response(HealthAnswer("stopping", "the service is stopping"), status_code=503)
    try:
        await service.gate.read()
    except FleetgateError as error:
        return Response(HealthAnswer("store_unavailable", str(error)), status_code=503)
    if trouble := service.workers_trouble():
        return Response(HealthAnswer("workers_down", trouble), status_code=503)
    return Response(HealthAnswer("ok"))


@get(
    "/metrics",
    summary="Metrics for Prometheus",
    media_type="text/plain",
    responses={200: ResponseSpec(str, description="Prometheus' text format", media_type="text/plain")},
)
async def metrics(service: Service) -> Response[str]:
    state, _ = await service.look()
    text = service.counters.text(
        state, streams=len(service.feed), waiting=service.clients.listening, version=service.version
    )
    return Response(text, media_type=CONTENT_TYPE)
