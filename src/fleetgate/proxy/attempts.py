"""The attempts of a request (rules X2, X3): it waits for a slot and is sent. When the provider answers "too many"
before the first byte of an answer, it goes back to the queue and keeps its age.

The rules kept here:

- A slot is held while a request is at the provider, and at no other time.
- Every attempt passes the gate, and is counted.
- A limit that lasts longer than the request can wait is passed on at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from time import perf_counter, time_ns
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from fleetgate.core.entities import Lease
from fleetgate.core.usage import Reading, Usage
from fleetgate.gate.library.usage_arguments import UNUSED
from fleetgate.gate.serving.model_calls import ModelCalls, NotInTime, PendingCall
from fleetgate.log.protocol import StoreError
from fleetgate.prices import Price
from fleetgate.proxy.errors import ProxyRefusal, no_slot
from fleetgate.proxy.exchange import CallCandidate, Exchange
from fleetgate.proxy.headers import header_for, looked_at, without_key
from fleetgate.proxy.http_client.connection import CannotConnect, OnNews, UpstreamResponse
from fleetgate.proxy.request_body import call_size, path_with_model, with_model, without_encoding
from fleetgate.proxy.unproven_keys import TooManyTrials, TrialPlace, TrialPlaces
from fleetgate.signals.classify_http import classify_response
from fleetgate.signals.outcome import OK, Outcome, outcome

ERROR_BYTES = 64 * 1024  # of an error that are looked at
_SOON_OVER = frozenset(("rate_limited", "overloaded", "usage_window"))
_ANOTHER_MAY_DO = _SOON_OVER | {"quota"}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0  # before a call that is not in the queue is tried again
_FIRST_DOUBT_S, _LONGEST_DOUBT_S = 0.5, 10.0  # after a second rate limit; twice as long after each further one
_FIRST_TROUBLE_S, _LONGEST_TROUBLE_S = 0.2, 5.0  # the same while the store cannot be used
_FRESH_MS = 1000  # rates of headers that came earlier say nothing about now
_HARMLESS = frozenset(("GET", "HEAD", "OPTIONS"))
LEFT = outcome("local_error", "proxy.client_left", "the client left")
NOT_ITS_KEY = outcome("local_error", "proxy.not_its_key", "the provider refused a key that is not the account's own")
NOT_TAKEN = outcome("local_error", "proxy.not_taken", "the client takes nothing any more")


class ProviderAnswer(NamedTuple):
    """A provider's answer that is to be passed on; `start` was read already."""

    response: UpstreamResponse
    start: bytes


class KeyJudge(Protocol):
    """Judges the keys that clients bring along."""

    def look_again(self, exchange: Exchange) -> None: ...
    def hear_refusal(self, exchange: Exchange, response: UpstreamResponse) -> bool: ...


