"""Load on a service, as its clients make it: raw HTTP on connections that stay open."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import msgspec


class Connection(asyncio.Protocol):
    """A client's connection, with as little around it as can be: the load must not be what is measured."""

    def __init__(self) -> None:
        self._data = b""
        self._answer: asyncio.Future[tuple[int, Any]] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the service hung up ({error})"))

    def ask(self, head: bytes, method: str, path: str, body: bytes = b"") -> asyncio.Future[tuple[int, Any]]:
        self._answer = asyncio.get_running_loop().create_future()
        start = f"{method} {path} HTTP/1.1\r\n".encode()
        self.transport.write(b"%s%sContent-Length: %d\r\n\r\n%s" % (start, head, len(body), body))
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        said = self._data[:end].lower()
        length = int(said.split(b"content-length: ", 1)[1].split(b"\r", 1)[0])
        if len(self._data) < end + 4 + length:
            return
        body, self._data = self._data[end + 4 :], b""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((int(said.split(b" ", 2)[1]), msgspec.json.decode(body)))


class Stream(asyncio.Protocol):
    """A stream of events: counts them, and knows the last."""

    def __init__(self, load: Load, seen: int) -> None:
        self._load = load
        self.seen, self.told = seen, 0
        self._left = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(b"GET /v1/events?since=%d HTTP/1.1\r\n%s\r\n" % (self.seen, self._load.head))

    def data_received(self, data: bytes) -> None:
        whole, _, self._left = (self._left + data).rpartition(b"\n\n")
        self.told += whole.count(b"\nevent: ") - whole.count(b"\nevent: hello\n") - whole.count(b"\nevent: behind\n")
        if b"id: " in whole:
            self.seen = int(whole.rpartition(b"id: ")[2].split(b"\n", 1)[0])

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class Load:
    """Everything that goes on at once, until `stop`."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.head = (
            f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        ).encode()
        self.stop = asyncio.Event()
        self.counts: Counter[str] = Counter()

    async def connect(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self.port)
        return connection

    async def pairs(self, model: str, a_second: float) -> None:
        """Acquire and release, again and again, at this pace or as fast as it goes."""
        connection, loop = await self.connect(), asyncio.get_running_loop()
        body = b'{"models":["%s"],"wait_s":30}' % model.encode()
        due = loop.time()
        while not self.stop.is_set():
            due = max(due + 1 / a_second, loop.time() - 1)
            if (early := due - loop.time()) > 0:
                await asyncio.sleep(early)
            status, answer = await connection.ask(self.head, "POST", "/v1/leases", body)
            assert status == 201, (status, answer)
            await self._release(connection, answer["lease"])
            self.counts["pairs"] += 1
        connection.transport.close()

    async def polls(self, model: str, hold_s: float, wait_s: int) -> None:
        """Wait in the queue by long-poll, hold, release, and wait again."""
        connection = await self.connect()
        ident = ""
        while not self.stop.is_set():
            status, answer = await self._poll(connection, model, ident, wait_s)
            ident = answer["id"] if status == 202 else ""
            if status == 201:
                await asyncio.sleep(hold_s)
                await self._release(connection, answer["lease"])
                self.counts["polled"] += 1
        if ident:
            status, _ = await connection.ask(self.head, "DELETE", f"/v1/tickets/{ident}")
            if status != 200:  # it entered in the last moment
                status, answer = await self._poll(connection, model, ident, 0)
                assert status == 201, (status, answer)
                await self._release(connection, ident)
                self.counts["polled"] += 1
        connection.transport.close()

    async def _poll(self, connection: Connection, model: str, ident: str, wait_s: int) -> tuple[int, Any]:
        asked = {"models": [model], "wait_s": wait_s, "queue": True} | ({"id": ident} if ident else {})
        status, answer = await connection.ask(self.head, "POST", "/v1/leases", json.dumps(asked).encode())
        assert status in (201, 202), (status, answer)
        return status, answer

    async def _release(self, connection: Connection, lease: str) -> None:
        status, answer = await connection.ask(self.head, "POST", f"/v1/leases/{lease}/release")
        assert (status, answer["released"]) == (200, True), (status, answer)

    async def stream(self, since: int, until: asyncio.Future[int]) -> None:
        """Read the stream from `since` on to where it ends, resuming where it was let go; every event comes once."""
        seen, told = since, 0
        while not until.done() or seen < until.result():
            _, stream = await asyncio.get_running_loop().create_connection(
                lambda seen=seen: Stream(self, seen),  # type: ignore[misc]
                "127.0.0.1",
                self.port,
            )
            while not stream.ended.done() and (not until.done() or stream.seen < until.result()):
                await asyncio.wait([stream.ended], timeout=0.2)
            self.counts["resumed"] += stream.ended.done()
            stream.transport.close()
            seen, told = stream.seen, told + stream.told
        assert told == seen - since, (told, seen, since)
        self.counts["told"] += told
