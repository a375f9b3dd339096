"""The handler of requests to providers: one request from its first byte to its line in the access log.

The rule: however a request ends, its slot is released, and its connection to the provider is closed or free for the
next request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import time
from typing import Any, Protocol

from fleetgate.config.errors import BadValue
from fleetgate.config.settings import Settings
from fleetgate.config.units import parse_duration_ms
from fleetgate.core.access.keys import AccessKey
from fleetgate.core.entities import CLASSES
from fleetgate.core.errors import FleetgateError
from fleetgate.core.prices import Price
from fleetgate.core.queue.order import MAX_PRIORITY
from fleetgate.front.request import ClientRequest, Headers
from fleetgate.gate.access_keys import PREFIX
from fleetgate.gate.prices.lookup import load_from_file, load_in_background, price_of
from fleetgate.gate.providers.account_login import IDENTITIES
from fleetgate.gate.providers.known_providers import KNOWN_PROVIDERS
from fleetgate.gate.serving.model_calls import ModelCalls
from fleetgate.proxy.access_log import AccessLog
from fleetgate.proxy.callers import Callers, may_name_run
from fleetgate.proxy.calls.call import UpstreamCall
from fleetgate.proxy.calls.exchange import Exchange
from fleetgate.proxy.calls.shared_parts import CallParts
from fleetgate.proxy.calls.slots import CallSlots
from fleetgate.proxy.calls.stalls import StallWatch
from fleetgate.proxy.errors import ProxyRefusal, shape_of
from fleetgate.proxy.headers import ISOLATED, KEYS, read_headers
from fleetgate.proxy.key_accounts import KeyAccounts
from fleetgate.proxy.login_identities import LoginIdentities
from fleetgate.proxy.providers import LONGEST_PATH, RESERVED, ProxiedProviders
from fleetgate.proxy.request_body import BodyMemory, RequestBody
from fleetgate.proxy.returning_clients import ReturningClients
from fleetgate.proxy.routes import Route, find_route, leaves_base
from fleetgate.proxy.sessions import session_of
from fleetgate.proxy.unknown_paths import is_missing, refusal_for, suggested_api

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
        find_key: Callable[[str], AccessKey | None] = lambda _: None,
        folder: str,
        trusts: Callable[[object], bool] | None = None,
        owns: Callable[[object], bool] | None = None,
        on_end: Callable[[Exchange, float], None] | None = None,
    ) -> None:
        """`trusts`: whether a connection comes from a trusted local user; without it, all on loopback do.

        `owns`: whether it comes from the service's own user; without it, none does.

        `on_end` is called with each call that has ended, and the seconds that it took.
        """
        self._on_end = on_end
        self._gate = gate
        self._calls = ModelCalls(gate.core)
        self._slots = CallSlots(self._calls, lambda: self._callers, self._price_of)
        self._loopback = loopback
        self._trusts = trusts or (lambda _: loopback)
        self._owns = owns or (lambda _: False)
        self._is_token = is_token
        self._find_key = find_key
        self._folder = folder
        self._store = BodyMemory()
        self._salt = b""
        self._accounts = KeyAccounts(gate.settings, lambda: self._salt)
        self._identities = LoginIdentities(lambda: self._salt, self._remember, self._identity_rows)
        self._tasks: set[asyncio.Task[str]] = set()
        self._watch = StallWatch()
        self._places = ReturningClients()
        self._old: list[ProxiedProviders] = []
        self._log = AccessLog("")
        self._loop = asyncio.get_running_loop()
        self._awaits_prices: list[UpstreamCall] | None = None  # calls that came before the prices
        self._configure(gate.settings)

    def _configure(self, settings: Settings) -> None:
        """Use a config; called again when it was reloaded. Calls under way go on with what they began with."""
        self._settings = settings
        self._upstreams = ProxiedProviders(settings)
        self._accounts.use(settings)
        here = "this service trusts only its own user" if self._loopback else "this service is not on loopback"
        self._callers = Callers(
            settings,
            self._upstreams,
            self._accounts,
            self._identities,
            self._is_token,
            self._find_key,
            here,
            self._calls.accounts_of_set,
        )
        self._routes: dict[bytes, Route] = {}
        self._log.close()
        self._log = AccessLog(self._folder if settings.serve.access_log else "")
        self._parts = CallParts(
            self._loop, self._calls, self._slots, self._callers, self._places, self._watch, self._log, self._on_end
        )

    def _price_of(self, model: str) -> Price | None:
        return price_of(model, self._settings.prices)

    async def start(self) -> None:
        """Begin; the gate is open."""
        if not load_from_file():
            self._awaits_prices = []
            load_in_background(self._on_prices)
        self._salt = await self._calls.salt()
        await self._identities.load()

    def _on_prices(self) -> None:
        """The prices are there, or cannot be had. Called in a thread."""
        try:
            self._loop.call_soon_threadsafe(self._begin_waiting)
        except RuntimeError:  # the service has stopped
            pass

    def _begin_waiting(self) -> None:
        calls, self._awaits_prices = self._awaits_prices or [], None
        for call in calls:
            if not call.request.gone:
                call.begin()

    async def stop(self) -> None:
        """Close all connections and the access log."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for upstreams in (*self._old, self._upstreams):
            await upstreams.close()
        self._log.close()

    def _remember(self, row: str, known: str, account: str) -> asyncio.Task[str]:
        """Whose account an identity is, for the next time. That it cannot be written disturbs nothing."""
        task = self._loop.create_task(self._store_identity(row, known, account))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _identity_rows(self) -> list[tuple[str, bytes]]:
        return await self._calls.rows_beside(IDENTITIES)

    async def _store_identity(self, row: str, known: str, account: str) -> str:
        return (await self._calls.write_beside(IDENTITIES, row, known.encode(), account.encode())).decode()

    def wants(self, request: ClientRequest) -> bool:
        """Whether a request is for a provider."""
        settings = self._gate.settings
        if settings is not self._settings:
            self._old = [each for each in self._old if each.connected] + [self._upstreams]
            self._configure(settings)
        return self._route(request.path) is not None or (is_missing(request.path, RESERVED) and _is_call(request))

    def _route(self, path: bytes) -> Route | None:
        route = self._routes.get(path)
        if route is None:
            route = find_route(path, self._upstreams)
            if route is not None and len(path) <= LONGEST_PATH:
                if len(self._routes) >= _MOST_ROUTES:
                    self._routes.clear()
                self._routes[path] = route
        return route

    def __call__(self, request: ClientRequest) -> None:
        """Handle a request that is wanted."""
        route = self._route(request.path)
        if route is None:
            self._say_what_is_missing(request)
            return
        upstream = self._upstreams.find(route.provider, route.account)
        body = RequestBody(request, self._store)
        exchange = Exchange(request.method, request.query, route, upstream, body)
        call = UpstreamCall(self._parts, exchange, request)
        try:
            exchange.secret = self._read(exchange, request)
        except FleetgateError as error:
            call.refuse(error)
        else:
            if self._awaits_prices is None:
                call.begin()
            else:
                self._awaits_prices.append(call)

    def _say_what_is_missing(self, request: ClientRequest) -> None:
        """Answer a request that names no known provider. Only a trusted local user sees the names in the config."""
        path = request.path
        trusted = self._trusts(request.peer)
        known = self._upstreams.names() if trusted else sorted(KNOWN_PROVIDERS)
        refusal = refusal_for(path, known, self._settings.providers if trusted else ())
        body = shape_of(refusal, suggested_api(path), int(time()))
        headers: Headers = [(b"content-type", b"application/json"), *ISOLATED]
        request.respond(refusal.status, [*headers, (b"connection", b"close")], body)  # its body was not read

    # What a request asks for.

    def _read(self, exchange: Exchange, request: ClientRequest) -> str:
        """Its headers; returns its key. ProxyRefusal."""
        if request.http_version == "1.0":
            raise ProxyRefusal(505, "http_version", "the proxy speaks HTTP/1.1: an answer of unknown length needs it")
        if leaves_base(exchange.path):
            raise ProxyRefusal(
                400, "bad_path", "`..` in a path leads out of the provider's base URL: send the path that is meant"
            )
        if PREFIX.encode() in exchange.path:
            raise ProxyRefusal(400, "bad_path", "an access key in a path is seen by others: send it as the API key")
        asked = exchange.headers = read_headers(request.headers)
        if (ours := self._settings.serve.trust_user_header) is not None:  # a user's name is not for providers
            asked.sent = [pair for pair in asked.sent if pair[0] != ours.header.encode()]
        if asked.upgrade:
            what = asked.upgrade[:40].decode("latin-1")
            raise ProxyRefusal(
                426, "upgrade", f"the proxy passes on no {what} connections: send plain HTTP/1.1 requests"
            )
        passed_on = ours is not None and b"proxy-secret" in asked.ours  # by a reverse proxy: it is no local user's
        if passed_on and asked.keys.get(b"authorization", b"")[:7].lower() != b"bearer ":
            asked.keys.pop(b"authorization", None)  # the password that the reverse proxy asked for
        exchange.by_own_user = lambda: not passed_on and self._owns(request.peer)
        key = self._callers.read_key(exchange, lambda: not passed_on and self._trusts(request.peer))
        if PREFIX.encode() in exchange.query:
            raise ProxyRefusal(
                400, "bad_path", "an access key in a query is valid as `key` alone: send it as the API key"
            )
        exchange.hold_s = exchange.upstream.hold_s
        exchange.since = self._calls.now()
        if exchange.route.lease:
            asked.ours.setdefault(b"lease", exchange.route.lease.encode())
        if asked.ours:
            self._read_ours(exchange, asked.ours)
        exchange.project = exchange.route.project or exchange.project
        exchange.session = session_of(asked.sessions, asked.ours.get(b"session"), exchange.run)
        if exchange.access_key is not None:
            self._callers.apply_rights(exchange, exchange.access_key)
        return key

    def _read_ours(self, exchange: Exchange, ours: dict[bytes, bytes]) -> None:
        """The headers that are for us."""
        said = {name: value.decode("latin-1").strip() for name, value in ours.items()}
        run = said.get(b"lease", "")
        known = self._calls.run(run) if run else None
        if known is not None and may_name_run(exchange, known.project):
            exchange.client = exchange.run = run
            exchange.project, exchange.priority, exchange.run_model, exchange.work_class, run_key = known
            if exchange.trusted:  # others could name any run, and use up what is its key's
                exchange.access_key_name = run_key
        if b"hold" in said:
            try:
                exchange.hold_s = parse_duration_ms(said[b"hold"]) / 1000
            except BadValue as error:
                raise ProxyRefusal(400, "bad_request", f"x-fleetgate-hold: {error}") from None
        if b"priority" in said:
            number = said[b"priority"]
            if not number.removeprefix("-").isdecimal() or len(number) > 5 or abs(int(number)) > MAX_PRIORITY:
                valid = f"valid is a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
                raise ProxyRefusal(400, "bad_request", f"x-fleetgate-priority {number[:20]!r}: {valid}")
            exchange.priority = int(number)
        if b"class" in said:
            if said[b"class"] not in CLASSES:
                found, valid = said[b"class"][:20], ", ".join(CLASSES)
                raise ProxyRefusal(400, "bad_request", f"x-fleetgate-class {found!r}: valid are {valid}")
            exchange.work_class = said[b"class"]
        exchange.project = said.get(b"project", "") or exchange.project


def _is_call(request: ClientRequest) -> bool:
    """Whether a client of some provider sends this: it changes something, or brings a key along."""
    return request.method not in ("GET", "HEAD") or any(name in KEYS for name, _ in request.headers)