class Attempts:
    """Brings requests to their answers."""

    def __init__(
        self, calls: ModelCalls, key_judge: Callable[[], KeyJudge], price_of: Callable[[str], Price | None]
    ) -> None:
        self._calls = calls
        self._key_judge = key_judge
        self._price_of = price_of
        self._places = TrialPlaces()

    async def answer(self, exchange: Exchange, on_news: OnNews) -> ProviderAnswer:
        """The answer to a request, which may be an error. ProxyRefusal when it is ours to answer.

        `on_news` is called when something of an answer has come, of any attempt; what is no error is passed on then.
        """
        while True:
            candidate = await self._get_slot(exchange) if exchange.candidates else None
            exchange.attempts += 1
            answered = await self._attempt(exchange, candidate, on_news)
            if answered.response.status < 400:
                return answered
            exchange.outcome = self._classify(exchange, answered)
            if self._key_judge().hear_refusal(exchange, answered.response):
                self.adopt(exchange)
            if not self._try_again(exchange):
                return answered
            answered.response.close()
            exchange.waiting_since = 0.0
            self.release_slot(exchange)  # what was refused is held back, for this request and all others
            await self._pause_before_retry(exchange)

    def adopt(self, exchange: Exchange) -> None:
        """The key of a call that is under way has been accepted: it gets a slot of its account, if one is free.

        It gets it before others with the same key, so that no more are under way than the account may have.
        """
        if exchange.place is None:
            return
        self._key_judge().look_again(exchange)
        try:
            pending = self.enqueue(exchange, models=(exchange.model,))
            if pending.future.done():
                self._take_granted_slot(exchange)
        except (StoreError, NotInTime):
            pass  # it goes on without one
        finally:
            self.release_trial_place(exchange)

    def _take_granted_slot(self, exchange: Exchange) -> None:
        """The slot that was asked for, if it is there; else the call goes on without one."""
        pending = exchange.pending
        assert pending is not None
        future = pending.future
        exchange.queued_at = 0.0
        if future.done() and not future.cancelled() and future.exception() is None:
            got = future.result()
            if isinstance(got, Lease):
                exchange.pending, exchange.lease = None, got.id
                return
        self.leave_queue(exchange)

    def release_trial_place(self, exchange: Exchange) -> None:
        """Give back the place of a call whose key is unproven, if it has one."""
        if exchange.place is not None:
            self._places.leave(exchange.place)
            exchange.place = None

    def release_slot(self, exchange: Exchange) -> None:
        """Give the slot back, if one is held, with what became of it."""
        self.release_trial_place(exchange)
        if exchange.pending is not None:
            self._take_granted_slot(exchange)
        if exchange.lease:
            said = exchange.outcome or OK
            if said.kind == "auth" and not exchange.own:
                said = NOT_ITS_KEY
            if said.kind == "server_error" and said.wait_ms is None:
                said = _with_wait(said, 0)  # it is passed on, and the client decides when to try again
            self._calls.leave(exchange.lease, said, self._usage_of(exchange), _fresh_readings(exchange))
            exchange.lease, exchange.readings = "", ()

    def _usage_of(self, exchange: Exchange) -> Usage | None:
        """What the call used, with its cost; None where that is not known, and the estimate stands (rule U1)."""
        usage = exchange.usage if exchange.reader is None else exchange.reader.usage()
        if usage is None or usage.cost is not None or not usage.calls:
            return usage
        price = self._price_of(exchange.model)
        return usage if price is None else replace(usage, cost=price.cost(usage))

    # The queue.

    def enqueue(self, exchange: Exchange, models: tuple[str, ...] = ()) -> PendingCall:
        """Get in the queue. NotInTime at once where every model is known to be closed for longer than the request
        waits.
        """
        models = models or tuple(exchange.candidates)
        anyone = len(models) > 1 and self._calls.is_paused(models[0])
        spec = self._calls.spec(models, exchange.project, anyone, exchange.work_class)
        self._calls.check_in_time(spec, self._left_s(exchange), exchange.run)
        exchange.queued_at = exchange.queued_at or perf_counter()
        exchange.pending = self._calls.ask(
            spec,
            exchange.since,
            priority=exchange.priority,
            what=f"{exchange.method} {exchange.path[:60].decode('latin-1')}",
            client=exchange.client,
            size=call_size(exchange.fields, self._price_of(models[0])),
            run=exchange.run,
        )
        return exchange.pending

    def leave_queue(self, exchange: Exchange) -> None:
        """Leave the queue before waiting in it."""
        if exchange.pending is not None:
            self._calls.give_up(exchange.pending)
            exchange.pending = None

    async def _get_slot(self, exchange: Exchange) -> CallCandidate:
        if exchange.apart:
            await self._get_trial_place(exchange)
        if exchange.apart:
            exchange.outcome = None
            return exchange.candidates[exchange.model]
        try:
            lease = await self._wait_for_slot(exchange)
        except NotInTime as error:
            raise no_slot(error) from None
        finally:
            exchange.queue_s += perf_counter() - exchange.queued_at if exchange.queued_at else 0.0
            exchange.queued_at = 0.0
        exchange.lease, exchange.model = lease.id, lease.model
        exchange.outcome, exchange.usage = None, UNUSED
        candidate = exchange.candidates[lease.model]
        exchange.upstream, exchange.own = candidate.upstream, candidate.own
        return candidate

    async def _get_trial_place(self, exchange: Exchange) -> None:
        """Wait for a place; or until another call has shown that the key is good. ProxyRefusal."""
        began = perf_counter()
        place = TrialPlace(exchange.route.provider, exchange.account)
        try:
            async with asyncio.timeout(self._left_s(exchange)):
                await self._places.enter(place)
        except (TimeoutError, TooManyTrials):
            sentence = "too many calls wait until the provider has accepted their keys for the first time"
            raise ProxyRefusal(429, "unverified_key", sentence, 1) from None
        finally:
            exchange.queue_s += perf_counter() - began
        exchange.place = place
        self._key_judge().look_again(exchange)
        if not exchange.apart:
            self.release_trial_place(exchange)

    async def _wait_for_slot(self, exchange: Exchange) -> Lease:
        """Wait for one. While the store cannot be used, that is waited for too. NotInTime, StoreError."""
        times = 0
        while True:
            try:
                pending, exchange.pending = exchange.pending or self.enqueue(exchange), None
                return await self._calls.enter(pending, self._left_s(exchange))
            except StoreError:
                times += 1
                pause_s = min(_growing(_FIRST_TROUBLE_S, times, _LONGEST_TROUBLE_S), self._left_s(exchange))
                if not pause_s:
                    raise
                await asyncio.sleep(pause_s)

    def _left_s(self, exchange: Exchange) -> float:
        return max(exchange.hold_s - (perf_counter() - exchange.began), 0.0)

    # One attempt.

    async def _attempt(self, exchange: Exchange, candidate: CallCandidate | None, on_news: OnNews) -> ProviderAnswer:
        began = exchange.waiting_since = perf_counter()
        start = b""
        exchange.usage = None
        try:
            response = await self._send(exchange, candidate, on_news)
            if response.status >= 400:
                exchange.usage = UNUSED
                exchange.upstream_s = perf_counter() - began
                start = await _start_of(response)
        except (OSError, ValueError) as error:
            if isinstance(error, CannotConnect | TimeoutError | ValueError):
                exchange.usage = UNUSED  # it was not sent
            raise self.report_failure(exchange, error) from None
        return ProviderAnswer(response, start)

    async def _send(self, exchange: Exchange, candidate: CallCandidate | None, on_news: OnNews) -> UpstreamResponse:
        upstream = exchange.upstream
        path, query, data = exchange.path, exchange.query, exchange.body.data
        key = exchange.key if candidate is None else candidate.key
        headers = list(exchange.headers.sent) if candidate is None else looked_at(exchange.headers.sent)
        if exchange.early is not None and exchange.early.begun:  # what was begun plainly cannot go on otherwise
            headers = [pair for pair in headers if pair[0] != b"accept-encoding"] + [(b"accept-encoding", b"identity")]
        if candidate is not None and candidate.name:
            if exchange.model_in_path:
                path = path_with_model(path, candidate.name)
            else:
                if exchange.headers.encoding:
                    data = without_encoding(data, exchange.headers.encoding) or data
                    headers = [pair for pair in headers if pair[0] != b"content-encoding"]
                data = with_model(data, candidate.name, exchange.headers.content_type)
        if key:
            headers.append(header_for(key, upstream.api, upstream.host))
            query = without_key(query) if b"key=" in query else query
        else:
            headers += exchange.headers.keys.items()
        if exchange.body.is_small(data):
            twice = (
                candidate is not None or exchange.method in _HARMLESS
            )  # a model that is asked twice does nothing twice
            return await upstream.send_request(
                exchange.method, path, query, headers, data, twice=twice, on_news=on_news
            )
        if exchange.body.kept:
            headers.append((b"content-length", b"%d" % len(data)))
        elif exchange.headers.length is not None:
            headers.append((b"content-length", exchange.headers.length))
        return await upstream.send_request(
            exchange.method, path, query, headers, b"", exchange.body.pieces(data), on_news=on_news
        )

    def report_failure(self, exchange: Exchange, error: Exception) -> ProxyRefusal:
        """The provider cannot be reached, or what it said is no answer."""
        slow = isinstance(error, TimeoutError)
        said = describe_error(error)
        exchange.outcome = outcome("server_error", "proxy.no_answer", said)
        exchange.error = exchange.outcome.evidence
        what = "did not answer in time" if slow else "could not be reached, or did not answer as a server does"
        return ProxyRefusal(
            504 if slow else 502, "upstream_failed", f"{exchange.upstream.provider} {what} ({exchange.error})"
        )

    # An attempt that was refused.

    def _classify(self, exchange: Exchange, answered: ProviderAnswer) -> Outcome:
        response = answered.response
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.raw_headers}
        name = exchange.model.partition("/")[2]
        now = time_ns() // 1_000_000
        return classify_response(exchange.upstream.provider, response.status, headers, answered.start, now, name)

    def _try_again(self, exchange: Exchange) -> bool:
        """Whether the agent is spared this answer."""
        said = exchange.outcome
        if said is None or not exchange.candidates or not exchange.body.kept:
            return False
        if len(exchange.candidates) > 1 and not exchange.apart and said.kind in _ANOTHER_MAY_DO:
            return True
        left_s = self._left_s(exchange)
        return said.kind in _SOON_OVER and left_s > 0 and (said.wait_ms or 0) / 1000 < left_s

    async def _pause_before_retry(self, exchange: Exchange) -> None:
        """Wait before the next attempt, where a provider says "too many, and try again at once" again and again."""
        said = exchange.outcome
        if said is None:
            return
        if exchange.apart:  # no pool is paused for it
            pause_s = max(_growing(_FIRST_PAUSE_S, exchange.attempts, _LONGEST_PAUSE_S), (said.wait_ms or 0) / 1000)
        elif said.kind == "rate_limited" and exchange.attempts > 1 and len(exchange.candidates) == 1:
            pause_s = _growing(_FIRST_DOUBT_S, exchange.attempts - 1, _LONGEST_DOUBT_S)
        else:
            return
        began = perf_counter()
        await asyncio.sleep(min(pause_s, self._left_s(exchange)))
        exchange.queue_s += perf_counter() - began


def _growing(first_s: float, times: int, most_s: float) -> float:
    """Twice as long each time; not the same for everybody."""
    return min(first_s * 2.0 ** min(times - 1, 20), most_s) * random.uniform(0.75, 1.25)


def describe_error(error: Exception) -> str:
    """What went wrong with a connection."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


async def _start_of(response: UpstreamResponse) -> bytes:
    """The beginning of an error, or all of it."""
    parts, size = [], 0
    while size < ERROR_BYTES:
        part = await response.readany()
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _fresh_readings(exchange: Exchange) -> tuple[Reading, ...]:
    """The rates that the head of the response reported, with their age; none where they say nothing about now."""
    age_ms = int((perf_counter() - exchange.headed_at) * 1000)
    return tuple(replace(each, age_ms=age_ms) for each in exchange.readings) if age_ms < _FRESH_MS else ()


def _with_wait(said: Outcome, wait_ms: int) -> Outcome:
    return replace(said, wait_ms=wait_ms)
