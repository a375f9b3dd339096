"""The server process: its socket, its token, its signals (rules H5, H6)."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable

import uvloop
from msgspec import Struct

from fleetgate.api.app import build
from fleetgate.api.http.dispatch import ProxyHandler
from fleetgate.api.http.listen import BACKLOG, bind, is_loopback, tls_settings, url_of
from fleetgate.api.jobs.threads import JobCalls
from fleetgate.api.routes.dashboard_files import FILES
from fleetgate.api.security.forwarded_users import forwarded_users
from fleetgate.api.security.one_time_marks import MarkFiles, MarksInMemory
from fleetgate.api.security.request_guard import Access
from fleetgate.api.security.tokens import Tokens, find_token, make_token, token_path
from fleetgate.api.service import Service
from fleetgate.config.environment import Environment
from fleetgate.config.file import Loaded
from fleetgate.config.paths import state_folder, store_url
from fleetgate.config.settings import Settings
from fleetgate.core.errors import BadRequest
from fleetgate.front import limits
from fleetgate.front.lifespan import Lifespan
from fleetgate.front.server import FrontServer
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.node.node import Node
from fleetgate.gate.node.server import listening
from fleetgate.gate.open_files import raise_open_files
from fleetgate.gate.serving.local_peer import LocalUsers, Peer
from fleetgate.gate.serving.service_address import ServiceAddress, remove_address, write_address
from fleetgate.gate.serving.service_gate import ServiceGate
from fleetgate.log import open_log
from fleetgate.log.protocol import StoreMoved
from fleetgate.log.store_url import local_folder

MakeProxy = Callable[[ServiceGate, Access, str], ProxyHandler]  # with the folder of the service's files

GRACEFUL_S = 5
READY = b"ready\n"  # what one of several processes writes to its stdout
_GARBAGE = (5_000, 20, 50)  # new objects before a look through the young; and how many of these before the older ones


class Options(Struct, kw_only=True):
    """What the service is told, and what it is given by the layers above it."""

    host: str
    port: int
    new_token: bool
    proxy: MakeProxy
    jobs: JobCalls
    on_ready: Callable[[], None] | None  # called once everything is open
    # One of several processes behind one port (api/processes.py): the folder that they share. "": the only one.
    shared_folder: str = ""
    workers_trouble: Callable[[], str]  # why workers that should run beside the service do not; "" when all is well
    announce: Callable[[str], None] | None
    # When the gate is moved, it makes the environment name the new store, and the service starts again there, on the
    # same port: requests wait meanwhile. When it raises, the service ends.
    switch_store: Callable[[StoreMoved], None]


def serve(options: Options, loaded: Loaded | None) -> int:
    """Run until a signal says stop; the exit code."""
    environment = Environment.read()
    folder = state_folder()
    raise_open_files()
    sock = bind(options.host, options.port, shared=bool(options.shared_folder))
    try:
        loopback = is_loopback(sock)
        access = access_of(options, loaded, folder, loopback)
        tls = tls_settings(loaded)
        while True:
            try:
                return uvloop.run(_run(sock, tls, options, access, loaded, environment, folder))
            except StoreMoved as moved:
                options.switch_store(moved)
                options.on_ready = None
    finally:
        sock.close()


async def _run(
    sock: socket.socket,
    tls: ssl.SSLContext | None,
    options: Options,
    access: Access,
    loaded: Loaded | None,
    environment: Environment,
    folder: str,
) -> int:
    url = store_url()
    core = GateCore(open_log(url), loaded, local_folder(url))
    gate, node = ServiceGate(core), Node(core)
    async with core, listening(node, url):
        proxy = options.proxy(gate, access, folder)
        service = Service(gate, access, loaded, environment, options.jobs, options.workers_trouble)
        service.url = url_of(sock, tls)
        service.dashboard = FILES.find("index.html") is not None
        server = FrontServer(
            identify=lambda client, own: Peer(access.users, client, own),
            most_connections=limits.most_connections(),
            tls=tls,
        )
        server.handle, app = build(service, proxy, server)
        lifespan, stopper = Lifespan(app), _Stopper(service, server)
        service.feed.on_moved = stopper.move
        await proxy.start()
        await service.start()
        await lifespan.start()
        _settle_down()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopper.stop)
        if not options.shared_folder:
            announce(options, folder, sock, tls, gate.me, service.started_at)
        try:
            if options.on_ready is not None:
                options.on_ready()
            await server.start(sock.dup(), BACKLOG)  # which is closed at the end
            if options.shared_folder:
                _report_ready(stopper.stop)
            await service.stopping.wait()
            await server.stop(GRACEFUL_S)
        finally:
            remove_address(folder, gate.me)
            await lifespan.stop()
            await service.stop()
            await proxy.stop()
    if stopper.moved is not None:
        raise stopper.moved
    return 0


def announce(
    options: Options, folder: str, sock: socket.socket, tls: ssl.SSLContext | None, process: str, started_at: str
) -> None:
    """Say where the service is, in words and in a file for other commands."""
    (host, port), url = sock.getsockname()[:2], url_of(sock, tls)
    write_address(folder, ServiceAddress(url, host, port, process, started_at))
    needed = "" if is_loopback(sock) else " (every request needs the token)"
    (options.announce or say)(f"fleetgate serves at {url}{needed}")


def _report_ready(stop: Callable[[], None]) -> None:
    """Tell the process that started this one; stop when it is gone."""
    os.write(1, READY)
    asyncio.get_running_loop().add_reader(0, _on_stdin, stop)


def _on_stdin(stop: Callable[[], None]) -> None:
    if not os.read(0, 100):
        asyncio.get_running_loop().remove_reader(0)
        stop()


class _Stopper:
    """Ends the service at a signal, after a notice to all listeners; or because the gate was moved."""

    def __init__(self, service: Service, server: FrontServer) -> None:
        self._service = service
        self._server = server
        self.moved: StoreMoved | None = None

    def stop(self) -> None:
        if self._service.stopping.is_set():
            self._server.cut()  # a second signal
        self._service.stopping.set()
        self._service.say_goodbye()

    def move(self, moved: StoreMoved) -> None:
        """The gate is elsewhere by now."""
        if self.moved is None and not self._service.stopping.is_set():
            self.moved = moved
            self.stop()


def access_of(options: Options, loaded: Loaded | None, folder: str, loopback: bool) -> Access:
    """Whom the service trusts. The token is made here, if there is none; BadRequest where it may not be."""
    token = make_token(folder) if options.new_token else find_token(folder)
    if token is None:
        if not loopback:
            raise BadRequest(
                f"at {options.host} any machine could send requests, and there is no token yet: "
                f"add --new-token to make one in {token_path(folder)}, or set FLEETGATE_TOKEN"
            )
        token = make_token(folder)
    settings = (loaded.settings if loaded is not None else Settings()).serve
    names = {"localhost", *settings.hosts}
    if not loopback:
        names |= {process_identity.host_name().lower(), socket.gethostname().lower(), options.host.lower()}
    return Access(
        Tokens(token, MarkFiles(options.shared_folder) if options.shared_folder else MarksInMemory()),
        loopback=loopback,
        names=frozenset(names),
        concurrency_token=settings.concurrency_token,
        may_submit=loopback if settings.submit is None else settings.submit,
        users=LocalUsers(settings.local_users, folder),
        forwarded=forwarded_users(settings.trust_user_header),
    )


def _settle_down() -> None:
    """What is there after the start stays: a search through all of it would stop all requests for a while."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE)
    gc.enable()


def say(text: str) -> None:
    if sys.stderr is not None and os.environ.get("FLEETGATE_QUIET") != "1":
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
