"""A connection of a client that has not finished its TLS handshake. It counts as an idle one: it gives way to others,
and has the time of a head.

The TLS of asyncio would accept any number of them by itself. So it is begun here, on a plain connection. What comes
before it has begun is kept, and so is what comes before the link has taken over.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from fleetgate.front import limits
from fleetgate.front.connection import ClientLink, ServerSide


class KeptData(asyncio.Protocol):
    """Keeps what comes."""

    def __init__(self) -> None:
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data


class TlsHandshake(KeptData):
    """What asyncio calls a protocol, until that of TLS takes its place. Then `link` gets what is in it."""

    idle = True

    def __init__(self, server: ServerSide, link: ClientLink, tls: ssl.SSLContext) -> None:
        super().__init__()
        self._server = server
        self._link = link
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None
        self.since = self._loop.time()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self._server.add(self):
            self._task = self._loop.create_task(self._shake_hands())
        else:
            transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        self._server.remove(self)

    async def _shake_hands(self) -> None:
        inside = KeptData()
        handshake = self._loop.create_task(
            self._loop.start_tls(
                self._transport,
                inside,
                self._tls,
                server_side=True,
                ssl_handshake_timeout=limits.HEAD_S,
                ssl_shutdown_timeout=limits.UNREAD_S,
            )
        )
        transport = None
        try:
            await asyncio.sleep(0)  # TLS takes the place of this protocol, which gets no more data,
            await asyncio.sleep(0)  # and begins
            tls: Any = self._transport.get_protocol()
            if tls is not None and tls is not self:  # else the client has left already
                _feed(tls, self.data)
            transport = await handshake
        except (OSError, RuntimeError):  # errors of TLS, a time that is up, or a client that left at once
            self._transport.abort()
        finally:
            handshake.cancel()
            self._server.remove(self)
        if transport is not None and not transport.is_closing():
            transport.set_protocol(self._link)  # type: ignore[arg-type]  # a protocol in all but its base class
            self._link.connection_made(transport)
            if inside.data:
                self._link.data_received(inside.data)

    # For the server.

    def abort(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        self._transport.abort()

    def check_time(self, now: float) -> None:
        """The handshake has a time limit of its own."""


def _feed(protocol: Any, data: bytes) -> None:
    """Give data to a protocol that has a buffer of its own, as that of TLS has."""
    while data:
        room = protocol.get_buffer(len(data))
        size = min(len(room), len(data))
        room[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]
