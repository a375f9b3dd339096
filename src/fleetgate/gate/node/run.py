"""The life of a node: its lock, its signals, its end."""

from __future__ import annotations

import asyncio
import os
import signal

from fleetgate.config.file import Loaded
from fleetgate.config.paths import store_url
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.node import discovery
from fleetgate.gate.node.node import Node
from fleetgate.gate.node.server import NodeServer
from fleetgate.gate.open_files import raise_open_files
from fleetgate.gate.outage_log import logger
from fleetgate.log import open_log
from fleetgate.log.protocol import StoreError
from fleetgate.log.store_files import make_folder
from fleetgate.log.store_url import local_folder

_CHECK_S = 0.5


def run_node(loaded: Loaded | None, *, idle_s: float | None = None) -> int:
    """Run until a signal, or until the node was idle for too long; the exit code."""
    url = store_url()
    if url == "memory://":
        raise StoreError("a store in memory is of one process alone: a node needs sqlite:/// or postgresql://")
    folder = local_folder(url)
    try:
        make_folder(folder)
        path = discovery.socket_path(folder, url)
        lock = discovery.hold(path)
    except OSError as error:
        raise StoreError(f"the node's socket cannot be made in {folder}: {error.strerror}") from error
    if lock is None:
        say("another node of this host runs already")
        return 0
    try:
        raise_open_files()  # each question is a connection for a moment, and thousands may come at once
        return asyncio.run(_run(url, loaded, folder, path, idle_s))
    except StoreError as error:
        discovery.write_end_reason(path, error)
        raise
    finally:
        discovery.ended(folder)
        os.close(lock)


async def _run(url: str, loaded: Loaded | None, folder: str, path: str, idle_s: float | None) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    core = GateCore(open_log(url), loaded, folder)
    node = Node(core)
    async with core:
        server = NodeServer(node, path, url)
        await server.start()
        discovery.note_reached(path)
        say(f"node of {process_identity.host_name()} listens at {path}")
        try:
            await _until_told(stop, server, node, idle_s)
        finally:
            await server.stop()
    say("node ends")
    return 0


async def _until_told(stop: asyncio.Event, server: NodeServer, node: Node, idle_s: float | None) -> None:
    loop = asyncio.get_running_loop()
    needed_at = loop.time()
    while not stop.is_set():
        try:
            async with asyncio.timeout(_CHECK_S):
                await stop.wait()
        except TimeoutError:
            pass
        if node.serves_anybody():
            needed_at = loop.time()
        if idle_s is None:
            continue
        if loop.time() - max(needed_at, server.asked_at) > idle_s:
            return
        if not os.path.exists(server.path):
            say("its socket is gone, so no process can find it any more")
            return


def say(text: str) -> None:
    """Write a line to the logger, which `fleetgate node` shows on stderr or in node.log."""
    logger().info("%s", text)
