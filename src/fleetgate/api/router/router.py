"""The router: an ASGI application that finds the route of a request, calls its function and sends the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from fleetgate.api.errors import RequestRefused
from fleetgate.api.router.arguments import ArgumentReader, path_names
from fleetgate.api.router.route import JSON, ApiRequest, ApiResponse, ApiRoute, Receive, Scope, Send
from fleetgate.front.request import ClientLeft
from fleetgate.gate.change_author import acting_as

OnError = Callable[[ApiRequest, Exception], ApiResponse[Any]]

_BODILESS = (204, 304)
_encode = msgspec.json.Encoder().encode


class Bound:
    """A route with the values that it is given."""

    __slots__ = ("arguments", "handler", "route")

    def __init__(self, route: ApiRoute, given: Mapping[str, Any]) -> None:
        self.route = route
        self.handler = route.handler
        self.arguments = ArgumentReader(route, given)


Methods = dict[str, Bound]


class Router:
    """All routes. A slash at the end of a path means nothing."""

    def __init__(self, routes: Iterable[ApiRoute], given: Mapping[str, Any], on_error: OnError) -> None:
        self._on_error = on_error
        self._fixed: dict[str, Methods] = {}
        self._patterns: dict[str, tuple[re.Pattern[str], Methods]] = {}
        for route in routes:
            self._methods(route.path).setdefault(route.method, Bound(route, given))

    def _methods(self, path: str) -> Methods:
        if not path_names(path):
            return self._fixed.setdefault(path, {})
        return self._patterns.setdefault(path, (_pattern(path), {}))[1]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = ApiRequest(scope, receive)
        status, media_type = 200, JSON
        try:
            found = self._find(request.method, request.path)
            if isinstance(found, str):  # OPTIONS
                answer: Any = ApiResponse(b"", status=204, headers={"allow": found})
            else:
                bound, in_path = found
                request.caller.must_be(bound.route.role)
                status, media_type = bound.route.status, bound.route.media_type
                with acting_as(request.caller.author):
                    answer = await bound.handler(**await bound.arguments.read(request, in_path))
        except ClientLeft:
            return
        except Exception as error:
            answer = self._on_error(request, error)
        if isinstance(answer, ApiResponse):
            await _send(answer, answer.status or status, answer.media_type or media_type, send)
        elif callable(answer):  # an ASGI application
            await answer(scope, receive, send)
        else:
            await _send(ApiResponse(answer), status, media_type, send)

    def _find(self, method: str, path: str) -> tuple[Bound, Mapping[str, str]] | str:
        """The route for a request and the parts of its path; for OPTIONS, the methods of the path."""
        there = list(self._at(path.rstrip("/") or "/"))
        for methods, in_path in there:
            if method in methods:
                return methods[method], in_path
        if not there:
            raise RequestRefused(404, "not_found", f"there is no {path}: /docs lists what there is")
        allowed = ", ".join(sorted({"OPTIONS"}.union(*(methods for methods, _ in there))))
        if method == "OPTIONS":
            return allowed
        raise RequestRefused(
            405, "method_not_allowed", f"{method} is not for {path}: valid is {allowed}", allow=allowed
        )

    def _at(self, path: str) -> Iterable[tuple[Methods, Mapping[str, str]]]:
        """The methods that this path has, of all routes that match it; those without a name in their path first."""
        if path in self._fixed:
            yield self._fixed[path], {}
        for pattern, methods in self._patterns.values():
            found = pattern.fullmatch(path)
            if found is not None:
                yield methods, found.groupdict()


def _pattern(path: str) -> re.Pattern[str]:
    parts = []
    for part in path.split("/"):
        if part.startswith("{"):
            name, _, kind = part[1:-1].partition(":")
            parts.append(f"(?P<{name}>{'.+' if kind == 'path' else '[^/]+'})")
        else:
            parts.append(re.escape(part))
    return re.compile("/".join(parts), re.DOTALL)


async def _send(answer: ApiResponse[Any], status: int, media_type: str, send: Send) -> None:
    body = answer.content  # bytes are sent as they are
    if isinstance(body, str) and media_type != JSON:
        body = body.encode()
    elif not isinstance(body, bytes):
        body = _encode(body)
    headers = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
    if status not in _BODILESS:
        if media_type.startswith("text/") and "charset=" not in media_type:
            media_type += "; charset=utf-8"
        headers += [(b"content-type", media_type.encode()), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
