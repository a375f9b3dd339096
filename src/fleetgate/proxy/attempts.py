"""The line and the attempts (SPEC X2, X3): a request waits for a slot, is sent, and when the provider says "too many"
before the first byte of an answer, it goes back in the queue with the age that it has.

The rules kept here:

- A slot is held while a request is at the provider, and at no other time.
- Every attempt passes the gate, and is counted.
- What cannot end within the request's time is passed on at once: a plan that is used up until tomorrow is told today.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from time import perf_counter, time_ns
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from fleetgate.core.entities import Lease
from fleetgate.gate.serving.model_calls import ModelCalls, NotInTime, PendingCall
from fleetgate.log.protocol import StoreError
from fleetgate.proxy.errors import Refusal
from fleetgate.proxy.exchange import Candidate, Exchange
from fleetgate.proxy.headers import header_for, looked_at, without_key
from fleetgate.proxy.http_client.connection import OnNews, Response
from fleetgate.proxy.request_body import path_with_model, with_model, without_encoding
from fleetgate.proxy.unproven_keys import Full, Place, Places
from fleetgate.signals.classify_http import classify_response
from fleetgate.signals.outcome import OK, Outcome, outcome

ERROR_BYTES = 64 * 1024  # of an error that are looked at
_SOON_OVER = frozenset(("rate_limited", "overloaded", "usage_window"))
_ANOTHER_MAY_DO = _SOON_OVER | {"quota"}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0  # before a call that is not in the queue is tried again
_FIRST_DOUBT_S, _LONGEST_DOUBT_S = 0.5, 10.0  # after a second rate limit; twice as long after each further one
_FIRST_TROUBLE_S, _LONGEST_TROUBLE_S = 0.2, 5.0  # the same while the store cannot be used
_HARMLESS = frozenset(("GET", "HEAD", "OPTIONS"))
_NEEDS_A_PERSON = {"auth": 401, "quota": 402}
LEFT = outcome("local_error", "proxy.client_left", "the client left")
NOT_ITS_KEY = outcome("local_error", "proxy.not_its_key", "the provider refused a key that is not the account's own")
NOT_TAKEN = outcome("local_error", "proxy.not_taken", "the client takes nothing any more")


class Answered(NamedTuple):
    """A provider's answer that is to be passed on; `start` was read already."""

    response: Response
    start: bytes


class Keys(Protocol):
    """Judges the keys that clients bring along."""

    def look_again(self, x: Exchange) -> None: ...
    def hear_refusal(self, x: Exchange, response: Response) -> bool: ...


