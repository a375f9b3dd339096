"""The ASGI entry: one request from its first byte to its line in the access log.

The rule: however a request ends, its slot is released, and its connection to the provider is closed or free for the
next request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from time import perf_counter, time
from typing import Any, Protocol

from fleetgate.config.errors import BadValue
from fleetgate.config.settings import Settings
from fleetgate.config.units import parse_duration_ms
from fleetgate.core.entities import CLASSES
from fleetgate.core.errors import FleetgateError
from fleetgate.core.queue.order import MAX_PRIORITY
from fleetgate.gate.providers.known_providers import KNOWN_PROVIDERS
from fleetgate.gate.serving.model_calls import ModelCalls
from fleetgate.gate.serving.reported_rates import report_rates
from fleetgate.prices import Price, load_in_background, price_of
from fleetgate.proxy.access_log import AccessLog
from fleetgate.proxy.attempts import LEFT, NOT_TAKEN, Attempts
from fleetgate.proxy.callers import Callers
from fleetgate.proxy.disconnects_and_stalls import DisconnectWatch
from fleetgate.proxy.early_stream import EarlyStream, wants_stream
from fleetgate.proxy.errors import ClientGone, ProxyRefusal, shape_of
from fleetgate.proxy.exchange import Exchange
from fleetgate.proxy.headers import ISOLATED, KEYS, read_headers
from fleetgate.proxy.http_client.connection import UpstreamResponse
from fleetgate.proxy.key_accounts import KeyAccounts
from fleetgate.proxy.login_identities import TABLE as IDENTITIES
from fleetgate.proxy.login_identities import LoginIdentities
from fleetgate.proxy.providers import RESERVED, ProxiedProviders
from fleetgate.proxy.request_body import SURELY_READ_BYTES, BodyMemory, RequestBody
from fleetgate.proxy.response_relay import (
    BrokenOff,
    ClientConnection,
    ResponseRelay,
    outcome_headers,
    send_refusal,
)
from fleetgate.proxy.returning_clients import ReturningClients
from fleetgate.proxy.routes import Route, find_route, leaves_base
from fleetgate.proxy.unknown_paths import is_missing, refusal_for, suggested_api

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_MOST_ROUTES = 4096


class Served(Protocol):
    """The gate of the service, as far as the proxy needs it beyond `ModelCalls`."""

    @property
    def settings(self) -> Settings: ...


class Proxy:
    """Made once for a service; `wants` says which requests are its own."""

    def __init__(
        self,
        gate: Any,
        *,
        loopback: bool,
        is_token: Callable[[bytes], bool],
        folder: str,
        trusts: Callable[[Scope], bool] | None = None,
        on_end: Callable[[Exchange, float], None] | None = None,
    ) -> None:
        """`trusts`: whether a request comes from a trusted local user; without it, all on loopback do.

        `on_end` is called with each request that has ended, and the seconds that it took.
        """
        self._on_end = on_end
        self._gate = gate
        self._calls = ModelCalls(gate.core)
        self._attempts = Attempts(self._calls, lambda: self._callers, self._price_of)
        self._loopback = loopback
        self._trusts = trusts or (lambda _: loopback)
        self._is_token = is_token
        self._folder = folder
        self._store = BodyMemory()
        self._salt = b""
        self._accounts = KeyAccounts(gate.settings, lambda: self._salt)
        self._identities = LoginIdentities(lambda: self._salt, self._remember)
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch = DisconnectWatch()
        self._places = ReturningClients()
        self._old: list[ProxiedProviders] = []
        self._log = AccessLog("")
        self._configure(gate.settings)

    def _configure(self, settings: Settings) -> None:
        """Use a config; called again when it was reloaded."""
        self._settings = settings
        self._upstreams = ProxiedProviders(settings)
        self._accounts.use(settings)
        here = "this service trusts only its own user" if self._loopback else "this service is not on loopback"
        self._callers = Callers(settings, self._upstreams, self._accounts, self._identities, self._is_token, here)
        self._routes: dict[bytes, Route] = {}
        self._log.close()
        self._log = AccessLog(self._folder if settings.serve.access_log else "")

    def _price_of(self, model: str) -> Price | None:
        return price_of(model, self._settings.prices)

    async def start(self) -> None:
        """Begin; the gate is open."""
        load_in_background()
        self._loop = asyncio.get_running_loop()
        self._salt = await self._calls.salt()
        self._identities.load(await self._calls.rows_beside(IDENTITIES))

    async def stop(self) -> None:
        """Close all connections and the access log."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for upstreams in (*self._old, self._upstreams):
            await upstreams.close()
        self._log.close()

    def _remember(self, row: str, account: str) -> None:
        """Whose account an identity is, for the next time. That it cannot be written disturbs nothing."""
        task = self._loop.create_task(self._calls.write_beside(IDENTITIES, row, account.encode()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def wants(self, scope: Scope) -> bool:
        """Whether a request is for a provider."""
        settings = self._gate.settings
        if settings is not self._settings:
            self._old = [each for each in self._old if each.connected] + [self._upstreams]
            self._configure(settings)
        path = scope["raw_path"]
        route = self._routes.get(path)
        if route is None:
            route = find_route(path, self._upstreams)
            if route is None:
                return is_missing(path, RESERVED) and _is_call(scope)
            if len(self._routes) >= _MOST_ROUTES:
                self._routes.clear()
            self._routes[path] = route
        scope["fleetgate.route"] = route
        return True

    def ahead(self, scope: Scope, body: bytearray) -> bool:
        """Take a request that is here as a whole: it gets into the queue before its task begins. Whether that was
        done.
        """
        if len(body) >= SURELY_READ_BYTES or "fleetgate.route" not in scope:
            return False
        exchange = self._begin(scope)
        exchange.body = RequestBody(_no_more, self._store)
        exchange.body.take(bytes(body))
        try:
            self._choose(exchange, self._read(exchange, scope))
            if exchange.candidates and not exchange.apart:
                self._attempts.enqueue(exchange)
        except FleetgateError:  # which is said in its task
            exchange.body.forget()
            return False
        scope["fleetgate.exchange"] = exchange
        return True

    def _choose(self, exchange: Exchange, key: str) -> None:
        """Who may answer a request, and its age: one that gave up waiting, and asks again, keeps it. ProxyRefusal."""
        self._callers.choose(exchange, key)
        exchange.since = self._places.take(exchange) or exchange.since

    def _begin(self, scope: Scope) -> Exchange:
        route: Route = scope["fleetgate.route"]
        upstream = self._upstreams.find(route.provider, route.account)
        return Exchange(scope["method"], scope["query_string"], route, upstream)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "fleetgate.route" not in scope:
            await self._say_what_is_missing(scope, send)
            return
        begun: Exchange | None = scope.get("fleetgate.exchange")
        exchange = begun or self._begin(scope)
        handler = asyncio.current_task(self._loop)
        assert handler is not None
        self._watch.begin(exchange, handler)
        try:
            key = None
            try:
                if begun is None:
                    key = self._read(exchange, scope)
                    exchange.body = RequestBody(receive, self._store)
                    await exchange.body.read()
            except FleetgateError as error:
                refusal = error if isinstance(error, ProxyRefusal) else _of_store(error)
                await send_refusal(exchange, refusal, send, close=True)  # its body was not read
                return
            try:
                await self._answer(exchange, key, scope["fleetgate.client"], receive, send, handler)
            finally:
                exchange.body.forget()
        except ClientGone:
            exchange.gone = True
        except asyncio.CancelledError:
            if not exchange.gone:
                raise
            handler.uncancel()
        finally:
            self._attempts.release_trial_place(exchange)
            if exchange.pending is not None:
                self._attempts.leave_queue(exchange)
            if exchange.lease:  # it ended before its answer did
                exchange.outcome = exchange.outcome or LEFT
                self._attempts.release_slot(exchange)
            self._watch.end(exchange)
            seconds = perf_counter() - exchange.began
            self._log.note(exchange, seconds)
            if self._on_end is not None:
                self._on_end(exchange, seconds)

    async def _say_what_is_missing(self, scope: Scope, send: Send) -> None:
        """Answer a request that names no known provider. Only a trusted local user sees the names in the config."""
        path = scope["raw_path"]
        trusted = self._trusts(scope)
        known = self._upstreams.names() if trusted else sorted(KNOWN_PROVIDERS)
        refusal = refusal_for(path, known, self._settings.providers if trusted else ())
        body = shape_of(refusal, suggested_api(path), int(time()))
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        headers += [*ISOLATED, (b"connection", b"close")]  # its body was not read
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(
        self,
        exchange: Exchange,
        key: str | None,
        client: ClientConnection,
        receive: Receive,
        send: Send,
        handler: asyncio.Task[Any],
    ) -> None:
        """With a key: its model is yet to be read."""
        relay = ResponseRelay(exchange, client, self._loop.create_future(), self._heard, self._attempts.release_slot)
        if exchange.body.whole:
            self._watch.client(exchange, client, handler, in_one_piece=exchange.body.in_one_piece)
        else:
            exchange.body.on_whole = lambda: self._watch.client(exchange, client, handler, in_one_piece=False)
        try:
            if key is not None:
                self._choose(exchange, key)
            if exchange.upstream.comment_after_s and wants_stream(exchange):
                exchange.early = EarlyStream(
                    exchange, client, self._loop, lambda: [*ISOLATED, *outcome_headers(exchange)]
                )
            response, start = await self._attempts.answer(exchange, relay.news)
            try:
                relay.begin(response, start)
                await relay.done
            finally:
                response.close()  # harmless after its end
        except ProxyRefusal as refusal:
            self._attempts.release_slot(exchange)
            await send_refusal(exchange, refusal, send, close=not exchange.body.whole)
        except BrokenOff:
            self._attempts.release_slot(exchange)  # and the server cuts the client's connection
        except FleetgateError as error:
            exchange.outcome = None
            await send_refusal(exchange, _of_store(error), send, close=not exchange.body.whole)
        except asyncio.CancelledError:
            if not exchange.stalled:
                if exchange.gone and not exchange.lease and not exchange.status:
                    self._places.keep(exchange)
                raise
            handler.uncancel()
            await self._give_up(exchange, send)
        finally:
            exchange.done = True
            if exchange.early is not None:
                exchange.early.stop()
            relay.stop()
            if exchange.stop_watch is not None:
                exchange.stop_watch()

    def _heard(self, exchange: Exchange, response: UpstreamResponse) -> None:
        """The head of an answer is here, which is passed on."""
        if response.status < 300 and self._callers.accept(exchange, response):
            self._attempts.adopt(exchange)
        if not exchange.lease or response.status >= 400:  # of a refusal, its outcome says all
            return
        self._calls.began(exchange.lease)
        exchange.readings = report_rates(
            self._calls,
            exchange.lease,
            exchange.model,
            response.raw_headers,
            follows=exchange.upstream.follows_rates,
        )

    async def _give_up(self, exchange: Exchange, send: Send) -> None:
        """A wait was too long."""
        if exchange.waiting_for_client:
            exchange.outcome = NOT_TAKEN
            self._attempts.release_slot(exchange)
            return
        refusal = self._attempts.report_failure(exchange, TimeoutError(f"no byte for {exchange.upstream.stall_s:g} s"))
        self._attempts.release_slot(exchange)
        if not exchange.first_byte_s:
            await send_refusal(exchange, refusal, send, close=not exchange.body.whole)

    # What a request asks for.

    def _read(self, exchange: Exchange, scope: Scope) -> str:
        """Its headers; returns its key. ProxyRefusal."""
        if scope["http_version"] == "1.0":
            raise ProxyRefusal(505, "http_version", "the proxy speaks HTTP/1.1: an answer of unknown length needs it")
        if leaves_base(exchange.path):
            raise ProxyRefusal(
                400, "bad_path", "`..` in a path leads out of the provider's base URL: send the path that is meant"
            )
        asked = exchange.headers = read_headers(scope["headers"])
        if asked.upgrade:
            what = asked.upgrade[:40].decode("latin-1")
            raise ProxyRefusal(
                426, "upgrade", f"the proxy passes on no {what} connections: send plain HTTP/1.1 requests"
            )
        key = self._callers.read_key(exchange, lambda: self._trusts(scope))
        exchange.hold_s = exchange.upstream.hold_s
        exchange.since = self._calls.now()
        if exchange.route.lease:
            asked.ours.setdefault(b"lease", exchange.route.lease.encode())
        if asked.ours:
            self._read_ours(exchange, asked.ours)
        exchange.project = exchange.route.project or exchange.project
        return key

    def _read_ours(self, exchange: Exchange, ours: dict[bytes, bytes]) -> None:
        """The headers that are for us."""
        said = {name: value.decode("latin-1").strip() for name, value in ours.items()}
        run = said.get(b"lease", "")
        if run and (known := self._calls.run(run)) is not None:
            exchange.client = exchange.run = run
            exchange.project, exchange.priority, exchange.run_model, exchange.work_class = known
        if b"hold" in said:
            try:
                exchange.hold_s = parse_duration_ms(said[b"hold"]) / 1000
            except BadValue as error:
                raise ProxyRefusal(400, "bad_request", f"x-fleetgate-hold: {error}") from None
        if b"priority" in said:
            number = said[b"priority"]
            if not number.lstrip("-").isdecimal() or len(number) > 5 or abs(int(number)) > MAX_PRIORITY:
                valid = f"valid is a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
                raise ProxyRefusal(400, "bad_request", f"x-fleetgate-priority {number[:20]!r}: {valid}")
            exchange.priority = int(number)
        if b"class" in said:
            if said[b"class"] not in CLASSES:
                found, valid = said[b"class"][:20], ", ".join(CLASSES)
                raise ProxyRefusal(400, "bad_request", f"x-fleetgate-class {found!r}: valid are {valid}")
            exchange.work_class = said[b"class"]
        exchange.project = said.get(b"project", "") or exchange.project


def _is_call(scope: Scope) -> bool:
    """Whether a client of some provider sends this: it changes something, or brings a key along."""
    return scope["method"] not in ("GET", "HEAD") or any(name in KEYS for name, _ in scope["headers"])


async def _no_more() -> Any:
    raise ClientGone


def _of_store(error: FleetgateError) -> ProxyRefusal:
    """The gate cannot decide now."""
    return ProxyRefusal(503, "store", str(error), 1)
