"""`Transport` and `AsyncTransport`: httpx transports that get a slot for every model call."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from time import time
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from fleetgate import sync
from fleetgate.core.errors import FleetgateError
from fleetgate.gate.library.gate import Gate
from fleetgate.gate.serving.model_calls import NotInTime
from fleetgate.httpx.gated_call import CallOptions, GatedCall, GatedCalls, SentRequest, SlotWait, Wanted
from fleetgate.httpx.streams import async_stream_class, stream_class
from fleetgate.log.protocol import StoreError
from fleetgate.proxy.errors import ProxyRefusal, headers_of, no_slot, shape_of

if TYPE_CHECKING:  # at run time neither package is needed, and either may be there
    import httpx
    import httpx2

    class _Base(httpx.BaseTransport, httpx2.BaseTransport):  # type: ignore[misc]
        """A transport of both packages."""

    class _AsyncBase(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):  # type: ignore[misc]
        """The same for asyncio."""
else:
    _Base = _AsyncBase = object

_CONNECTIONS = {"max_connections": 1000, "max_keepalive_connections": 100}  # as the SDKs have it


class Transport(_Base):
    """For `httpx.Client`: a model call waits for a slot, and holds it until its response is read or closed.

    A call that is no model call passes without a slot. A 429 is reported, so that other calls wait, and returned.

    Args:
      gate: An open gate of `fleetgate.sync.open_gate`.
      inner: The transport that sends the requests. The default is the package's own.
      provider: The provider's name. The default is found by the host of the URL.
      account: The account whose slots the calls take. The default is the provider's default account.
      project: The group that shares slots fairly with the other groups.
      priority: From -100 to 100. Each point counts as much as 12 s of waiting.
      work_class: `"interactive"`, `"normal"` or `"batch"`: which work gives way to which.
      timeout_s: How long a call waits for a slot; after that it gets a 429. The default is to wait without a limit.
    """

    def __init__(
        self,
        gate: sync.Gate,
        inner: Any = None,
        *,
        provider: str = "",
        account: str = "",
        project: str = "default",
        priority: int = 0,
        work_class: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._gate = gate
        self._inner = inner
        self._options = CallOptions(provider, account, project, priority, work_class, timeout_s)
        self._calls: GatedCalls | None = None

    def handle_request(self, request: Any) -> Any:
        """Send a request, once it has a slot."""
        library = _library_of(request)
        if self._inner is None:
            self._inner = library.HTTPTransport(limits=library.Limits(**_CONNECTIONS))
        if self._calls is None:
            self._gate.thread.check_open()
            self._calls = GatedCalls(self._gate.thread.gate.core, self._options)
        request.read()
        try:
            wanted = self._calls.wanted(_seen(request))
            if wanted is None:
                return self._inner.handle_request(request)
            call = self._acquire(self._calls, wanted)
        except (NotInTime, StoreError, ProxyRefusal) as error:
            return _refused(library, request, error, self._calls)
        try:
            response = self._inner.handle_request(request)
            call.begin(response.status_code, response.headers.raw)
            response.stream = stream_class(library)(response.stream, call)
        except BaseException as error:
            call.end(error)
            raise
        return response

    def _acquire(self, calls: GatedCalls, wanted: Wanted) -> GatedCall:
        wait = SlotWait()
        try:
            return self._gate.thread.call(calls.acquire(wanted, self._post, wait))
        except BaseException:
            self._post(wait.give_up)
            raise

    def _post(self, work: Callable[[], object]) -> None:
        thread = self._gate.thread
        if not thread.closed:  # else everything was released
            try:
                thread.loop.call_soon_threadsafe(work)
            except RuntimeError:  # it was closed meanwhile
                pass

    def close(self) -> None:
        """Close the inner transport. The gate stays open."""
        if self._inner is not None:
            self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.close()


class AsyncTransport(_AsyncBase):
    """For `httpx.AsyncClient`: a model call waits for a slot, and holds it until its response is read or closed.

    `gate` is an open gate of `fleetgate.open_gate`, of the same event loop. The other arguments are those of
    `Transport`. A task that is cancelled while it waits leaves the queue.
    """

    def __init__(
        self,
        gate: Gate,
        inner: Any = None,
        *,
        provider: str = "",
        account: str = "",
        project: str = "default",
        priority: int = 0,
        work_class: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._gate = gate
        self._inner = inner
        self._calls = GatedCalls(gate.core, CallOptions(provider, account, project, priority, work_class, timeout_s))

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request, once it has a slot."""
        library = _library_of(request)
        core = self._gate.core
        core.check_open()
        if asyncio.get_running_loop() is not core.loop:
            raise FleetgateError("this gate belongs to another event loop: open one in the loop that uses it")
        if self._inner is None:
            self._inner = library.AsyncHTTPTransport(limits=library.Limits(**_CONNECTIONS))
        await request.aread()
        try:
            wanted = self._calls.wanted(_seen(request))
            if wanted is None:
                return await self._inner.handle_async_request(request)
            call = await self._calls.acquire(wanted, self._post)
        except (NotInTime, StoreError, ProxyRefusal) as error:
            return _refused(library, request, error, self._calls)
        try:
            response = await self._inner.handle_async_request(request)
            call.begin(response.status_code, response.headers.raw)
            response.stream = async_stream_class(library)(response.stream, call)
        except BaseException as error:
            call.end(error)
            raise
        return response

    def _post(self, work: Callable[[], object]) -> None:
        loop = self._gate.core.loop
        try:
            if asyncio.get_running_loop() is loop:
                work()
                return
        except RuntimeError:
            pass
        if not loop.is_closed():  # a response that is collected in another thread
            loop.call_soon_threadsafe(work)

    async def aclose(self) -> None:
        """Close the inner transport. The gate stays open."""
        if self._inner is not None:
            await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()


def _library_of(request: Any) -> ModuleType:
    """The package that made a request: httpx, or one that is like it."""
    return sys.modules[type(request).__module__.partition(".")[0]]


def _seen(request: Any) -> SentRequest:
    headers = {name.lower(): value for name, value in request.headers.raw}
    return SentRequest(
        request.method, str(request.url), request.url.raw_path.partition(b"?")[0], headers, request.content
    )


def _refused(library: ModuleType, request: Any, error: FleetgateError, calls: GatedCalls) -> Any:
    """An answer of our own, in the provider's format, which SDKs raise as their error. They do not try again."""
    refusal = no_slot(error) if isinstance(error, NotInTime) else error
    if not isinstance(refusal, ProxyRefusal):
        refusal = ProxyRefusal(503, "store", str(error))
    api, now_s = calls.api_at(str(request.url)), int(time())
    headers = [(b"content-type", b"application/json"), *headers_of(refusal, api, now_s), (b"x-should-retry", b"false")]
    return library.Response(
        refusal.status, headers=dict(headers), content=shape_of(refusal, api, now_s), request=request
    )