class Attempts:
    """Brings requests to their answers."""

    def __init__(self, calls: ModelCalls, keys: Callable[[], Keys]) -> None:
        self._calls = calls
        self._keys = keys
        self._places = Places()

    async def answer(self, x: Exchange, on_news: OnNews) -> Answered:
        """The answer to a request, which may be an error. Refusal when it is ours to answer.

        `on_news` is called when something of an answer has come, of any attempt; what is no error is passed on then.
        """
        while True:
            candidate = await self._enter(x) if x.candidates else None
            x.attempts += 1
            answered = await self._try(x, candidate, on_news)
            if answered.response.status < 400:
                return answered
            x.outcome = self._judged(x, answered)
            if self._keys().hear_refusal(x, answered.response):
                self.adopt(x)
            if not self._try_again(x):
                return answered
            answered.response.close()
            x.waiting_since = 0.0
            self.leave(x)  # what was refused is held back, for this request and all others
            await self._doubt(x)

    def adopt(self, x: Exchange) -> None:
        """The key of a call that is under way has been accepted: it gets a slot of its account, if one is free.

        It gets it before others with the same key, so that no more are under way than the account may have.
        """
        if x.place is None:
            return
        self._keys().look_again(x)
        try:
            asking = self.ask(x, models=(x.model,))
            if asking.future.done():
                self._take(x)
        except (StoreError, NotInTime):
            pass  # it goes on without one
        finally:
            self.leave_place(x)

    def _take(self, x: Exchange) -> None:
        """The slot that was asked for, if it is there; else the call goes on without one."""
        asking = x.asking
        assert asking is not None
        future = asking.future
        x.asked_at = 0.0
        if future.done() and not future.cancelled() and future.exception() is None:
            got = future.result()
            if isinstance(got, Lease):
                x.asking, x.lease = None, got.id
                return
        self.give_up(x)

    def leave_place(self, x: Exchange) -> None:
        """Give back the place of a call whose key is unproven, if it has one."""
        if x.place is not None:
            self._places.leave(x.place)
            x.place = None

    def leave(self, x: Exchange) -> None:
        """Give the slot back, if one is held, with what became of it."""
        self.leave_place(x)
        if x.asking is not None:
            self._take(x)
        if x.lease:
            said = x.outcome or OK
            if said.kind == "auth" and not x.own:
                said = NOT_ITS_KEY
            if said.kind == "server_error" and said.wait_ms is None:
                said = _with_wait(said, 0)  # it is passed on, and the client decides when to try again
            self._calls.leave(x.lease, said)
            x.lease = ""

    # The line.

    def ask(self, x: Exchange, models: tuple[str, ...] = ()) -> PendingCall:
        """Get in the queue. NotInTime at once where every model is known to be closed for longer than the request
        waits.
        """
        models = models or tuple(x.candidates)
        anyone = len(models) > 1 and self._calls.is_paused(models[0])
        spec = self._calls.spec(models, x.project, anyone)
        self._calls.check_in_time(spec, self._left_s(x))
        x.asked_at = x.asked_at or perf_counter()
        x.asking = self._calls.ask(
            spec,
            x.since,
            priority=x.priority,
            what=f"{x.method} {x.path[:60].decode('latin-1')}",
            client=x.client,
        )
        return x.asking

    def give_up(self, x: Exchange) -> None:
        """Leave the queue, where nobody has waited yet."""
        if x.asking is not None:
            self._calls.give_up(x.asking)
            x.asking = None

    async def _enter(self, x: Exchange) -> Candidate:
        if x.apart:
            await self._enter_apart(x)
        if x.apart:
            x.outcome = None
            return x.candidates[x.model]
        try:
            lease = await self._slot(x)
        except NotInTime as error:
            raise _refusal(error) from None
        finally:
            x.line_s += perf_counter() - x.asked_at if x.asked_at else 0.0
            x.asked_at = 0.0
        x.lease, x.model = lease.id, lease.model
        x.outcome = None
        candidate = x.candidates[lease.model]
        x.upstream, x.own = candidate.upstream, candidate.own
        return candidate

    async def _enter_apart(self, x: Exchange) -> None:
        """Wait for a place; or until another call has shown that the key is good. Refusal."""
        began = perf_counter()
        place = Place(x.route.provider, x.account)
        try:
            async with asyncio.timeout(self._left_s(x)):
                await self._places.enter(place)
        except (TimeoutError, Full):
            sentence = "too many calls wait until the provider has accepted their keys for the first time"
            raise Refusal(429, "unverified_key", sentence, 1) from None
        finally:
            x.line_s += perf_counter() - began
        x.place = place
        self._keys().look_again(x)
        if not x.apart:
            self.leave_place(x)

    async def _slot(self, x: Exchange) -> Lease:
        """Wait for one. While the store cannot be used, that is waited for too. NotInTime, StoreError."""
        times = 0
        while True:
            try:
                asking, x.asking = x.asking or self.ask(x), None
                return await self._calls.enter(asking, self._left_s(x))
            except StoreError:
                times += 1
                pause_s = min(_growing(_FIRST_TROUBLE_S, times, _LONGEST_TROUBLE_S), self._left_s(x))
                if not pause_s:
                    raise
                await asyncio.sleep(pause_s)

    def _left_s(self, x: Exchange) -> float:
        return max(x.hold_s - (perf_counter() - x.began), 0.0)

    # One attempt.

    async def _try(self, x: Exchange, candidate: Candidate | None, on_news: OnNews) -> Answered:
        began = x.waiting_since = perf_counter()
        start = b""
        try:
            response = await self._send(x, candidate, on_news)
            if response.status >= 400:
                x.upstream_s = perf_counter() - began
                start = await _start_of(response)
        except (OSError, ValueError) as error:
            raise self.failed(x, error) from None
        return Answered(response, start)

    async def _send(self, x: Exchange, candidate: Candidate | None, on_news: OnNews) -> Response:
        upstream = x.upstream
        path, query, data = x.path, x.query, x.body.data
        key = x.key if candidate is None else candidate.key
        headers = list(x.asked.sent) if candidate is None else looked_at(x.asked.sent)
        if x.early is not None and x.early.begun:  # what was begun plainly cannot go on otherwise
            headers = [pair for pair in headers if pair[0] != b"accept-encoding"] + [(b"accept-encoding", b"identity")]
        if candidate is not None and candidate.name:
            if x.model_in_path:
                path = path_with_model(path, candidate.name)
            else:
                if x.asked.encoding:
                    data = without_encoding(data, x.asked.encoding) or data
                    headers = [pair for pair in headers if pair[0] != b"content-encoding"]
                data = with_model(data, candidate.name, x.asked.content_type)
        if key:
            headers.append(header_for(key, upstream.api, upstream.host))
            query = without_key(query) if b"key=" in query else query
        else:
            headers += x.asked.keys.items()
        if x.body.is_small(data):
            twice = candidate is not None or x.method in _HARMLESS  # a model that is asked twice does nothing twice
            return await upstream.ask(x.method, path, query, headers, data, twice=twice, on_news=on_news)
        if x.body.kept:
            headers.append((b"content-length", b"%d" % len(data)))
        elif x.asked.length is not None:
            headers.append((b"content-length", x.asked.length))
        return await upstream.ask(x.method, path, query, headers, b"", x.body.pieces(data), on_news=on_news)

    def failed(self, x: Exchange, error: Exception) -> Refusal:
        """The provider cannot be reached, or what it said is no answer."""
        slow = isinstance(error, TimeoutError)
        said = told_of(error)
        x.outcome = outcome("server_error", "proxy.no_answer", said)
        x.error = x.outcome.evidence
        what = "did not answer in time" if slow else "could not be reached, or did not answer as a server does"
        return Refusal(504 if slow else 502, "upstream_failed", f"{x.upstream.provider} {what} ({x.error})")

    # An attempt that was refused.

    def _judged(self, x: Exchange, answered: Answered) -> Outcome:
        response = answered.response
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.raw_headers}
        name = x.model.partition("/")[2]
        now = time_ns() // 1_000_000
        return classify_response(x.upstream.provider, response.status, headers, answered.start, now, name)

    def _try_again(self, x: Exchange) -> bool:
        """Whether the agent is spared this answer."""
        said = x.outcome
        if said is None or not x.candidates or not x.body.kept:
            return False
        if len(x.candidates) > 1 and not x.apart and said.kind in _ANOTHER_MAY_DO:
            return True
        left_s = self._left_s(x)
        return said.kind in _SOON_OVER and left_s > 0 and (said.wait_ms or 0) / 1000 < left_s

    async def _doubt(self, x: Exchange) -> None:
        """Wait before the next attempt, where a provider says "too many, and try again at once" again and again."""
        said = x.outcome
        if said is None:
            return
        if x.apart:  # no pool is paused for it
            pause_s = max(_growing(_FIRST_PAUSE_S, x.attempts, _LONGEST_PAUSE_S), (said.wait_ms or 0) / 1000)
        elif said.kind == "rate_limited" and x.attempts > 1 and len(x.candidates) == 1:
            pause_s = _growing(_FIRST_DOUBT_S, x.attempts - 1, _LONGEST_DOUBT_S)
        else:
            return
        began = perf_counter()
        await asyncio.sleep(min(pause_s, self._left_s(x)))
        x.line_s += perf_counter() - began


