"""One model call of a program under a lease: its slot, and what its response reports.

The rule: a call that got a slot releases it once, however it ends: with the last byte of its body, when the body is
closed, or with an error. `GatedCall.end` never waits, and may be called from any thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import inf
from time import time_ns
from typing import NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from fleetgate.config.settings import Settings
from fleetgate.core.model_names import Model, canonical, shown
from fleetgate.core.prices import Price
from fleetgate.core.usage import Reading, Usage
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.library.usage_arguments import REFUSED, UNUSED
from fleetgate.gate.prices.lookup import price_of
from fleetgate.gate.providers.known_providers import KNOWN_PROVIDERS
from fleetgate.gate.serving.model_calls import ModelCalls
from fleetgate.gate.serving.reported_rates import report_rates
from fleetgate.proxy.calls.response_reader import ResponseReader
from fleetgate.proxy.errors import ProxyRefusal
from fleetgate.proxy.request_body import CallFields, call_size, clean_name, is_counted, model_in_path, read_fields
from fleetgate.signals.classify_http import classify_response
from fleetgate.signals.outcome import AUTH, OK, SERVER_ERROR, Outcome, outcome

Post = Callable[[Callable[[], object]], None]  # runs something in the gate's thread, soon
Pairs = list[tuple[bytes, bytes]]

_ERROR_BYTES = 64 * 1024  # of an error that are looked at
_TAIL = 256
# The last event of a stream. SDKs close the response when they have seen it, without reading its end.
_LAST_EVENTS = (b"data: [DONE]", b'"message_stop"', b'"response.completed"', b'"response.incomplete"')
_NOT_SENT = frozenset(("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "LocalProtocolError"))
_LEFT = outcome("local_error", "httpx.closed", "the program closed the response before its end")


class CallOptions(Struct, frozen=True):
    """What the calls of one transport have in common."""

    provider: str = ""  # "": by the host of the URL
    account: str = ""
    project: str = "default"
    priority: int = 0
    work_class: str | None = None
    timeout_s: float | None = None


class SentRequest(NamedTuple):
    """A request, as far as the gate looks at it."""

    method: str
    url: str
    path: bytes
    headers: dict[bytes, bytes]
    body: bytes


class Wanted(NamedTuple):
    """What a model call needs a slot for."""

    model: str  # as the gate knows it
    fields: CallFields
    what: str  # for `fleetgate ps`


class GatedCalls:
    """The calls of one transport. Its coroutines run in the gate's loop."""

    def __init__(self, core: GateCore, options: CallOptions) -> None:
        self.core = core
        self._options = options
        self._calls = ModelCalls(core)

    def wanted(self, request: SentRequest) -> Wanted | None:
        """What a request needs; None for one that calls no model. ProxyRefusal: its provider is not known."""
        if not is_counted(request.method, request.path):
            return None
        headers = request.headers
        name = model_in_path(request.path.decode("latin-1"))
        fields = read_fields(request.body, headers.get(b"content-type", b""), headers.get(b"content-encoding", b""))
        name = name or fields.model
        if not name:
            return None
        provider = self._provider_at(request.url)
        if not provider:
            host = urlsplit(request.url).hostname or request.url
            sentence = (
                f'which provider is {shown(host)}? Name it, as in Transport(gate, provider="openai"), or add its '
                "base_url under [providers.NAME] of the config file"
            )
            raise ProxyRefusal(400, "unknown_provider", sentence)
        model = str(Model(provider, self._options.account or "default", clean_name(name)))
        return Wanted(model, fields, f"{request.method} {request.path[:60].decode('latin-1')}")

    def _provider_at(self, url: str) -> str:
        return canonical(self._options.provider) or _provider_at(url, self.core.settings)

    def api_at(self, url: str) -> str:
        """The API that is spoken there: anthropic, openai or gemini."""
        provider = self._provider_at(url)
        given = self.core.settings.providers.get(provider)
        return given.api if given is not None else KNOWN_PROVIDERS.get(provider, ("", "openai"))[1]

    async def acquire(self, wanted: Wanted, post: Post, wait: SlotWait | None = None) -> GatedCall:
        """Wait for a slot. With a `wait`, a caller that is interrupted can give it up. NotInTime, StoreError."""
        if wait is None:
            return await self._acquire(wanted, post)
        wait.task = asyncio.current_task()
        wait.call = await self._acquire(wanted, post)
        if wait.given_up:
            wait.call.end()
        return wait.call

    async def _acquire(self, wanted: Wanted, post: Post) -> GatedCall:
        options, core = self._options, self.core
        price = await asyncio.to_thread(price_of, wanted.model, core.settings.prices)
        pending = self._calls.ask(
            self._calls.spec((wanted.model,), options.project, False, options.work_class),
            self._calls.now(),
            size=call_size(wanted.fields, price),
            priority=options.priority,
            what=wanted.what,
        )
        lease = await self._calls.enter(pending, inf if options.timeout_s is None else options.timeout_s)
        provider = wanted.model.partition("/")[0].partition("@")[0]
        given = core.settings.providers.get(provider)
        follows_rates = given is None or given.rates != "ignore"
        return GatedCall(self._calls, core.loop, post, lease.id, wanted.model, price, follows_rates)


