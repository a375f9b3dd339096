"""The ASGI entry: one request from its first byte to its line in the access log.

The rule: whatever happens, by whichever door a request ends, its seat is given back and its connection to the provider
is closed or free for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from time import perf_counter
from typing import Any, Protocol

from headgate.config.errors import BadValue
from headgate.config.settings import Settings
from headgate.config.units import parse_duration_ms
from headgate.core.errors import HeadgateError
from headgate.core.names import DEFAULT_ACCOUNT, Model
from headgate.core.order import MAX_PRIORITY
from headgate.gate.calls import Calls
from headgate.proxy.access import AccessLog
from headgate.proxy.accounts import ANY_KEY, Accounts
from headgate.proxy.bodies import SURELY_READ_BYTES, Body, Store, model_in, model_in_path
from headgate.proxy.connection import Response
from headgate.proxy.errors import ClientGone, Refusal
from headgate.proxy.exchange import Candidate, Exchange
from headgate.proxy.headers import key_of, read_headers, without_key
from headgate.proxy.holding import LEFT, NOT_TAKEN, Holding
from headgate.proxy.relay import BrokenOff, Client, Relay, send_refusal, used_up
from headgate.proxy.routes import Route, find_route
from headgate.proxy.upstreams import Upstreams
from headgate.proxy.watching import Watch
from headgate.signals.subject import Subject, of_hint

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_UNCOUNTED = (b"/count_tokens", b"/input_tokens", b"/count-tokens", b":countTokens", b"/count-tokens:rawPredict")
_MOST_NAMES = 4096


class Served(Protocol):
    """The gate of the service, as far as the proxy needs it beyond `Calls`."""

    @property
    def settings(self) -> Settings: ...


class Proxy:
    """Made once for a service; `wants` says which requests are its own."""

    def __init__(self, gate: Any, *, loopback: bool, is_token: Callable[[bytes], bool], folder: str) -> None:
        self._gate = gate
        self._calls = Calls(gate)
        self._holding = Holding(self._calls)
        self._loopback = loopback
        self._is_token = is_token
        self._folder = folder
        self._store = Store()
        self._salt = b""
        self._watch = Watch()
        self._old: list[Upstreams] = []
        self._log = AccessLog("")
        self._configure(gate.settings)

    def _configure(self, settings: Settings) -> None:
        """Go by the config; again when it was read anew."""
        self._settings = settings
        self._upstreams = Upstreams(settings)
        self._accounts = Accounts(settings, lambda: self._salt, self._is_token)
        self._names: dict[tuple[str, str, str], str] = {}
        self._routes: dict[bytes, Route] = {}
        self._log.close()
        self._log = AccessLog(self._folder if settings.serve.access_log else "")

    async def start(self) -> None:
        """Begin; the gate is open."""
        self._loop = asyncio.get_running_loop()
        self._salt = await self._calls.salt()

    async def stop(self) -> None:
        """Let go of everything."""
        for upstreams in (*self._old, self._upstreams):
            await upstreams.close()
        self._log.close()

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
                return False
            if len(self._routes) >= _MOST_NAMES:
                self._routes.clear()
            self._routes[path] = route
        scope["headgate.route"] = route
        return True

    def ahead(self, scope: Scope, body: bytearray) -> bool:
        """Take a request that is here as a whole: it gets in line before its task begins. Whether that was done."""
        if len(body) >= SURELY_READ_BYTES:
            return False
        x = self._begin(scope)
        x.body = Body(_no_more, self._store)
        x.body.take(bytes(body))
        try:
            self._choose(x, self._read(x, scope))
            if x.candidates:
                self._holding.ask(x)
        except HeadgateError:  # which is said in its task
            x.body.forget()
            return False
        scope["headgate.exchange"] = x
        return True

    def _begin(self, scope: Scope) -> Exchange:
        route: Route = scope["headgate.route"]
        upstream = self._upstreams.find(route.provider, route.account)
        return Exchange(scope["method"], scope["query_string"], route, upstream)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun: Exchange | None = scope.get("headgate.exchange")
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
            except HeadgateError as error:
                refusal = error if isinstance(error, Refusal) else _of_store(error)
                await send_refusal(x, refusal, send, close=True)  # its body was not read
                return
            try:
                await self._answer(x, key, scope["headgate.client"], receive, send, handler)
            finally:
                x.body.forget()
        except ClientGone:
            x.gone = True
        except asyncio.CancelledError:
            if not x.gone:
                raise
            handler.uncancel()
        finally:
            if x.asking is not None:
                self._holding.give_up(x)
            if x.lease:  # it ended before its answer did
                x.outcome = x.outcome or LEFT
                self._holding.leave(x)
            self._watch.end(x)
            self._log.note(x, perf_counter() - x.began)

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
        except HeadgateError as error:
            x.outcome = None
            await send_refusal(x, _of_store(error), send, close=not x.body.whole)
        except asyncio.CancelledError:
            if not x.stalled:
                raise
            handler.uncancel()
            await self._give_up(x, send)
        finally:
            x.done = True
            relay.stop()
            if x.watcher is not None:
                x.watcher.cancel()

    def _heard(self, x: Exchange, response: Response) -> None:
        """The head of an answer is here, which is passed on."""
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
        asked = x.asked = read_headers(scope["headers"])
        if asked.upgrade:
            what = asked.upgrade[:40].decode("latin-1")
            raise Refusal(426, "upgrade", f"the proxy passes on no {what} connections: send plain HTTP/1.1 requests")
        key = key_of(asked, x.query)
        token = bool(key) and self._accounts.is_token(key)
        if token or key == ANY_KEY:  # it means the key of the config, and is not the provider's business
            asked.keys.clear()
            x.query = without_key(x.query)
        if not self._loopback and not token and key in ("", ANY_KEY):
            sentence = "this service is not on loopback: send a key of the provider's, or Headgate's own token as one"
            raise Refusal(401, "key_needed", sentence)
        x.hold_s = x.upstream.hold_s
        x.since = self._calls.now()
        if x.route.lease:
            asked.ours.setdefault(b"lease", x.route.lease.encode())
        if asked.ours:
            self._read_ours(x, asked.ours)
        x.project = x.route.project or x.project
        return key if asked.keys or b"key=" in x.query else ""

    def _read_ours(self, x: Exchange, ours: dict[bytes, bytes]) -> None:
        """The headers that are for us."""
        said = {name: value.decode("latin-1").strip() for name, value in ours.items()}
        run = said.get(b"lease", "")
        if run and (known := self._calls.run(run)) is not None:
            x.client = run
            x.project, x.priority = known
        if b"hold" in said:
            try:
                x.hold_s = parse_duration_ms(said[b"hold"]) / 1000
            except BadValue as error:
                raise Refusal(400, "bad_request", f"x-headgate-hold: {error}") from None
        if b"priority" in said:
            number = said[b"priority"]
            if not number.lstrip("-").isdecimal() or len(number) > 5 or abs(int(number)) > MAX_PRIORITY:
                valid = f"valid is a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
                raise Refusal(400, "bad_request", f"x-headgate-priority {number[:20]!r}: {valid}")
            x.priority = int(number)
        x.project = said.get(b"project", "") or x.project

    def _choose(self, x: Exchange, key: str) -> None:
        """The models that may answer it; none where no model is called, and no seat is needed."""
        route = x.route
        account = route.account or self._accounts.of(route.provider, key)
        if route.account or not key:
            x.key = self._accounts.key_of(route.provider, account)
        if x.method != "POST" or x.path.endswith(_UNCOUNTED):
            return
        name = model_in_path(x.path.decode("latin-1"))
        x.model_in_path = bool(name)
        name = name or model_in(x.body, x.asked.content_type)
        if not name:
            return
        model = self._name(route.provider, account, name)
        x.model = model
        x.candidates[model] = Candidate(x.upstream, "", x.key)
        if self._settings.fallback and x.body.whole:
            self._add_fallbacks(x, route, account, model)

    def _add_fallbacks(self, x: Exchange, route: Route, account: str, model: str) -> None:
        plain = f"{route.provider}/{model.partition('/')[2]}"
        for text in self._settings.fallback.get(model) or self._settings.fallback.get(plain, ()):
            head, _, name = text.partition("/")
            provider, _, other = head.partition("@")
            if provider == route.provider and other in ("", account):
                candidate = Candidate(x.upstream, name, x.key)
                text = self._name(provider, account, name)
            elif provider in self._upstreams:
                upstream = self._upstreams.find(provider, other)
                candidate = Candidate(upstream, name, self._accounts.key_of(provider, other or DEFAULT_ACCOUNT))
                if upstream.api != x.api or not candidate.key:
                    continue
            else:
                continue
            x.candidates.setdefault(text, candidate)

    def _name(self, provider: str, account: str, name: str) -> str:
        """The model as the gate knows it: what cannot be in a name is left out of it."""
        known = self._names.get((provider, account, name))
        if known is None:
            clean = "".join(c if c.isalnum() or c in "._-+~/:" else "_" for c in name.removeprefix("models/")[:200])
            known = str(Model(provider, account, clean or "unknown"))
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            self._names[provider, account, name] = known
        return known


async def _no_more() -> Any:
    raise ClientGone


def _of_store(error: HeadgateError) -> Refusal:
    """The gate cannot decide now."""
    return Refusal(503, "store", str(error), 1)
