"""Routes, requests and responses.

A route is an `async` function with a path. Its parameters say what it needs, by name:

- `service`, or what else the router is given, is passed as it is;
- `request` is the request itself, and `caller` the one who sent it;
- `data` is the body, JSON of the annotated type; with a default it may be left out;
- a name in the path is a part of it: `{ident}` one segment, `{ident:path}` all the rest;
- every other parameter is one of the query, or a header if its type is marked with `Header`.

Types have their limits in `msgspec.Meta`. Values that are not valid are refused before the function is called, and
`openapi.py` describes the same types. The function returns what is sent as JSON, a `Response`, or an ASGI application.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from fleetgate.api.security.caller import Caller
from fleetgate.core.access.keys import OPERATOR, VIEWER
from fleetgate.front.request import ClientLeft

T = TypeVar("T")
Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Handler = Callable[..., Awaitable[Any]]

JSON = "application/json"


class ApiRequest:
    """One request. Its body is read once, when it is asked for."""

    __slots__ = ("_body", "receive", "scope")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.receive = receive
        self._body: bytes | None = None

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def caller(self) -> Caller:
        """Whose request it is, as the guard found."""
        caller: Caller = self.scope["state"]["caller"]
        return caller

    @property
    def path(self) -> str:
        return str(self.scope["path"])

    def header(self, name: str) -> str | None:
        """A header by its name in lower case; None if the request has none."""
        wanted = name.encode()
        found = next((value for each, value in self.scope["headers"] if each == wanted), None)
        return None if found is None else found.decode("latin-1")

    async def body(self) -> bytes:
        if self._body is None:
            parts = []
            more = True
            while more:
                message = await self.receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                parts.append(message.get("body", b""))
                more = message.get("more_body", False)
            self._body = b"".join(parts)
        return self._body


class ApiResponse(Generic[T]):
    """An answer with a status, headers or a media type of its own."""

    __slots__ = ("content", "headers", "media_type", "status")

    def __init__(
        self, content: T, *, status: int = 0, headers: Mapping[str, str] | None = None, media_type: str = ""
    ) -> None:
        self.content = content
        self.status = status  # 0: that of the route
        self.headers = headers or {}
        self.media_type = media_type  # "": that of the route


class DocumentedAnswer(NamedTuple):
    """A documented answer."""

    shape: Any
    description: str
    media_type: str = JSON


class Parameter(NamedTuple):
    """A mark in an annotated type: the name of the parameter in requests, if the function's own name differs."""

    name: str


class Header(NamedTuple):
    """A mark in an annotated type: this parameter is the header with this name."""

    name: str


class ApiRoute(Struct, frozen=True, kw_only=True, eq=False):
    """A function, and where it answers."""

    method: str
    path: str
    handler: Any
    summary: str
    status: int
    media_type: str
    answers: dict[int, DocumentedAnswer]
    headers: tuple[str, ...]  # that its answers have, for the document
    body_schema: dict[str, Any] | None  # of a body that the function reads itself
    documented: bool
    role: str  # that a caller must have


def _decorator(method: str, default_status: int, default_role: str) -> Callable[..., Callable[[Handler], ApiRoute]]:
    def route(
        path: str,
        *,
        summary: str = "",
        status: int = default_status,
        media_type: str = JSON,
        answers: Mapping[int, DocumentedAnswer] | None = None,
        headers: tuple[str, ...] = (),
        body_schema: dict[str, Any] | None = None,
        documented: bool = True,
        role: str = default_role,
    ) -> Callable[[Handler], ApiRoute]:
        def decorate(handler: Handler) -> ApiRoute:
            return ApiRoute(
                method=method,
                path=path,
                handler=handler,
                summary=summary,
                status=status,
                media_type=media_type,
                answers=dict(answers or {}),
                headers=headers,
                body_schema=body_schema,
                documented=documented,
                role=role,
            )

        return decorate

    return route


get = _decorator("GET", 200, VIEWER)
put = _decorator("PUT", 200, OPERATOR)
post = _decorator("POST", 201, OPERATOR)
delete = _decorator("DELETE", 200, OPERATOR)
