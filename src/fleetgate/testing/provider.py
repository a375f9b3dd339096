"""A fake provider of models: it counts calls as real ones do, and refuses at a limit that it does not publish.

With `rates` it also limits requests and tokens per minute, and reports them in headers as Anthropic and OpenAI do.

In a test: `async with FakeProvider(limit=4, lag_s=0.4) as provider: … provider.url …` (or a plain `with`, which serves
from a thread). As a process: `python -m fleetgate.testing.provider --limit 4 --lag 0.4` prints its URL and serves.

The rule: a call counts from its arrival until its end plus the accounting lag, whichever way it ends.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Self

import msgspec

from fleetgate.core.usage import Usage
from fleetgate.simulate.provider_rates import ProviderRate, RateBuckets
from fleetgate.testing.answer import (
    NO_FAULT,
    Fields,
    Generation,
    nap,
    send_answer,
    send_error,
    send_fault,
    send_json,
    send_shortage,
)
from fleetgate.testing.count import CallCount
from fleetgate.testing.encodings import choose_encoder
from fleetgate.testing.script import Fault, Faults, read_script
from fleetgate.testing.served_calls import ServedCalls
from fleetgate.testing.server import Reply, SeenRequest, Server
from fleetgate.testing.shapes import BadCall, ModelCall, Shape, find

Span = float | tuple[float, float]  # seconds, or the range to draw them from
Clock = Callable[[], int]
UsageSource = Usage | Callable[[SeenRequest], Usage]
# Of one call that was accepted: seconds until the answer begins, and before each of its pieces.
Timing = Callable[[SeenRequest], tuple[float, float]]

SEEN_KEPT = 1000
DEFAULT_INPUT = 12  # tokens
LOOK_AGAIN_S = 0.002


class Stats(msgspec.Struct, frozen=True):
    """What the provider saw so far (`GET /_stats`)."""

    calls: int  # model calls that arrived, refused ones included
    refused: int  # 429s at the limit or at a rate
    refused_at_rates: dict[str, int]  # those at a rate, by its unit
    scripted: int  # answers that a script gave
    disconnected: int  # calls whose client left before the end
    active: int  # calls being answered now
    counted: int  # the same, with those that ended less than the lag ago and the neighbours'
    most_at_once: int
    most_counted: int
    limit: int | None
    usage_asked: int
    usage_most_at_once: int
    faults_left: int


class FakeProvider:
    """Speaks Anthropic, OpenAI (chat, responses) and Gemini, whole and streaming; see the module's docstring."""

    def __init__(
        self,
        *,
        limit: int | None = None,
        lag_s: Span = 0.0,
        retry_after_s: float | None = None,
        latency_s: Span = 0.0,
        refuse_after_s: Span = 0.0,
        arrive_after_s: Span = 0.0,
        timing: Timing | None = None,
        chunks: int = 4,
        chunk_delay_s: Span = 0.0,
        keys: Collection[str] = (),
        headers: Mapping[str, str] | None = None,
        faults: Iterable[Fault] = (),
        others: int = 0,
        rates: Iterable[ProviderRate] = (),
        usage: UsageSource | None = None,
        encodings: Collection[str] = (),
        project_header: str = "x-project",
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
        seed: int = 0,
    ) -> None:
        self.count = CallCount(limit, others)
        self.lag_s = lag_s
        self.retry_after_s = retry_after_s
        self.latency_s = latency_s
        self.refuse_after_s = refuse_after_s
        self.arrive_after_s = arrive_after_s  # the network before it: a call does not count yet
        self._timing = timing
        self.chunk_delay_s = chunk_delay_s
        self.headers = dict(headers or {})
        self.seen: deque[SeenRequest] = deque(maxlen=SEEN_KEPT)  # the latest requests, for a test to look at
        # A bucket of each rate for each key and model. A test may change the rates before the first call of a model.
        self.rates = tuple(rates)
        self.buckets: dict[tuple[str, str], RateBuckets] = {}
        self.usage: UsageSource = usage or Usage(input=DEFAULT_INPUT, output=chunks)
        self.usages: deque[Usage] = deque()  # of the next calls that are accepted; then `usage` is used again
        self.served = ServedCalls()
        self.encodings = tuple(encodings)  # offered to clients that accept one, the first one first
        self._project_header = project_header.lower()
        self._refused_at_rates: dict[str, int] = {}
        self._texts = tuple(f"word{index} " for index in range(chunks))
        self._keys = frozenset(keys)
        self.now_ms: Clock = clock or _monotonic_ms
        self._random = random.Random(seed)
        self._faults = Faults()
        self._scripted = self._disconnected = 0
        self._usage_asked = self._usage_live = self._usage_most = 0
        self._host = host
        self._server = Server(self._handle, host, port)
        self._stop_thread: Callable[[], None] | None = None
        self.script(*faults)

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._server.port}"

    @property
    def limit(self) -> int | None:
        """The hidden limit; a test may move it while calls are under way."""
        return self.count.limit

    @limit.setter
    def limit(self, limit: int | None) -> None:
        self.count.limit = limit

    @property
    def stats(self) -> Stats:
        count = self.count
        return Stats(
            calls=count.calls,
            refused=count.refused,
            refused_at_rates=dict(self._refused_at_rates),
            scripted=self._scripted,
            disconnected=self._disconnected,
            active=count.live,
            counted=count.counted(self.now_ms()),
            most_at_once=count.most_at_once,
            most_counted=count.most_counted,
            limit=count.limit,
            usage_asked=self._usage_asked,
            usage_most_at_once=self._usage_most,
            faults_left=len(self._faults),
        )

    def script(self, *faults: Fault) -> None:
        """Give the next answers, in this order, after those already scripted."""
        for fault in faults:
            self._faults.add(fault)

    async def until(self, true_of: Callable[[Stats], bool], timeout_s: float = 30.0) -> Stats:
        """Wait until something is true of the statistics, and return them. Raises TimeoutError."""
        deadline_s = time.monotonic() + timeout_s
        while not true_of(stats := self.stats):
            self._check_patience(deadline_s, stats)
            await asyncio.sleep(LOOK_AGAIN_S)
        return stats

    def wait_until(self, true_of: Callable[[Stats], bool], timeout_s: float = 30.0) -> Stats:
        """The same for a provider that serves from a thread."""
        deadline_s = time.monotonic() + timeout_s
        while not true_of(stats := self.stats):
            self._check_patience(deadline_s, stats)
            time.sleep(LOOK_AGAIN_S)
        return stats

    def _check_patience(self, deadline_s: float, stats: Stats) -> None:
        if time.monotonic() >= deadline_s:
            raise TimeoutError(f"it did not become true of {stats}")

    def __repr__(self) -> str:
        seen = self.stats
        limit = "no limit" if seen.limit is None else f"limit {seen.limit}"
        return f"<FakeProvider {self.url}, {limit}: {seen.counted} counted, {seen.refused} of {seen.calls} refused>"

    # Living: in the caller's loop, or in a thread of its own.

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    def __enter__(self) -> Self:
        ready: concurrent.futures.Future[Callable[[], None]] = concurrent.futures.Future()
        thread = threading.Thread(target=lambda: asyncio.run(self._serve_in_thread(ready)), daemon=True)
        thread.start()
        stop = ready.result()

        def stop_and_join() -> None:
            stop()
            thread.join()

        self._stop_thread = stop_and_join
        return self

    def __exit__(self, *_: object) -> None:
        assert self._stop_thread is not None
        self._stop_thread()

    async def _serve_in_thread(self, ready: concurrent.futures.Future[Callable[[], None]]) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        try:
            await self._server.start()
        except OSError as error:
            ready.set_exception(error)
            return

        def tell() -> None:
            loop.call_soon_threadsafe(stop.set)

        ready.set_result(tell)
        await stop.wait()
        await self._server.stop()

    # Answering.

    async def _handle(self, request: SeenRequest, reply: Reply) -> None:
        self.seen.append(request)
        reply.encoder = choose_encoder(self.encodings, request.headers.get("accept-encoding", ""))
        path = request.path
        shape = find(path)
        if shape is not None:
            await self._call(shape, request, reply)
        elif path == "/_stats":
            await send_json(reply, 200, self.stats)
        elif path == "/_served":
            await send_json(reply, 200, self.served.rows())
        elif path == "/_script":
            await self._take_script(request, reply)
        elif path.endswith("/usage"):
            await self._usage(request, reply)
        elif path.endswith("/messages/count_tokens"):
            await send_json(reply, 200, {"input_tokens": 12})
        elif path.endswith("/models"):
            await send_json(reply, 200, {"object": "list", "data": [], "models": []})
        elif path == "/":
            await send_json(reply, 200, {"provider": "a fake one, for tests"})
        else:
            await send_json(reply, 404, {"error": {"message": f"nothing is at {path}", "type": "not_found_error"}})

    async def _call(self, shape: Shape, request: SeenRequest, reply: Reply) -> None:
        id = f"{self.count.calls + 1:06d}{self._random.getrandbits(32):08x}"
        fields: Fields = [(shape.id_field, f"req_{id}"), *self.headers.items()]
        if request.method != "POST":
            await send_error(reply, shape, id, 405, f"{request.method} is not allowed here", [("Allow", "POST")])
            return
        if not self._known(request):
            await send_error(reply, shape, id, 401, "invalid x-api-key", fields)
            return
        try:
            call = self._with_usage(shape.read(request, id, self._texts), request)
        except BadCall as error:
            await send_error(reply, shape, id, 400, str(error), fields)
            return
        fault = self._faults.take("call", call.model)
        buckets = self._buckets(request, call)
        await nap(self._draw(self.arrive_after_s))
        now = self.now_ms()
        if fault is not None:
            self._scripted += 1
            await self._call_scripted(shape, request, call, fault, reply, [*fault.headers.items(), *fields])
        elif (shortage := buckets.shortage(call.reserved, now)) is not None:
            self.count.refuse()
            self._refused_at_rates[shortage.rate.unit] = self._refused_at_rates.get(shortage.rate.unit, 0) + 1
            await nap(self._draw(self.refuse_after_s))
            await send_shortage(reply, shape, call, shortage, [*shape.rate_fields(buckets.states(now)), *fields])
        elif self.count.arrive(now):
            await self._accepted(shape, request, call, NO_FAULT, reply, fields)
        else:
            await nap(self._draw(self.refuse_after_s))
            await send_error(reply, shape, id, 429, shape.refusal(call.model), fields, self.retry_after_s)

    async def _call_scripted(
        self, shape: Shape, request: SeenRequest, call: ModelCall, fault: Fault, reply: Reply, fields: Fields
    ) -> None:
        if fault.counts:
            self.count.arrive_scripted(self.now_ms())
            await self._accepted(shape, request, call, fault, reply, fields)
        else:
            self.count.turn_away()
            await nap(fault.delay_s)
            await send_fault(reply, shape, call.id, fault, fields)

    async def _accepted(
        self, shape: Shape, request: SeenRequest, call: ModelCall, fault: Fault, reply: Reply, fields: Fields
    ) -> None:
        """Answer a call that counts; it leaves the count once, in whichever way it ends."""
        if self.usages:
            self.usages.popleft()
        buckets = self._buckets(request, call)
        buckets.take(call.reserved, self.now_ms())
        latency_s, piece_s = self._timing(request) if self._timing is not None else (self.latency_s, self.chunk_delay_s)
        generation = Generation(call, lambda: self._draw(piece_s))

        def leave() -> None:
            now = self.now_ms()
            self.count.leave(now, round(self._draw(self.lag_s) * 1000))
            buckets.settle(call.reserved, generation.usage, now)
            project = request.headers.get(self._project_header, "")
            self.served.add(call.model, _key(request), project, generation.usage)

        reply.before_end = leave
        try:
            await nap(fault.delay_s + self._draw(latency_s))
            rates = shape.rate_fields(buckets.states(self.now_ms()))
            await send_answer(reply, shape, call, fault, [*rates, *fields], generation)
        except (asyncio.CancelledError, OSError):
            self._disconnected += 1
            raise
        finally:
            reply.end()

    def _with_usage(self, call: ModelCall, request: SeenRequest) -> ModelCall:
        """The call with the tokens that it uses, if it is accepted."""
        usage = self.usages[0] if self.usages else self.usage
        usage = usage(request) if callable(usage) else usage
        output = min(usage.output, call.max_tokens) if call.max_tokens else usage.output
        return msgspec.structs.replace(call, usage=msgspec.structs.replace(usage, calls=1, output=output))

    def _buckets(self, request: SeenRequest, call: ModelCall) -> RateBuckets:
        place = (_key(request), call.model)
        if place not in self.buckets:
            self.buckets[place] = RateBuckets(self.rates, self.now_ms())
        return self.buckets[place]

    async def _usage(self, request: SeenRequest, reply: Reply) -> None:
        self._usage_asked += 1
        self._usage_live += 1
        self._usage_most = max(self._usage_most, self._usage_live)
        try:
            fault = self._faults.take("usage") or NO_FAULT
            await nap(fault.delay_s)
            await self._answer_usage(request, reply, fault)
        finally:
            self._usage_live -= 1

    async def _answer_usage(self, request: SeenRequest, reply: Reply, fault: Fault) -> None:
        sessions = {"usage": {"concurrent_sessions": self.count.counted(self.now_ms())}}
        if fault.drop:
            reply.drop()
        elif not self._known(request):
            await send_json(reply, 401, {"error": "a key is needed: Authorization: Bearer KEY"})
        elif isinstance(fault.body, str):
            await reply.send(fault.status or 200, fault.body.encode(), [*fault.headers.items()])
        else:
            body = sessions if fault.body is msgspec.UNSET else fault.body
            await send_json(reply, fault.status or 200, body, [*fault.headers.items()])

    async def _take_script(self, request: SeenRequest, reply: Reply) -> None:
        try:
            script = read_script(request.body)
        except msgspec.MsgspecError as error:
            await send_json(reply, 400, {"error": f"not a script: {error}; nothing was changed"})
            return
        if script.clear:
            self._faults.clear()
        if script.limit is not msgspec.UNSET:
            self.count.limit = script.limit
        if script.others is not msgspec.UNSET:
            self.count.others = script.others
        self.script(*script.faults)
        self.usages.extend(script.usages)
        await send_json(reply, 200, self.stats)

    def _known(self, request: SeenRequest) -> bool:
        """Whether the request carries one of our keys, where we ask for one at all."""
        return not self._keys or not self._keys.isdisjoint(_keys(request))

    def _draw(self, span: Span) -> float:
        return self._random.uniform(*span) if isinstance(span, tuple) else span


def _keys(request: SeenRequest) -> list[str]:
    headers = request.headers
    bearer = headers.get("authorization", "")
    bearer = bearer[7:].strip() if bearer[:7].lower() == "bearer " else ""
    given = (bearer, headers.get("x-api-key"), headers.get("x-goog-api-key"), request.query.get("key"))
    return [key for key in given if key]


def _key(request: SeenRequest) -> str:
    return next(iter(_keys(request)), "")


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def main(argv: list[str] | None = None) -> int:
    from fleetgate.testing.serve import run

    return run(argv)


if __name__ == "__main__":
    raise SystemExit(main())
