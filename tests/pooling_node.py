"""The connection pool of a node without the node: a socket with connections to a PostgreSQL store."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from typing import Any

from fleetgate.gate.node.pooled_connection import PooledConnection
from fleetgate.gate.node.server import NodeServer
from fleetgate.log.clock import Clock
from fleetgate.log.postgres import PostgresLog


class _NoGate:
    is_shared = True

    async def look_after_host(self) -> None:
        return


class LendingNode:
    """Runs in a thread until it is stopped."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._folder = tempfile.TemporaryDirectory(prefix="fg-", dir="/tmp")
        self.path = f"{self._folder.name}/node"
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self.listener: Any = None
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()))
        self._thread.start()
        assert self._ready.wait(30)

    async def _run(self) -> None:
        self.listener = NodeServer(_NoGate(), self.path, self.url)  # type: ignore[arg-type]
        await self.listener.start()
        self._ready.set()
        await self._stop.wait()
        await self.listener.stop()

    def open(self, clock: Clock | None = None) -> PostgresLog:
        """A log that uses a connection of the pool."""
        return PostgresLog(
            self.url, clock, link=lambda address, greet: PooledConnection(address, greet, path=self.path)
        )

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)
            self._loop.close()
        self._folder.cleanup()
