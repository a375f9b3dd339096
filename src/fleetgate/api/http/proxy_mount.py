"""An application that is served beside the API, under paths of its own: the proxy. Its requests go past the routes, and
past what the guard says about tokens and bodies; never past its look at Host and Origin (SPEC H5).
"""

from __future__ import annotations

from typing import Protocol

from fleetgate.api.errors import RequestRefused
from fleetgate.api.http.response_writer import ResponseWriter
from fleetgate.api.security.request_guard import Guard, Receive, Scope, Send, refuse

_MOST_HOSTS = 100


class MountedApp(Protocol):
    """What can be served beside the API."""

    def wants(self, scope: Scope) -> bool: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def ahead(self, scope: Scope, body: bytearray) -> bool: ...
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class ProxyMount:
    """Sorts requests by whose they are."""

    def __init__(self, guard: Guard, other: MountedApp) -> None:
        self._guard = guard
        self._other = other
        self._hosts: set[bytes] = set()  # that were found good: the look at one takes longer than that at this set

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
        scope["fleetgate.client"] = ResponseWriter(receive.__self__)  # type: ignore[attr-defined]
        await self._other(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        host, browser, hosts = b"", False, 0
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
                hosts += 1
            elif name == b"origin" or name.startswith(b"sec-fetch-"):
                browser = True  # look closely
        if hosts > 1:
            raise RequestRefused(400, "two_hosts", "two Host headers: send one")
        if browser or host not in self._hosts:
            self._guard.check_source(scope)
            if not browser and len(self._hosts) < _MOST_HOSTS:
                self._hosts.add(host)
