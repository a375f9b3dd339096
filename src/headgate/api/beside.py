"""An application that is served beside the API, under paths of its own: the proxy. Its requests go past the routes, and
past what the guard says about tokens and bodies; never past its look at Host and Origin (SPEC H5).
"""

from __future__ import annotations

from typing import Protocol

from headgate.api.errors import Refused
from headgate.api.guard import Guard, Receive, Scope, Send, refuse


class Other(Protocol):
    """What can be served beside the API."""

    def wants(self, raw_path: bytes) -> bool: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Beside:
    """Sorts requests by whose they are."""

    def __init__(self, guard: Guard, other: Other) -> None:
        self._guard = guard
        self._other = other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._other.wants(scope["raw_path"]):
            await self._guard(scope, receive, send)
            return
        try:
            self._guard.check_source(scope)
        except Refused as error:
            await refuse(error, send, close=True)
            return
        await self._other(scope, receive, send)
