"""Load on a service, as its clients make it: raw HTTP on connections that stay open."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any, NamedTuple

LIMIT = 1 << 22


class Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, head: bytes, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        start = f"{method} {path} HTTP/1.1\r\n".encode()
        self.writer.write(b"%s%sContent-Length: %d\r\n\r\n%s" % (start, head, len(body), body))
        said = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(said.split(b"content-length: ", 1)[1].split(b"\r", 1)[0])
        return int(said.split(b" ", 2)[1]), json.loads(await self.reader.readexactly(length))


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
        return Connection(*await asyncio.open_connection("127.0.0.1", self.port, limit=LIMIT))

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
        connection.writer.close()

    async def polls(self, model: str, hold_s: float, wait_s: int) -> None:
        """Wait in line by long-poll, hold, release, and wait again."""
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
        connection.writer.close()

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
            connection = await self.connect()
            connection.writer.write(b"GET /v1/events?since=%d HTTP/1.1\r\n%s\r\n" % (seen, self.head))
            left = b""
            while not until.done() or seen < until.result():
                try:
                    async with asyncio.timeout(0.5):
                        data = await connection.reader.read(LIMIT)
                except TimeoutError:
                    continue
                if not data:
                    self.counts["resumed"] += 1
                    break
                whole, _, left = (left + data).rpartition(b"\n\n")
                told += whole.count(b"\nevent: ") - whole.count(b"\nevent: hello\n") - whole.count(b"\nevent: behind\n")
                if b"id: " in whole:
                    seen = int(whole.rpartition(b"id: ")[2].split(b"\n", 1)[0])
            connection.writer.close()
        assert told == seen - since, (told, seen, since)
        self.counts["told"] += told
