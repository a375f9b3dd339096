"""The mount of the proxy: an application with its own paths on the same port as the API.

Its requests skip the routes, and the guard's checks of tokens and bodies; never the check of Host and Origin (rule H5).
"""

from __future__ import annotations

from typing import Protocol

from fleetgate.api.errors import RequestRefused
from fleetgate.api.http.response_writer import ResponseWriter
from fleetgate.api.security.request_guard import Guard, Receive, Scope, Send, refuse


class MountedApp(Protocol):
    """An application that can be mounted."""

    def wants(self, scope: Scope) -> bool: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def ahead(self, scope: Scope, body: bytearray) -> bool: ...
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class ProxyMount:
    """Passes each request to the mounted application or to the API."""

    def __init__(self, guard: Guard, other: MountedApp) -> None:
        self._guard = guard
        self._other = other

    def ahead(self, scope: Scope, body: bytearray) -> bool:
        """A request with its whole body, before its task begins: whether it was taken."""
        if not self._other.wants(scope):
            return False
        try:
            self._check(scope)
        except RequestRefused:
            return False  # that is said in its task
        taken = scope["fleetgate.taken"] = self._other.ahead(scope, body)
        return taken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("fleetgate.taken"):
            await self._answer(scope, receive, send)
            return
        if scope["type"] != "http" or not self._other.wants(scope):
            await self._guard(scope, receive, send)
            return
        try:
            self._check(scope)
        except RequestRefused as error:
            await refuse(error, send, close=True)
            return
        await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["fleetgate.client"] = ResponseWriter(receive)
        await self._other(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        host, browser, hosts = b"", False, 0
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
                hosts += 1
            elif name == b"origin" or name.startswith(b"sec-fetch-"):
                browser = True
        if hosts > 1:
            raise RequestRefused(400, "two_hosts", "two Host headers: send one")
        if browser or not self._guard.knows_host(host):
            self._guard.check_source(scope)
