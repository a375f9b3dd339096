"""The server: it accepts connections, limits their number, checks their time, and stops gracefully."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from heapq import nsmallest
from time import gmtime, struct_time
from typing import Any

from fleetgate.front import limits
from fleetgate.front.connection import ClientLink
from fleetgate.front.handshake import TlsHandshake
from fleetgate.front.request import Address, ClientRequest

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CUT_S = 1.0  # a connection that is cut is gone within a turn of the loop

AnyLink = ClientLink | TlsHandshake
Handler = Callable[[ClientRequest], None]
Identify = Callable[[Address | None, Address | None], object]


def _nothing(_client: Address | None, _server: Address | None) -> object:
    return None


def refuse_all(request: ClientRequest) -> None:
    """The handler of a server that has none yet."""
    request.respond(503, [])


class FrontServer:
    """A listening socket with all its connections."""

    def __init__(
        self,
        *,
        handler: Handler = refuse_all,
        identify: Identify = _nothing,
        most_connections: int = limits.MOST_CONNECTIONS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`handler` can be set later, as `handle`, before the start.

        `identify` is called once for each connection, with both addresses; its result is `ClientRequest.peer`.
        """
        self.handle = handler
        self.identify = identify
        self.most_connections = most_connections
        self.scheme = "http" if tls is None else "https"
        self.stopping = False
        self.date = b""
        self._tls = tls
        self._links: dict[AnyLink, None] = {}  # in the order of their arrival
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._all_gone = asyncio.Event()

    async def start(self, sock: socket.socket, backlog: int) -> None:
        """Begin to accept. The socket is closed at the end."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._check()

        def make() -> Any:  # a protocol of asyncio in all but its base class, which could not be compiled
            link = ClientLink(self, loop)
            return link if self._tls is None else TlsHandshake(self, link, self._tls)

        self._server = await loop.create_server(make, sock=sock, backlog=backlog)

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, give requests this long to end, then cut the rest."""
        self.stopping = True
        if self._server is not None:
            self._server.close()
        for link in list(self._links):
            link.close()
        self._note_whether_all_gone()
        if not await self._wait_until_all_gone(grace_s):
            self.cut()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._wait_until_all_gone(_CUT_S)  # handlers hear that their clients are gone
        if self._timer is not None:
            self._timer.cancel()

    async def _wait_until_all_gone(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._all_gone.wait()
        except TimeoutError:
            return False
        return True

    def cut(self) -> None:
        """End all connections now: the second signal."""
        for link in list(self._links):
            link.abort()

    def __len__(self) -> int:
        """How many connections there are."""
        return len(self._links)

    def keep(self, task: asyncio.Task[None]) -> None:
        """A task of a handler: `stop` waits for it."""
        self._tasks.add(task)
        task.add_done_callback(self._discard)

    def _discard(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._note_whether_all_gone()

    # For the connections.

    def add(self, link: AnyLink) -> bool:
        """Whether there is room for a connection; the one that has been idle for longest makes room for it."""
        self._links[link] = None
        over = len(self._links) - self.most_connections
        return over <= 0 or self._make_room(link) or over <= limits.REFUSED_CONNECTIONS

    def _make_room(self, newest: AnyLink) -> bool:
        # The loop's time has milliseconds, in which several connections may come: of equals, the first goes first.
        idle = (each for each in self._links if each is not newest and each.idle)
        oldest = nsmallest(1 + len(self._links) // 64, idle, key=lambda each: each.since)
        for link in oldest:
            self._links.pop(link, None)
            link.abort()
        return bool(oldest)

    def remove(self, link: AnyLink) -> None:
        self._links.pop(link, None)
        self._note_whether_all_gone()

    def _note_whether_all_gone(self) -> None:
        if self.stopping and not self._links and not self._tasks:
            self._all_gone.set()

    def _check(self) -> None:
        self.date = b"date: %s\r\n" % http_date(gmtime())
        now = self._loop.time()
        for link in list(self._links):
            link.check_time(now)
        self._timer = self._loop.call_later(limits.CHECK_S, self._check)


def http_date(at: struct_time) -> bytes:
    """A moment of UTC as HTTP writes it, in any locale: Wed, 18 Nov 2026 08:00:00 GMT."""
    day, month = _DAYS[at.tm_wday], _MONTHS[at.tm_mon - 1]
    clock = f"{at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02}"
    return f"{day}, {at.tm_mday:02} {month} {at.tm_year} {clock} GMT".encode()


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """The TLS settings for a certificate chain and its key, both PEM files. OSError, ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(certificate, key)
    return context
