"""One call through the proxy, from its first byte to its line in the access log: a state machine without a task.

Theory of operation
-------------------
A call is always in one of these steps, and waits there for one callback:

    BODY ──► QUEUE ──► CONNECT ──► HEAD ──► RELAY ──► (end)
               ▲                     │
               └───────── PAUSE ◄────┴─ a refusal that is tried again

- BODY     the client sends its body: `ClientRequest.on_news`.
- QUEUE    the call waits for a slot, or for a place among calls with unproven keys: a future.
- CONNECT  a connection to the provider is made: a task, since a name is resolved and TLS begins. Most calls use a
           connection that is idle, and skip this step.
- HEAD     the request is sent. The head of the response comes, or the beginning of an error:
           `UpstreamResponse.on_news`.
- PAUSE    the next attempt has to wait: a timer.
- RELAY    the response goes to the client as it comes (proxy/calls/response_relay.py).

In each step the client may leave (`_leave`), a wait may become too long (`stall`), and anything may fail (`_run`).
All of them lead to `_end`, which runs once: the slot is released, the place in the queue is given up, and the
connection to the provider is closed, or free for the next call. No attempt follows the first byte of a response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any

from fleetgate.core.errors import FleetgateError
from fleetgate.front.request import ClientLeft, ClientRequest
from fleetgate.gate.library.usage_arguments import UNUSED
from fleetgate.gate.serving.model_calls import NotInTime
from fleetgate.gate.serving.reported_rates import report_rates
from fleetgate.log.protocol import StoreError
from fleetgate.proxy.calls import retries
from fleetgate.proxy.calls.early_stream import EarlyStream, wants_stream
from fleetgate.proxy.calls.exchange import CallCandidate, Exchange
from fleetgate.proxy.calls.key_trial import wait_for_trial
from fleetgate.proxy.calls.response_relay import BrokenOff, ResponseRelay, outcome_headers, send_refusal
from fleetgate.proxy.calls.shared_parts import CallParts, until_stored
from fleetgate.proxy.calls.slots import chosen_candidate, left_s
from fleetgate.proxy.calls.upstream_request import may_arrive_twice, upstream_request
from fleetgate.proxy.errors import ProxyRefusal, no_slot
from fleetgate.proxy.headers import ISOLATED
from fleetgate.proxy.http_client.connection import Connection, UpstreamRequest, UpstreamResponse
from fleetgate.proxy.http_client.failures import CannotConnect, ClosedWithoutAnswer
from fleetgate.signals.outcome import outcome

logger = logging.getLogger("fleetgate")
ERROR_BYTES = 64 * 1024  # of an error that are looked at
_STALE_S = 1.0  # an idle connection that the provider had closed already shows that within a round trip
LEFT = outcome("local_error", "proxy.client_left", "the client left")
NOT_TAKEN = outcome("local_error", "proxy.not_taken", "the client takes nothing any more")


class UpstreamCall:
    """A call under way. `exchange` is what is known about it."""

    __slots__ = (
        "_ended",
        "_error_start",
        "_helper",
        "_out",
        "_parts",
        "_relay",
        "_response",
        "_reused",
        "_sent_at",
        "_store_failures",
        "_timer",
        "exchange",
        "request",
    )

    def __init__(self, parts: CallParts, exchange: Exchange, request: ClientRequest) -> None:
        self._parts = parts
        self.exchange = exchange
        self.request = request
        self._ended = False
        self._out: UpstreamRequest
        self._response: UpstreamResponse | None = None
        self._relay: ResponseRelay | None = None
        self._reused = False  # the connection was idle before
        self._sent_at = 0.0
        self._error_start = b""
        self._store_failures = 0
        self._helper: asyncio.Task[Any] | None = None  # connects, or waits for a place
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The head of the request was read, and is good."""
        self.request.on_gone = self._leave
        self._parts.watch.begin(self)
        self._collect()

    def refuse(self, error: FleetgateError) -> None:
        """Respond with an error of our own, which is the end. An error of the gate means that it cannot decide now."""
        refusal = error if isinstance(error, ProxyRefusal) else ProxyRefusal(503, "store", str(error), 1)
        send_refusal(self.exchange, refusal, self.request, close=not self.exchange.body.whole)
        self._end()

    def _run(self, step: Callable[[], None]) -> None:
        """Do a step; whatever goes wrong in it ends the call."""
        if self._ended:
            return
        exchange = self.exchange
        try:
            step()
        except ProxyRefusal as refusal:
            self._parts.slots.release_slot(exchange)
            self.refuse(refusal)
        except FleetgateError as error:
            exchange.outcome = None
            self.refuse(error)
        except Exception:
            logger.exception("internal error in a call to %s", exchange.route.said)
            self._end()

    # The body, and who may answer.

    def _collect(self) -> None:
        request = self.request
        if request.gone:
            return
        if not self.exchange.body.collect():
            request.on_news = self._collect
            return
        request.on_news = None
        self._run(self._choose)

    def _choose(self) -> None:
        exchange = self.exchange
        self._parts.callers.choose(exchange, exchange.secret)
        # A call that gave up waiting, and comes again, keeps its age.
        exchange.since = self._parts.places.take(exchange) or exchange.since
        if exchange.upstream.comment_after_s and wants_stream(exchange):
            exchange.early = EarlyStream(
                exchange, self.request, self._parts.loop, lambda: [*ISOLATED, *outcome_headers(exchange)]
            )
        self._attempt()

    def _attempt(self) -> None:
        """Get a slot, if one is needed, and send."""
        if not self.exchange.candidates:
            self._send(None)
        elif self.exchange.apart:
            self._wait_for_trial()
        else:
            self._enqueue()

    # The queue.

    def _enqueue(self) -> None:
        exchange = self.exchange
        try:
            pending = self._parts.slots.enqueue(exchange)
        except NotInTime as error:
            self._count_time_in_queue()
            raise no_slot(error) from None
        except StoreError as outage:
            self._wait_for_store(outage)
            return
        if pending.future.done():
            self._take_slot()
        else:
            self._parts.calls.limit_wait(pending, left_s(exchange))
            pending.future.add_done_callback(self._on_slot)

    def _on_slot(self, future: asyncio.Future[Any]) -> None:
        pending = self.exchange.pending
        if pending is not None and pending.future is future:
            self._run(self._take_slot)

    def _take_slot(self) -> None:
        exchange = self.exchange
        self._count_time_in_queue()
        try:
            self._parts.slots.take_slot(exchange)
        except NotInTime as error:
            raise no_slot(error) from None
        except StoreError as outage:
            self._wait_for_store(outage)
            return
        if exchange.access_key is not None and not self._parts.calls.is_valid_key(exchange.access_key):
            sentence = "the access key was removed or rotated, or has expired, while the call waited"
            raise ProxyRefusal(401, "key_wrong", sentence)
        candidate = self._parts.callers.logins.read(exchange, chosen_candidate(exchange))
        if candidate is None:  # the login has expired while the call waited
            self._parts.slots.release_slot(exchange)
            self._parts.callers.choose(exchange, exchange.secret)
            self._attempt()
            return
        exchange.outcome = None
        exchange.upstream, exchange.own = candidate.upstream, candidate.own
        self._send(candidate)

    def _count_time_in_queue(self) -> None:
        exchange = self.exchange
        if exchange.queued_at:
            exchange.queue_s += perf_counter() - exchange.queued_at
            exchange.queued_at = 0.0

    def _wait_for_store(self, error: StoreError) -> None:
        self._store_failures += 1
        pause_s = retries.pause_for_store_s(self.exchange, self._store_failures)
        if not pause_s:
            raise error
        self.exchange.queued_at = self.exchange.queued_at or perf_counter()
        self._pause(pause_s, self._enqueue)

    def _wait_for_trial(self) -> None:
        self.exchange.queued_at = perf_counter()
        self._help(wait_for_trial(self._parts, self.exchange), self._on_trial)

    def _on_trial(self, task: asyncio.Task[None]) -> None:
        exchange = self.exchange
        if self._ended:
            return
        self._count_time_in_queue()
        task.result()
        if exchange.apart:
            exchange.outcome = None
            self._send(exchange.candidates[exchange.model])
        else:
            self._enqueue()

    # One attempt.

    def _send(self, candidate: CallCandidate | None) -> None:
        exchange = self.exchange
        exchange.attempts += 1
        exchange.waiting_since = perf_counter()
        exchange.usage = UNUSED  # until it is sent
        self._error_start = b""
        try:
            self._out = upstream_request(exchange, candidate)
            self._post()
        except (OSError, ValueError) as error:
            raise retries.report_failure(exchange, error) from None

    def _post(self) -> None:
        """Send the request by an idle connection, or make one."""
        connections = self.exchange.upstream.connections
        connection = connections.take_idle()
        if connection is None:
            self._help(connections.connect(), self._on_connection)
        else:
            self._reused = True
            self._write(connection)

    def _on_connection(self, task: asyncio.Task[Connection]) -> None:
        if self._ended:
            if not task.cancelled() and task.exception() is None:
                self.exchange.upstream.connections.free(task.result())
            return
        try:
            self._reused = False
            self._write(task.result())
        except (OSError, ValueError) as error:
            raise retries.report_failure(self.exchange, error) from None

    def _write(self, connection: Connection) -> None:
        self._sent_at = self._parts.loop.time()
        self._response = connection.send(self._out, self._on_response)
        self.exchange.usage = None  # from now on, it may be used

    def _on_response(self, response: UpstreamResponse) -> None:
        """Something of the response has come, or nothing more comes."""
        self._run(self._hear)

    def _hear(self) -> None:
        """Pass a good response on from its head on; of a refusal, read the beginning first."""
        exchange, response = self.exchange, self._response
        assert response is not None
        if 0 < response.status < 400:
            stored = self._parts.callers.learn(exchange, response) if response.status < 300 else None
            if stored is None:
                self._begin_relay(response, b"")
            else:  # the client gets its answer when what was learned is on disk
                response.on_news = None
                self._help(until_stored(stored), lambda _: None if self._ended else self._begin_relay(response, b""))
            return
        if response.status:
            if not self._error_start:
                exchange.usage = UNUSED
                exchange.upstream_s = perf_counter() - exchange.waiting_since
            self._error_start += response.take()
            if response.complete or len(self._error_start) >= ERROR_BYTES:
                self._judge(response)
                return
        if response.error is not None:
            self._fail(response.error)

    def _fail(self, error: BaseException) -> None:
        exchange = self.exchange
        stale = self._reused and isinstance(error, ClosedWithoutAnswer)
        if stale and self._parts.loop.time() - self._sent_at <= _STALE_S and may_arrive_twice(exchange, self._out):
            self._post()
            return
        if isinstance(error, ClientLeft):
            self._leave()
            return
        if isinstance(error, CannotConnect | TimeoutError | ValueError):
            exchange.usage = UNUSED  # it was not sent
        raise retries.report_failure(exchange, error)

    # A refusal of the provider.

    def _judge(self, response: UpstreamResponse) -> None:
        """Try again, or pass the refusal on."""
        exchange, slots = self.exchange, self._parts.slots
        exchange.outcome = retries.classify(exchange, response, self._error_start)
        if self._parts.callers.hear_refusal(exchange, response):
            slots.adopt(exchange)
        if not (self._parts.callers.logins.judge_refusal(exchange) or retries.is_tried_again(exchange)):
            self._begin_relay(response, self._error_start)
            return
        response.close()
        self._response = None
        exchange.waiting_since = 0.0
        slots.release_slot(exchange)  # what was refused is held back, for this call and all others
        pause_s = retries.pause_before_retry_s(exchange)
        exchange.queue_s += pause_s
        self._pause(pause_s, self._attempt)

    # The response.

    def _begin_relay(self, response: UpstreamResponse, start: bytes) -> None:
        exchange = self.exchange
        if not start:
            exchange.upstream_s = perf_counter() - exchange.waiting_since
        relay = self._relay = ResponseRelay(
            exchange, self.request, self._heard, self._parts.slots.release_slot, self._on_relayed
        )
        response.on_news = relay.news
        relay.begin(response, start)

    def _on_relayed(self, error: BaseException | None) -> None:
        """The response is with the client, or cannot be brought to its end."""
        if error is None:
            self._end()
        elif isinstance(error, ProxyRefusal):
            self._parts.slots.release_slot(self.exchange)
            self.refuse(error)
        else:
            if not isinstance(error, BrokenOff | ClientLeft):
                logger.error("internal error in a response of %s", self.exchange.route.said, exc_info=error)
            self._parts.slots.release_slot(self.exchange)
            self._end()  # which cuts the client's connection

    def _heard(self, exchange: Exchange, response: UpstreamResponse) -> None:
        """The head of a response is here, which is passed on."""
        if response.status < 300 and self._parts.callers.accept(exchange, response):
            self._parts.slots.adopt(exchange)
        if exchange.lease and response.status < 400:  # of a refusal, its outcome says all
            self._parts.calls.began(exchange.lease)
            follows = exchange.upstream.follows_rates
            exchange.readings = report_rates(
                self._parts.calls, exchange.lease, exchange.model, response.raw_headers, follows=follows
            )

    # Helpers that wait.

    def _pause(self, pause_s: float, then: Callable[[], None]) -> None:
        if pause_s:
            self._timer = self._parts.loop.call_later(pause_s, self._run, then)
        else:
            then()

    def _help(self, work: Coroutine[Any, Any, Any], then: Callable[[asyncio.Task[Any]], None]) -> None:
        """Do something in a task, and go on in `then`, which is called in any case."""

        def done(task: asyncio.Task[Any]) -> None:
            self._helper = None
            if self._ended:
                then(task)
            else:
                self._run(lambda: then(task))

        self._helper = self._parts.loop.create_task(work)
        self._helper.add_done_callback(done)

    # The end.

    def _leave(self) -> None:
        """The client has left."""
        exchange = self.exchange
        if self._ended or exchange.done:
            return
        exchange.gone = True
        if not exchange.lease and not exchange.status:
            self._parts.places.keep(exchange)
        self._end()

    def stall(self) -> None:
        """A wait has become too long: the provider's for a byte, or ours for the client to take one."""
        exchange, slots = self.exchange, self._parts.slots
        if self._ended or exchange.done:
            return
        if exchange.waiting_for_client:
            exchange.outcome = NOT_TAKEN
            slots.release_slot(exchange)
            self._end()
            return
        refusal = retries.report_failure(exchange, TimeoutError(f"no byte for {exchange.upstream.stall_s:g} s"))
        slots.release_slot(exchange)
        if exchange.first_byte_s:
            self._end()
        else:
            self.refuse(refusal)

    def _end(self) -> None:
        """Give back all that is held. Runs once."""
        if self._ended:
            return
        self._ended = True
        exchange, request, parts = self.exchange, self.request, self._parts
        exchange.done = True
        request.on_gone = request.on_news = None
        if self._relay is not None:
            self._relay.stop()
            self._relay = None
        if exchange.early is not None:
            exchange.early.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._helper is not None:
            self._helper.cancel()
        if self._response is not None:
            self._response.close()  # harmless after its end
        parts.slots.release_trial_place(exchange)
        if exchange.pending is not None:
            parts.slots.leave_queue(exchange)
        if exchange.lease:  # it ended before its response did
            exchange.outcome = exchange.outcome or LEFT
            parts.slots.release_slot(exchange)
        exchange.body.forget()
        parts.watch.end(self)
        seconds = perf_counter() - exchange.began
        parts.log.note(exchange, seconds)
        if parts.on_end is not None:
            parts.on_end(exchange, seconds)
        if not request.responded and not request.gone:
            request.abort()  # the client must not take a part for the whole