class SlotWait:
    """The wait of a thread for a slot, which an interrupt may end at any moment: also just after the slot came."""

    def __init__(self) -> None:
        self.task: asyncio.Task[GatedCall] | None = None
        self.call: GatedCall | None = None
        self.given_up = False

    def give_up(self) -> None:
        """Leave the queue, or release the slot. Called in the gate's loop."""
        self.given_up = True
        if self.call is not None:
            self.call.end()
        elif self.task is not None:
            self.task.cancel()


class GatedCall:
    """A call that has a slot."""

    def __init__(
        self,
        calls: ModelCalls,
        loop: asyncio.AbstractEventLoop,
        post: Post,
        lease: str,
        model: str,
        price: Price | None,
        follows_rates: bool,
    ) -> None:
        self._calls = calls
        self._loop = loop
        self._post = post
        self._lease = lease
        self._model = model
        self._provider = model.partition("/")[0].partition("@")[0]
        self._price = price
        self._follows_rates = follows_rates
        self._status = 0
        self._headers: Pairs = []
        self._reader: ResponseReader | None = None
        self._error = b""  # the beginning of the body of an error
        self._tail = b""
        self._readings: tuple[Reading, ...] = ()
        self._ended = False

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """The head of the response has come."""
        self._status, self._headers = status, [(name.lower(), value) for name, value in headers]
        if status < 300:
            said = dict(self._headers)
            stream = said.get(b"content-type", b"")[:17].lower() == b"text/event-stream"
            name = self._model.partition("/")[2]
            encoding = said.get(b"content-encoding", b"").decode("latin-1")
            self._reader = ResponseReader(self._provider, name, encoding, stream=stream)
        if status < 400:
            self._post(self._report_begin)

    def _report_begin(self) -> None:
        self._calls.began(self._lease)
        self._readings = report_rates(self._calls, self._lease, self._model, self._headers, follows=self._follows_rates)

    def feed(self, piece: bytes) -> None:
        """A piece of the body has come."""
        if self._reader is not None:
            self._reader.feed(piece)
            self._tail = (self._tail + piece)[-_TAIL:]
        elif len(self._error) < _ERROR_BYTES:
            self._error += piece

    def end(self, error: BaseException | None = None, *, complete: bool = False) -> None:
        """Release the slot. `complete`: the last byte has come. Only the first call counts."""
        if self._ended:
            return
        self._ended = True
        if self._reader is not None and (complete or any(last in self._tail for last in _LAST_EVENTS)):
            complete = True
            self._reader.end()
        usage = self._usage(error)  # which reads the latest pieces: an error may be in them
        said = self._outcome(error, complete)
        self._post(lambda: self._calls.leave(self._lease, said, usage, self._readings))

    def abandon(self) -> None:
        """Release the slot of a response that was neither read nor closed. Garbage may be collected at any moment and
        in any thread, so nothing happens here but a note to the loop.
        """
        if not self._ended:
            try:
                self._loop.call_soon_threadsafe(self.end)
            except RuntimeError:  # the loop is closed, and everything was released
                pass

    def _outcome(self, error: BaseException | None, complete: bool) -> Outcome:
        if self._status >= 400:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._headers}
            name = self._model.partition("/")[2]
            said = classify_response(self._provider, self._status, headers, self._error, time_ns() // 1_000_000, name)
        elif self._reader is not None and self._reader.outcome is not None:
            said = self._reader.outcome
        elif isinstance(error, Exception):
            said = outcome(SERVER_ERROR, "httpx.no_answer", f"{type(error).__name__}: {error}")
        else:
            return OK if complete or 300 <= self._status < 400 else _LEFT
        if said.kind == AUTH:  # the program's key need not be the account's own
            return outcome("local_error", "httpx.auth", said.evidence)
        if said.kind == SERVER_ERROR and said.wait_ms is None:
            return replace(said, wait_ms=0)  # the program decides when to try again
        return said

    def _usage(self, error: BaseException | None) -> Usage | None:
        """What was used; None where that is not known, and the estimate stands."""
        if self._reader is None:
            not_sent = isinstance(error, Exception) and type(error).__name__ in _NOT_SENT
            return UNUSED if self._status >= 300 or not_sent else None
        usage = self._reader.usage()
        if self._reader.outcome is not None and self._reader.outcome.kind in REFUSED and usage is None:
            return UNUSED
        if usage is None or usage.cost is not None or not usage.calls or self._price is None:
            return usage
        return replace(usage, cost=self._price.cost(usage))


def _provider_at(url: str, settings: Settings) -> str:
    """The provider whose base URL has the same host and port; "" where there is none."""
    place = _place(url)
    for name, given in settings.providers.items():
        if given.base_url and _place(given.base_url) == place:
            return name.partition("@")[0]
    return next((name for name, (base_url, _) in KNOWN_PROVIDERS.items() if _place(base_url) == place), "")


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)