def _growing(first_s: float, times: int, most_s: float) -> float:
    """Twice as long each time; not the same for everybody."""
    return min(first_s * 2.0 ** min(times - 1, 20), most_s) * random.uniform(0.75, 1.25)


def told_of(error: Exception) -> str:
    """What went wrong with a connection."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


async def _start_of(response: Response) -> bytes:
    """The beginning of an error, or all of it."""
    parts, size = [], 0
    while size < ERROR_BYTES:
        part = await response.readany()
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _with_wait(said: Outcome, wait_ms: int) -> Outcome:
    return replace(said, wait_ms=wait_ms)


def _refusal(error: NotInTime) -> Refusal:
    reason = error.reason
    if reason.code == "store_busy":
        return Refusal(503, reason.code, reason.text, 1)
    retry_s = None if error.retry_ms is None else max(1, -(-error.retry_ms // 1000))
    if reason.code == "backoff" and reason.cause in _NEEDS_A_PERSON:
        sentence = f"{reason.text}. A person must see to it; then `fleetgate backoff clear` ends it at once"
        return Refusal(_NEEDS_A_PERSON[reason.cause], reason.code, sentence, retry_s)
    refusal = Refusal(429, reason.code, f"no slot in time: {reason.text}", retry_s or 1)
    refusal.outlasts = error.outlasts
    refusal.window = error.held if reason.cause == "usage_window" else ""
    return refusal
