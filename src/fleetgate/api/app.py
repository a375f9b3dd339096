"""All routes as one ASGI application."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from types import ModuleType
from typing import Any

from msgspec.structs import replace

from fleetgate.api.errors import ErrorShape, RequestRefused, complain, refusal
from fleetgate.api.events import sse
from fleetgate.api.http.proxy_mount import ProxyMount
from fleetgate.api.jobs import routes as job_routes
from fleetgate.api.leases import routes as lease_routes
from fleetgate.api.leases.fast_path import FastPath
from fleetgate.api.router.openapi import openapi_document
from fleetgate.api.router.route import JSON, ApiRequest, ApiResponse, ApiRoute, DocumentedAnswer
from fleetgate.api.router.router import Router
from fleetgate.api.routes import (
    backoffs,
    budgets,
    caps,
    concurrency_compat,
    dashboard_files,
    health,
    history_search,
    plans,
    pools,
    projects,
    queue,
    read,
    usage,
)
from fleetgate.api.routes.dashboard_files import ApiDocument
from fleetgate.api.security import session_routes
from fleetgate.api.security.request_guard import App, Guard
from fleetgate.api.service import Service
from fleetgate.core.errors import FleetgateError

_ERRORS = {
    400: "The request is not valid; the sentence says what is",
    401: "A token is required, or the token is wrong",
    403: "The Host is unknown, or the request comes from a page of another origin",
    404: "Not found",
    405: "The method is not allowed for this path",
    409: "Conflicts with the current state",
    410: "It has ended",
    413: "The body is too large",
    414: "The URL is too long",
    415: "The body is not JSON",
    429: "Too many requests are waiting",
    431: "The headers are too long",
    503: "The store is unavailable, or the service is stopping",
}


def build(service: Service, connections: Callable[[], int], most_connections: int) -> tuple[App, FastPath]:
    """The application, with everything around it; and what is answered without it."""
    routes = all_routes()
    given: dict[str, Any] = {"service": service}
    given["document"] = ApiDocument(lambda: describe(routes, service.version))
    router = Router(routes, given, _on_error)
    guard = Guard(budgets.with_encoded_names(router), service.access, connections, most_connections)
    return ProxyMount(guard, service.proxy), FastPath(service, guard)


def describe(routes: Iterable[ApiRoute], version: str) -> dict[str, Any]:
    """The OpenAPI document."""
    info = {"title": "Fleetgate", "version": version, "description": "Admission control for fleets of AI agents."}
    return openapi_document(routes, frozenset(("service", "document")), info)


def all_routes() -> list[ApiRoute]:
    """All routes; those of the API document the errors that any of them may answer with."""
    common = {status: DocumentedAnswer(ErrorShape, text) for status, text in _ERRORS.items()}
    own_modules = (
        read,
        history_search,
        projects,
        usage,
        session_routes,
        queue,
        caps,
        budgets,
        plans,
        pools,
        backoffs,
        lease_routes,
        job_routes,
        health,
        sse,
    )
    own = [replace(each, answers={**common, **each.answers}) for each in _routes(*own_modules)]
    return _routes(concurrency_compat, dashboard_files) + own


def _routes(*modules: ModuleType) -> list[ApiRoute]:
    """The routes that these modules define."""
    return [each for module in modules for each in vars(module).values() if isinstance(each, ApiRoute)]


def _on_error(request: ApiRequest, error: Exception) -> ApiResponse[Any]:
    path = request.path
    if path.startswith("/concurrency/") and isinstance(error, FleetgateError) and not isinstance(error, RequestRefused):
        try:
            return concurrency_compat.on_error(error)
        except Exception as other:
            error = other
    status, shape, headers = refusal(error)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        complain(f"{request.method} {path}", error)
    return ApiResponse(shape, status=status, headers=headers, media_type=JSON)
