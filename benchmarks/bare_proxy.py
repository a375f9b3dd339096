"""A bare proxy to compare with: uvicorn and aiohttp pass each request on and decide nothing."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import aiohttp
import uvicorn

_HOP = (b"connection", b"keep-alive", b"transfer-encoding", b"host", b"content-length")


class Bare:
    """Streams through; notices a client that leaves."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        handler = asyncio.current_task()
        watcher = asyncio.ensure_future(_watch(receive, handler))
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"] if name not in _HOP]
        try:
            url = self._upstream + scope["raw_path"].decode()
            async with self._session.request(scope["method"], url, data=body, headers=headers) as response:
                raw = [pair for pair in response.raw_headers if pair[0].lower() not in _HOP[:3]]
                await send({"type": "http.response.start", "status": response.status, "headers": raw})
                async for piece in response.content.iter_any():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        finally:
            watcher.cancel()


async def _watch(receive: Any, handler: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    handler.cancel()


def main(upstream: str) -> None:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(1024)
    print(sock.getsockname()[1], flush=True)
    config = uvicorn.Config(
        Bare(upstream), loop="uvloop", http="httptools", lifespan="off", access_log=False, log_level="critical"
    )
    uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main(sys.argv[1])
