"""All routes as one ASGI application."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from types import ModuleType
from typing import Any

from litestar import Litestar, Request, Response
from litestar.config.response_cache import ResponseCacheConfig
from litestar.di import Provide
from litestar.exceptions import (
    ClientException,
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    SerializationException,
    ValidationException,
)
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.plugins.core import MsgspecDIPlugin

from fleetgate.api.errors import ErrorShape, RequestRefused, complain, invalid_body, not_json, refusal
from fleetgate.api.events import sse
from fleetgate.api.http.proxy_mount import ProxyMount
from fleetgate.api.jobs import routes as job_routes
from fleetgate.api.leases import routes as lease_routes
from fleetgate.api.leases.fast_path import FastPath
from fleetgate.api.routes import (
    backoffs,
    budgets,
    caps,
    concurrency_compat,
    dashboard_files,
    health,
    pools,
    queue,
    read,
    usage,
)
from fleetgate.api.security import session_routes
from fleetgate.api.security.request_guard import App, Guard
from fleetgate.api.service import Service
from fleetgate.core.errors import FleetgateError, InternalError

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


class _Litestar(Litestar):
    """Without plugins for libraries that we do not use: where pydantic is there, it takes a quarter of a second."""

    @staticmethod
    def _get_default_plugins(plugins: list[Any]) -> list[Any]:
        return [*plugins, MsgspecDIPlugin()]


def build(service: Service, connections: Callable[[], int], most_connections: int) -> tuple[App, FastPath]:
    """The application, with everything around it; and what is answered without it."""
    app = _Litestar(
        _documented(),
        dependencies={"service": Provide(lambda: service, sync_to_thread=False)},
        openapi_config=OpenAPIConfig(
            title="Fleetgate",
            version=service.version,
            description="Admission control for fleets of AI agents.",
            path="/_openapi",
            render_plugins=[JsonRenderPlugin(path="/openapi.json")],
            components=[Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")})],
            security=[{"token": []}, {}],
            create_examples=False,
        ),
        exception_handlers={Exception: _on_error},
        response_cache_config=ResponseCacheConfig(default_expiration=None),
        include_in_schema=True,
        logging_config=None,
        debug=False,
    )
    guard = Guard(budgets.with_encoded_names(app), service.access, connections, most_connections)  # type: ignore[arg-type]
    return ProxyMount(guard, service.proxy), FastPath(service, guard)


def _documented() -> list[HTTPRouteHandler]:
    """All routes. Litestar makes up examples of answers, with a package that is not installed, unless told not to."""
    common = {
        status: ResponseSpec(ErrorShape, description=text, generate_examples=False) for status, text in _ERRORS.items()
    }
    own_modules = (
        read,
        usage,
        session_routes,
        queue,
        caps,
        budgets,
        pools,
        backoffs,
        lease_routes,
        job_routes,
        health,
        sse,
    )
    documented = _routes(*own_modules)
    for handler in documented:
        own = {status: replace(each, generate_examples=False) for status, each in (handler.responses or {}).items()}
        handler.responses = {**common, **own}
    return _routes(concurrency_compat, dashboard_files) + documented


def _routes(*modules: ModuleType) -> list[HTTPRouteHandler]:
    """The routes that these modules define."""
    return [each for module in modules for each in vars(module).values() if isinstance(each, HTTPRouteHandler)]


def _on_error(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    path = request.scope["path"]
    if path.startswith("/concurrency/") and isinstance(error, FleetgateError) and not isinstance(error, RequestRefused):
        try:
            return concurrency_compat.on_error(error)
        except Exception as other:
            error = other
    if isinstance(error, HTTPException):
        error = _of_litestar(request, error)
    status, shape, headers = refusal(error)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        complain(f"{request.method} {path}", error)
    return Response(shape, status_code=status, headers=headers, media_type="application/json")


def _of_litestar(request: Request[Any, Any, Any], error: HTTPException) -> RequestRefused | InternalError:
    """What the router found wrong, as a sentence."""
    path = request.scope["path"]
    if isinstance(error, MethodNotAllowedException) and (allowed := _allowed(request.app, path)):
        return RequestRefused(
            405, "method_not_allowed", f"{request.method} is not for {path}: valid is {allowed}", allow=allowed
        )
    if isinstance(error, NotFoundException | MethodNotAllowedException):
        return RequestRefused(404, "not_found", f"there is no {path}: /docs lists what there is")
    if isinstance(error, ValidationException):
        return _invalid(error)
    if isinstance(error, SerializationException) or isinstance(error.__cause__, SerializationException):
        return not_json(error.detail)
    if isinstance(error, ClientException):
        if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return RequestRefused(413, "too_large", "the body is too large")
        if error.status_code == HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
            return RequestRefused(415, "not_json", "the body must be JSON, with Content-Type: application/json")
        return RequestRefused(400, "bad_request", _sentence(error.detail))
    return InternalError(str(error))


def _invalid(error: ValidationException) -> RequestRefused:
    """Names the first field that is wrong."""
    extra = error.extra if isinstance(error.extra, list) else []
    first = next((each for each in extra if isinstance(each, dict)), None)
    if first is None:
        return RequestRefused(400, "bad_request", _sentence(error.detail))
    return invalid_body(
        str(first.get("message", "is not valid")), str(first.get("key", "")).removeprefix("data").lstrip(".")
    )


def _allowed(app: Litestar, path: str) -> str:
    """The methods that a path is for."""
    methods: set[str] = set()
    for route in app.routes:
        pattern = re.sub(r"\\{[^}]*:path\\}", ".+", re.sub(r"\\{[^}:]*:[^}]*str\\}", "[^/]+", re.escape(route.path)))
        if re.fullmatch(pattern, path):
            methods |= set(getattr(route, "methods", ()))
    return ", ".join(sorted(methods))


def _sentence(text: str) -> str:
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]
