"""The socket of a node: it answers one frame after another, for users who may connect (gate/node/protocol.py).

The rule: nothing that a client sends can harm the node.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from fleetgate.gate.node import discovery, protocol
from fleetgate.gate.node.node import Node
from fleetgate.log.protocol import StoreError
from fleetgate.log.store_files import remove_file

_IDLE_CONNECTION_S = 60.0
_TIDY_S = 10.0
_BACKLOG = 4096

_decode = msgspec.json.Decoder(protocol.Question).decode
_version = msgspec.json.Decoder(protocol.Bare).decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetgate.gate.node.connection_pool import ConnectionPool, PoolClient


class NodeServer:
    """The socket of a node."""

    def __init__(self, gate: Node, path: str, url: str) -> None:
        self._gate = gate
        self.path = path
        self._pool = _new_pool(url) if gate.is_shared else None
        self._server: asyncio.Server | None = None
        self._looking: asyncio.Task[None] | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.Task[None]] = set()  # clients that have asked and have no answer yet
        self.asked_at = 0.0  # by the loop's clock

    async def start(self) -> None:
        """Listen. The caller holds the lock (gate/node/discovery.py)."""
        remove_file(self.path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(self.path)
            shared = os.stat(os.path.dirname(self.path)).st_mode & stat.S_IWGRP
            os.chmod(self.path, 0o660 if shared else 0o600)
            sock.setblocking(False)
            self._server = await asyncio.start_unix_server(self._serve, sock=sock, backlog=_BACKLOG)
        except BaseException:
            sock.close()
            raise
        loop = asyncio.get_running_loop()
        self.asked_at = loop.time()
        self._looking = loop.create_task(self._gate.look_after_host())
        self._tidying = loop.create_task(self._tidy())

    async def stop(self) -> None:
        """Accept no more questions, and answer those that are open."""
        if self._server is None:
            return
        self._server.close()
        remove_file(self.path)
        assert self._looking is not None
        self._looking.cancel()
        self._tidying.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=2.0)
        for task in self._clients:
            task.cancel()
        await asyncio.gather(self._looking, self._tidying, *self._clients, return_exceptions=True)
        if self._pool is not None:
            self._pool.close()

    async def _tidy(self) -> None:
        while self._pool is not None:
            await asyncio.sleep(_TIDY_S)
            self._pool.tidy()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        client = None if self._pool is None else self._pool.new_client()
        self._clients.add(task)
        try:
            if not _may_ask(writer.get_extra_info("socket")):
                return
            while (data := await _frame(reader, _patience_s(client))) is not None:
                self._open.add(task)
                self.asked_at = asyncio.get_running_loop().time()
                try:
                    writer.write(protocol.frame(await self._answered(data, client)))
                    await writer.drain()
                finally:
                    self._open.discard(task)
        except (OSError, asyncio.CancelledError):
            pass  # it left, or we do
        finally:
            self._clients.discard(task)
            if self._pool is not None and client is not None:
                self._pool.leave(client)
            writer.close()

    async def _answered(self, data: bytes, client: PoolClient | None) -> protocol.Answer:
        """The answer; nothing that a client sends can make this raise."""
        try:
            version = _version(data).version
            if version != protocol.VERSION:
                return protocol.Answer(
                    wrong=protocol.Wrong("Version", f"it speaks version {protocol.VERSION}, not {version}")
                )
            call = _decode(data).call
            if type(call) is not protocol.Say:
                return await self._gate.answer(call)
            answer = protocol.Answer()
            if self._pool is None or client is None:
                raise StoreError("this node has no database connections")
            await self._pool.say(client, call, answer)
            return answer
        except msgspec.MsgspecError as error:
            return protocol.Answer(wrong=protocol.Wrong("Version", f"the question cannot be read: {error}"))
        except Exception as error:
            return protocol.Answer(wrong=protocol.wrong(error))


def _new_pool(url: str) -> ConnectionPool:
    from fleetgate.gate.node.connection_pool import ConnectionPool  # late: it loads all that PostgreSQL needs

    return ConnectionPool(url)


def _patience_s(client: PoolClient | None) -> float:
    """How long a client may be silent."""
    return client.silent_s if client is not None and client.link is not None else _IDLE_CONNECTION_S


@asynccontextmanager
async def listening(gate: Node, url: str) -> AsyncIterator[bool]:
    """Be the node of this host inside the block, unless another process is; yields whether this process is."""
    lock = None
    try:
        path = discovery.socket_path(gate.folder, url) if gate.folder else ""
        lock = discovery.hold(path) if path else None
    except OSError:
        path = ""  # there can be no socket: processes that would use it go to the store directly
    if lock is None:
        yield False
        return
    server = NodeServer(gate, path, url)
    try:
        await server.start()
        try:
            yield True
        finally:
            await server.stop()
    finally:
        os.close(lock)


async def _frame(reader: asyncio.StreamReader, within_s: float) -> bytes | None:
    """The next question; None when there is none."""
    try:
        async with asyncio.timeout(within_s):
            size = protocol.length(await reader.readexactly(4))
            return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ValueError, TimeoutError):
        return None


def _may_ask(sock: socket.socket) -> bool:
    """Whether a user may ask. The permissions of folder and socket decide it as well: this is a second check."""
    if discovery.peer_uid(sock) in (None, 0, os.geteuid()):
        return True
    return bool(os.stat(os.path.dirname(sock.getsockname())).st_mode & stat.S_IWGRP)
