"""All routes as one ASGI application, and the handler of requests that has them behind it."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from types import ModuleType
from typing import Any

from msgspec.structs import replace

from fleetgate.api.errors import ErrorShape, RequestRefused, complain, refusal
from fleetgate.api.events import sse
from fleetgate.api.http.dispatch import Dispatch, ProxyHandler
from fleetgate.api.jobs import routes as job_routes
from fleetgate.api.leases import routes as lease_routes
from fleetgate.api.leases.direct import DirectLeases
from fleetgate.api.limits import routes as limit_routes
from fleetgate.api.router.openapi import openapi_document
from fleetgate.api.router.route import JSON, ApiRequest, ApiResponse, ApiRoute, DocumentedAnswer
from fleetgate.api.router.router import Router
from fleetgate.api.routes import (
    accounts,
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
from fleetgate.api.security import key_routes, session_routes
from fleetgate.api.security.request_guard import SECURE_HEADERS, Guard
from fleetgate.api.service import Service
from fleetgate.core.errors import FleetgateError
from fleetgate.front.asgi import App, AsgiHandler
from fleetgate.front.server import FrontServer

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


def build(service: Service, proxy: ProxyHandler, server: FrontServer) -> tuple[Dispatch, App]:
    """The handler of all requests; and the application behind it."""
    routes = all_routes()
    given: dict[str, Any] = {"service": service}
    given["document"] = ApiDocument(lambda: describe(routes, service.version))
    app: App = budgets.with_encoded_names(Router(routes, given, _on_error))
    guard = Guard(service.access, server.__len__, server.most_connections)
    leases = DirectLeases(service, server.keep)
    return Dispatch(guard, proxy, leases, AsgiHandler(app, server.keep, complain, SECURE_HEADERS)), app


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
        limit_routes,
        projects,
        usage,
        session_routes,
        key_routes,
        queue,
        caps,
        budgets,
        plans,
        accounts,
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
