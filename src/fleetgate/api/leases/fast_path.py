"""The fast path of the lease routes, which are called thousands of times a second: it answers on the connection itself,
with the same functions as the routes.

It takes only plain requests: a POST of HTTP/1.1 on a connection that stays open, with a body of a known and moderate
length, which the guard lets pass, and no unanswered or unread request before it. Everything else goes through uvicorn,
the guard and Litestar; so do requests that are refused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from fleetgate.api.bodies import AcquireBody, ReleaseBody
from fleetgate.api.errors import complain, invalid_body, not_json, refusal
from fleetgate.api.http.client import watch_connection
from fleetgate.api.leases import operations
from fleetgate.api.security.request_guard import SECURE_HEADERS, Guard
from fleetgate.api.service import Service
from fleetgate.gate.serving.client_renewals import Stop

if TYPE_CHECKING:
    from fleetgate.api.http.uvicorn_protocol import ClientProtocol

_ask = msgspec.json.Decoder(AcquireBody).decode
_release = msgspec.json.Decoder(ReleaseBody).decode
_encode = msgspec.json.Encoder().encode
_find = re.compile(rb"/v1/leases(?:/([A-Za-z0-9_-]{1,64})/(release|renew))?").fullmatch


class FastPath:
    """Finds such requests and does what they ask for."""

    def __init__(self, service: Service, guard: Guard) -> None:
        self._service = service
        self._guard = guard
        self._heads: dict[int, bytes] = {}  # of answers, by status
        self._common: object = None  # uvicorn's headers of all answers, as of then: the date is one of them

    def find(self, connection: ClientProtocol) -> LeaseExchange | None:
        """The request whose headers have just been read, if it is one of these; None: it goes the usual way."""
        found = _find(connection.url)
        parser = connection.parser
        if (
            found is None
            or parser.get_method() != b"POST"
            or parser.get_http_version() != "1.1"
            or parser.should_upgrade()
            or not parser.should_keep_alive()
            or connection.expect_100_continue
            or connection.flow.write_paused
        ):
            return None
        scope: Any = connection.scope
        path = connection.url.decode()
        scope["method"], scope["path"], scope["raw_path"], scope["query_string"] = "POST", path, connection.url, b""
        if not self._guard.passes(scope, path):
            return None
        return LeaseExchange(self, connection, found[1].decode() if found[1] else "", found[2])

    async def work(self, asked: LeaseExchange) -> tuple[int, object]:
        """What a request asks for is done: the answer. Raises what is wrong with it."""
        client = asked.connection.client
        address = str(client[0]) if client else ""
        if asked.verb is None:
            return await operations.ask(self._service, _ask(asked.body), address, asked.watch)
        if asked.verb == b"release":
            said = _release(asked.body) if asked.body else ReleaseBody()
            return 200, await operations.release(self._service, asked.ident, said, f"HTTP client {address}")
        return 200, await operations.renew(self._service, asked.ident)

    def head(self, status: int, common: list[tuple[bytes, bytes]]) -> bytes:
        """All of an answer's head that does not depend on its body; `common` are the headers of all answers."""
        if common is not self._common:
            self._common = common
            self._heads.clear()
        head = self._heads.get(status)
        if head is None:
            headers = (*common, (b"content-type", b"application/json"), *SECURE_HEADERS)
            lines = [b"%s: %s\r\n" % header for header in headers]
            head = self._heads[status] = STATUS_LINE[status] + b"".join(lines)
        return head


class LeaseExchange:
    """One such request and its answer. It has the interface of uvicorn's RequestResponseCycle."""

    __slots__ = (
        "_quick",
        "_task",
        "body",
        "connection",
        "disconnected",
        "ident",
        "keep_alive",
        "response_complete",
        "transport",
        "verb",
    )

    def __init__(self, quick: FastPath, connection: ClientProtocol, ident: str, verb: bytes | None) -> None:
        self._quick = quick
        self._task: asyncio.Task[None] | None = None
        self.connection = connection
        self.transport: Any = connection.transport
        self.ident = ident
        self.verb = verb
        self.body = b""
        self.disconnected = self.response_complete = False
        self.keep_alive = True  # uvicorn says when it is not, since the service ends

    @property
    def message_event(self) -> LeaseExchange:
        """uvicorn sets this when a request has news; no task waits for it."""
        return self

    def set(self) -> None:
        pass

    def begin(self) -> None:
        """All of its body is there."""
        connection = self.connection
        self._task = connection.loop.create_task(self._answer())
        connection.tasks.add(self._task)  # uvicorn waits for them when it ends

    def watch(self, tell: Callable[[], None]) -> Stop:
        """Have a function called when the client's connection ends."""
        return watch_connection(self, tell)

    async def _answer(self) -> None:
        extra = b""
        try:
            status, shape = await self._quick.work(self)
        except asyncio.CancelledError:  # the service ends, and has waited long enough
            self.transport.close()
            raise
        except Exception as error:
            status, shape, headers = refusal(as_refusal(error))
            extra = b"".join([b"%s: %s\r\n" % (name.encode(), value.encode()) for name, value in headers.items()])
            if status == HTTPStatus.INTERNAL_SERVER_ERROR:
                complain(f"POST /v1/leases {self.ident} {(self.verb or b'').decode()}", error)
        finally:
            self.connection.tasks.discard(self._task)
        self._send(status, extra, _encode(shape))

    def _send(self, status: int, extra: bytes, body: bytes) -> None:
        connection = self.connection
        self.response_complete = True
        if self.disconnected or self.transport.is_closing():
            return
        if not self.keep_alive:
            extra += b"connection: close\r\n"
        head = self._quick.head(status, connection.server_state.default_headers)
        self.transport.write(b"%s%scontent-length: %d\r\n\r\n%s" % (head, extra, len(body), body))
        if not self.keep_alive:
            self.transport.close()
        connection.on_response_complete()


def as_refusal(error: Exception) -> Exception:
    """A body that cannot be read, as a refusal; other errors unchanged."""
    if isinstance(error, msgspec.ValidationError):
        text, _, where = str(error).partition(" - at `$")
        return invalid_body(text, where.rstrip("`").lstrip("."))
    return not_json(error) if isinstance(error, msgspec.MsgspecError) else error
