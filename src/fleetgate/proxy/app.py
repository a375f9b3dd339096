"""The ASGI entry: one request from its first byte to its line in the access log.

The rule: whatever happens, by whichever door a request ends, its slot is given back and its connection to the provider
is closed or free for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from time import perf_counter, time
from typing import Any, Protocol

from fleetgate.config.errors import BadValue
from fleetgate.config.settings import Settings
from fleetgate.config.units import parse_duration_ms
from fleetgate.core.errors import FleetgateError
from fleetgate.core.queue.order import MAX_PRIORITY
from fleetgate.gate.serving.model_calls import ModelCalls
from fleetgate.proxy.access_log import AccessLog
from fleetgate.proxy.attempts import LEFT, NOT_TAKEN, Attempts
from fleetgate.proxy.callers import Callers
from fleetgate.proxy.disconnects_and_stalls import DisconnectWatch
from fleetgate.proxy.early_stream import Early, wants_stream
from fleetgate.proxy.errors import ClientGone, Refusal, shape_of
from fleetgate.proxy.exchange import Exchange
from fleetgate.proxy.headers import ISOLATED, KEYS, read_headers
from fleetgate.proxy.http_client.connection import Response
from fleetgate.proxy.key_accounts import Accounts
from fleetgate.proxy.login_identities import TABLE as IDENTITIES
from fleetgate.proxy.login_identities import Identities
from fleetgate.proxy.providers import BUILT_IN, RESERVED, Upstreams
from fleetgate.proxy.request_body import SURELY_READ_BYTES, Body, Store
from fleetgate.proxy.response_relay import BrokenOff, Client, Relay, send_refusal, told, used_up
from fleetgate.proxy.returning_clients import Places
from fleetgate.proxy.routes import Route, find_route, leaves_base
from fleetgate.proxy.unknown_paths import is_missing, refusal_for, suggested_api
from fleetgate.signals.limit_subject import Subject, of_hint

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
    ) -> None:
        """`trusts`: whether a request comes from a trusted local user; without it, all on loopback do."""
        self._gate = gate
        self._calls = ModelCalls(gate.core)
        self._holding = Attempts(self._calls, lambda: self._callers)
        self._loopback = loopback
        self._trusts = trusts or (lambda _: loopback)
        self._is_token = is_token
        self._folder = folder
        self._store = Store()
        self._salt = b""
        self._accounts = Accounts(gate.settings, lambda: self._salt)
        self._identities = Identities(lambda: self._salt, self._remember)
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch = DisconnectWatch()
        self._places = Places()
        self._old: list[Upstreams] = []
        self._log = AccessLog("")
        self._configure(gate.settings)

    def _configure(self, settings: Settings) -> None:
        """Go by the config; again when it was read anew."""
        self._settings = settings
        self._upstreams = Upstreams(settings)
        self._accounts.use(settings)
        here = "this service trusts only its own user" if self._loopback else "this service is not on loopback"
        self._callers = Callers(settings, self._upstreams, self._accounts, self._identities, self._is_token, here)
        self._routes: dict[bytes, Route] = {}
        self._log.close()
        self._log = AccessLog(self._folder if settings.serve.access_log else "")

    async def start(self) -> None:
        """Begin; the gate is open."""
        self._loop = asyncio.get_running_loop()
        self._salt = await self._calls.salt()
        self._identities.load(await self._calls.rows_beside(IDENTITIES))

    async def stop(self) -> None:
        """Let go of everything."""
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
        x = self._begin(scope)
        x.body = Body(_no_more, self._store)
        x.body.take(bytes(body))
        try:
            self._choose(x, self._read(x, scope))
            if x.candidates and not x.apart:
                self._holding.ask(x)
        except FleetgateError:  # which is said in its task
            x.body.forget()
            return False
        scope["fleetgate.exchange"] = x
        return True

    def _choose(self, x: Exchange, key: str) -> None:
        """Who may answer a request, and its age: one that gave up waiting, and asks again, keeps it. Refusal."""
        self._callers.choose(x, key)
        x.since = self._places.take(x) or x.since

    def _begin(self, scope: Scope) -> Exchange:
        route: Route = scope["fleetgate.route"]
        upstream = self._upstreams.find(route.provider, route.account)
        return Exchange(scope["method"], scope["query_string"], route, upstream)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "fleetgate.route" not in scope:
            await self._say_what_is_missing(scope, send)
            return
        begun: Exchange | None = scope.get("fleetgate.exchange")
        x = begun or self._begin(scope)
        handler = asyncio.current_task(self._loop)
        assert handler is not None
        self._watch.begin(x, handler)
        try:
            key = None
            try:
                if begun is None:
                    key = self._read(x, scope)
                    x.body = Body(receive, self._store)
                    await x.body.read()
            except FleetgateError as error:
                refusal = error if isinstance(error, Refusal) else _of_store(error)
                await send_refusal(x, refusal, send, close=True)  # its body was not read
                return
            try:
                await self._answer(x, key, scope["fleetgate.client"], receive, send, handler)
            finally:
                x.body.forget()
        except ClientGone:
            x.gone = True
        except asyncio.CancelledError:
            if not x.gone:
                raise
            handler.uncancel()
        finally:
            self._holding.leave_place(x)
            if x.asking is not None:
                self._holding.give_up(x)
            if x.lease:  # it ended before its answer did
                x.outcome = x.outcome or LEFT
                self._holding.leave(x)
            self._watch.end(x)
            self._log.note(x, perf_counter() - x.began)

    async def _say_what_is_missing(self, scope: Scope, send: Send) -> None:
        """No provider that is known is named. What the config has is told to a trusted local user only."""
        path = scope["raw_path"]
        trusted = self._trusts(scope)
        known = self._upstreams.names() if trusted else sorted(BUILT_IN)
        refusal = refusal_for(path, known, self._settings.providers if trusted else ())
        body = shape_of(refusal, suggested_api(path), int(time()))
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        headers += [*ISOLATED, (b"connection", b"close")]  # its body was not read
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(
        self, x: Exchange, key: str | None, client: Client, receive: Receive, send: Send, handler: asyncio.Task[Any]
    ) -> None:
        """With a key: its model is yet to be read."""
        relay = Relay(x, client, self._loop.create_future(), self._heard, self._holding.leave)
        if x.body.whole:
            self._watch.client(x, receive, handler, in_one_piece=x.body.in_one_piece)
        else:
            x.body.on_whole = lambda: self._watch.client(x, receive, handler, in_one_piece=False)
        try:
            if key is not None:
                self._choose(x, key)
            if x.upstream.comment_after_s and wants_stream(x):
                x.early = Early(x, client, self._loop, lambda: [*ISOLATED, *told(x)])
            response, start = await self._holding.answer(x, relay.news)
            try:
                relay.begin(response, start)
                await relay.done
            finally:
                response.close()  # harmless after its end
        except Refusal as refusal:
            self._holding.leave(x)
            await send_refusal(x, refusal, send, close=not x.body.whole)
        except BrokenOff:
            self._holding.leave(x)  # and the server cuts the client's connection
        except FleetgateError as error:
            x.outcome = None
            await send_refusal(x, _of_store(error), send, close=not x.body.whole)
        except asyncio.CancelledError:
            if not x.stalled:
                if x.gone and not x.lease and not x.status:
                    self._places.keep(x)
                raise
            handler.uncancel()
            await self._give_up(x, send)
        finally:
            x.done = True
            if x.early is not None:
                x.early.stop()
            relay.stop()
            if x.watcher is not None:
                x.watcher.cancel()

    def _heard(self, x: Exchange, response: Response) -> None:
        """The head of an answer is here, which is passed on."""
        if response.status < 300 and self._callers.accept(x, response):
            self._holding.adopt(x)
        if not x.lease or response.status >= 400:  # of a refusal, its outcome says all
            return
        self._calls.began(x.lease)
        provider, model = x.upstream.provider, x.model.partition("/")[2]
        for hint in used_up(provider, response.raw_headers):
            subject = of_hint(provider, hint, model) or Subject("")
            self._calls.used_up(x.lease, hint.wait_ms, subject.scope, subject.family)

    async def _give_up(self, x: Exchange, send: Send) -> None:
        """A wait was too long."""
        if x.waiting_for_client:
            x.outcome = NOT_TAKEN
            self._holding.leave(x)
            return
        refusal = self._holding.failed(x, TimeoutError(f"no byte for {x.upstream.stall_s:g} s"))
        self._holding.leave(x)
        if not x.first_byte_s:
            await send_refusal(x, refusal, send, close=not x.body.whole)

    # What a request asks for.

    def _read(self, x: Exchange, scope: Scope) -> str:
        """Its headers; returns its key. Refusal."""
        if scope["http_version"] == "1.0":
            raise Refusal(505, "http_version", "the proxy speaks HTTP/1.1: an answer of unknown length needs it")
        if leaves_base(x.path):
            raise Refusal(
                400, "bad_path", "`..` in a path leads out of the provider's base URL: send the path that is meant"
            )
        asked = x.asked = read_headers(scope["headers"])
        if asked.upgrade:
            what = asked.upgrade[:40].decode("latin-1")
            raise Refusal(426, "upgrade", f"the proxy passes on no {what} connections: send plain HTTP/1.1 requests")
        key = self._callers.read_key(x, lambda: self._trusts(scope))
        x.hold_s = x.upstream.hold_s
        x.since = self._calls.now()
        if x.route.lease:
            asked.ours.setdefault(b"lease", x.route.lease.encode())
        if asked.ours:
            self._read_ours(x, asked.ours)
        x.project = x.route.project or x.project
        return key

    def _read_ours(self, x: Exchange, ours: dict[bytes, bytes]) -> None:
        """The headers that are for us."""
        said = {name: value.decode("latin-1").strip() for name, value in ours.items()}
        run = said.get(b"lease", "")
        if run and (known := self._calls.run(run)) is not None:
            x.client = run
            x.project, x.priority, x.run_model = known
        if b"hold" in said:
            try:
                x.hold_s = parse_duration_ms(said[b"hold"]) / 1000
            except BadValue as error:
                raise Refusal(400, "bad_request", f"x-fleetgate-hold: {error}") from None
        if b"priority" in said:
            number = said[b"priority"]
            if not number.lstrip("-").isdecimal() or len(number) > 5 or abs(int(number)) > MAX_PRIORITY:
                valid = f"valid is a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
                raise Refusal(400, "bad_request", f"x-fleetgate-priority {number[:20]!r}: {valid}")
            x.priority = int(number)
        x.project = said.get(b"project", "") or x.project


def _is_call(scope: Scope) -> bool:
    """Whether a client of some provider sends this: it changes something, or brings a key along."""
    return scope["method"] not in ("GET", "HEAD") or any(name in KEYS for name, _ in scope["headers"])


async def _no_more() -> Any:
    raise ClientGone


def _of_store(error: FleetgateError) -> Refusal:
    """The gate cannot decide now."""
    return Refusal(503, "store", str(error), 1)
