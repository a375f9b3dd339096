"""Connections to one provider: made when needed, used again, closed when idle for long. TLS, and proxies on the way.

HTTPS_PROXY, HTTP_PROXY and NO_PROXY are heeded as other programs do: through a tunnel for https, by the full address
for http.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from base64 import b64encode
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import aiohappyeyeballs

from fleetgate.proxy.http_client.connection import Connection
from fleetgate.proxy.http_client.failures import CannotConnect

CONNECT_S = 30.0
KEEP_ALIVE_S = 20.0
_FIRST_ADDRESS_S = 0.25  # then the next address is tried in parallel
_TUNNEL_BYTES = 16 * 1024


class OutboundProxy(NamedTuple):
    """A proxy on the way to a provider."""

    host: str
    port: int
    credentials: bytes  # the value of OutboundProxy-Authorization, or nothing


class UpstreamConnections:
    """The connections to one origin."""

    def __init__(self, url: SplitResult) -> None:
        self.tls = url.scheme == "https"
        self.host = (url.hostname or "").encode("idna").decode()
        self.port = url.port or (443 if self.tls else 80)
        name = f"[{self.host}]" if ":" in self.host else self.host
        self.authority = name if url.port is None else f"{name}:{url.port}"
        self.proxy = _proxy_for(url.scheme, self.host, self.port)
        # What goes before the path in the first line of a request.
        self.before_path = f"http://{self.authority}".encode() if self.proxy and not self.tls else b""
        self.extra = b""
        if self.proxy and not self.tls and self.proxy.credentials:
            self.extra = b"proxy-authorization: %s\r\n" % self.proxy.credentials
        self._context: ssl.SSLContext | None = None
        self._idle: list[Connection] = []  # the last used last
        self._all: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def take_idle(self) -> Connection | None:
        """A connection that was used before and waits to be used again; the caller sends a request by it."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    @property
    def idle(self) -> int:
        """Connections that wait to be used again."""
        return len(self._idle)

    @property
    def connected(self) -> bool:
        return bool(self._all)

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._all):
            connection.abort()

    # Connecting.

    async def connect(self) -> Connection:
        """A new connection. UpstreamFailed, TimeoutError."""
        loop = asyncio.get_running_loop()
        to = self.proxy or self
        try:
            async with asyncio.timeout(CONNECT_S):
                sock = await self._reach(to.host, to.port)
                try:
                    if self.proxy is not None and self.tls:
                        await self._tunnel(sock, self.proxy)
                    if self.tls and self._context is None:
                        self._context = ssl.create_default_context()
                    name = self.host if self.tls else None
                    _, made = await loop.create_connection(
                        self._make, sock=sock, ssl=self._context, server_hostname=name
                    )
                except BaseException:
                    sock.close()
                    raise
        except TimeoutError:
            raise TimeoutError(f"no connection within {CONNECT_S:g} s") from None
        except CannotConnect:
            raise
        except OSError as error:  # errors of TLS are such
            raise CannotConnect(_why(error)) from error
        connection: Connection = made
        self._all.add(connection)
        return connection

    def _make(self) -> Any:  # a protocol of asyncio in all but its base class, which could not be compiled
        return Connection(asyncio.get_running_loop(), self.free, self._lost)

    async def _reach(self, host: str, port: int) -> socket.socket:
        addresses = await addresses_of(host, port)
        sock = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=_FIRST_ADDRESS_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    async def _tunnel(self, sock: socket.socket, proxy: OutboundProxy) -> None:
        loop = asyncio.get_running_loop()
        target = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        ask = f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n".encode()
        if proxy.credentials:
            ask += b"proxy-authorization: %s\r\n" % proxy.credentials
        await loop.sock_sendall(sock, ask + b"\r\n")
        said = b""
        while not said.endswith(b"\r\n\r\n"):
            part = await loop.sock_recv(sock, 1 if said else 12)  # not a byte of what comes after it
            if not part or len(said) > _TUNNEL_BYTES:
                raise CannotConnect(f"the proxy {proxy.host} did not answer")
            said += part
        status = said.partition(b"\r\n")[0][9:60]
        if not said.startswith(b"HTTP/1.") or status[:1] != b"2":
            raise CannotConnect(f"the proxy {proxy.host} said {status.decode('latin-1') or 'nothing sensible'}")

    # Using again.

    def free(self, connection: Connection) -> None:
        """A connection can be used again."""
        connection.idle_since = connection.loop.time()
        self._idle.append(connection)
        if self._closed:
            connection.abort()
        elif self._timer is None:
            self._timer = connection.loop.call_later(KEEP_ALIVE_S, self._sweep)

    def _lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        long_ago = loop.time() - KEEP_ALIVE_S
        for connection in [each for each in self._idle if each.idle_since <= long_ago]:
            connection.abort()
        self._idle = [each for each in self._idle if each.idle_since > long_ago]
        self._timer = loop.call_later(KEEP_ALIVE_S / 2, self._sweep) if self._idle else None


def _why(error: OSError) -> str:
    """What a person can do something about."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {error.reason or error}"
    if error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return error.strerror or str(error)


async def addresses_of(host: str, port: int) -> list[Any]:
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _proxy_for(scheme: str, host: str, port: int) -> OutboundProxy | None:
    """The proxy that the environment names for a host."""
    if sys.platform == "linux" and not any(name.lower().endswith("_proxy") for name in os.environ):
        return None  # elsewhere, the system's settings count as well
    from urllib.request import getproxies, proxy_bypass  # late: it takes 2 MB

    text = getproxies().get(scheme, "")
    if not text or proxy_bypass(host) or proxy_bypass(f"{host}:{port}"):
        return None
    url = urlsplit(text if "://" in text else f"http://{text}")
    if url.scheme != "http" or not url.hostname:
        raise CannotConnect(f"{scheme.upper()}_PROXY: only http:// proxies can be used, not {url.scheme}://")
    credentials = b""
    if url.username is not None:
        plain = f"{unquote(url.username)}:{unquote(url.password or '')}"
        credentials = b"Basic " + b64encode(plain.encode())
    return OutboundProxy(url.hostname, url.port or 80, credentials)
