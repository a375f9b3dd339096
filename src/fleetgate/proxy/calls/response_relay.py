"""The relay of an answer, byte for byte as it comes (rules X1, X4, X7).

A slow reader slows the provider down: nothing is collected here. An answer that the provider breaks off is broken off
for the client too, and never ended as if it were complete.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, time_ns

from fleetgate.front.request import ClientRequest
from fleetgate.gate.library.usage_arguments import UNUSED
from fleetgate.proxy.calls.exchange import Exchange
from fleetgate.proxy.calls.response_reader import ResponseReader
from fleetgate.proxy.calls.retries import describe_error
from fleetgate.proxy.errors import ProxyRefusal, headers_of, shape_of
from fleetgate.proxy.headers import ISOLATED, Pairs, ResponseHead, passed_back
from fleetgate.proxy.http_client.connection import UpstreamResponse
from fleetgate.proxy.redirects import with_safe_redirect
from fleetgate.signals.outcome import outcome

_NO_BODY = (204, 304)


class BrokenOff(Exception):
    """The answer cannot be brought to its end."""


class ResponseRelay:
    """Passes the answer to one request on. It is called by both connections, the provider's and the client's."""

    __slots__ = (
        "_client",
        "_ended",
        "_exchange",
        "_head",
        "_on_done",
        "_on_end",
        "_on_head",
        "_response",
        "_start",
    )

    def __init__(
        self,
        exchange: Exchange,
        client: ClientRequest,
        on_head: Callable[[Exchange, UpstreamResponse], None],
        on_end: Callable[[Exchange], None],
        on_done: Callable[[BaseException | None], None],
    ) -> None:
        self._exchange = exchange
        self._client = client
        self._on_head = on_head  # called when an answer is to be passed on
        self._on_end = on_end  # called when the provider's last byte is here
        self._on_done = on_done  # called once, at the end. BrokenOff, ProxyRefusal: the end is not to be had
        self._response: UpstreamResponse | None = None
        self._start = b""  # of the body: what was read already
        self._head: ResponseHead | None = None  # yet to be sent
        self._ended = False

    def news(self, _: UpstreamResponse) -> None:
        """Something has come from the provider."""
        self._pass_on()

    def begin(self, response: UpstreamResponse, start: bytes = b"") -> None:
        """Pass an answer on, whose head is here; `start` of its body was read already."""
        self._response, self._start = response, start
        exchange = self._exchange
        exchange.status = status = response.status
        exchange.headed_at = perf_counter()
        self._on_head(exchange, response)
        head = passed_back(response.raw_headers, bodiless=status in _NO_BODY)
        if 300 <= status < 400:
            lines = with_safe_redirect(exchange, self._client, head.lines)
            head = ResponseHead(lines, head.length, head.event_stream, head.encoding)
        if exchange.early is not None:
            exchange.early.stop()
        if exchange.early is None or not exchange.early.begun:
            self._head = head
        elif not self._continues(response, head):
            return
        if status >= 300:
            exchange.usage = UNUSED
        elif exchange.lease:
            name = exchange.model.partition("/")[2]
            exchange.reader = ResponseReader(exchange.upstream.provider, name, head.encoding, stream=head.event_stream)
        # Of a stream the head goes ahead; of anything else, the first byte is waited for: there may be none.
        self._pass_on(ahead=head.event_stream)

    def _continues(self, response: UpstreamResponse, head: ResponseHead) -> bool:
        """Whether an answer can follow the comments that began it; an error becomes an event, and is its end."""
        exchange = self._exchange
        exchange.first_byte_s = exchange.first_byte_s or perf_counter() - exchange.began
        if head.event_stream and response.status < 300 and not head.encoding:
            return True
        error = ProxyRefusal(
            response.status, "upstream_failed", f"{exchange.upstream.provider} answered {response.status}"
        )
        body = (
            self._start
            if self._start.lstrip()[:1] == b"{"
            else shape_of(error, exchange.api, time_ns() // 1_000_000_000)
        )
        assert exchange.early is not None
        exchange.done = True
        exchange.early.end(body)
        self._on_end(exchange)
        self._finish(None)
        return False

    def stop(self) -> None:
        """Stop: its end is not awaited any more."""
        self._ended = True
        self._client.on_room = None
        if self._response is not None:
            self._response.on_news = None

    def _pass_on(self, *, ahead: bool = False) -> None:
        """What is here; with `ahead` the head, even if nothing has come after it."""
        if self._ended:
            return
        try:
            self._step(ahead)
        except Exception as error:
            self._finish(error)

    def _step(self, ahead: bool) -> None:
        exchange, client, response = self._exchange, self._client, self._response
        assert response is not None
        if client.paused:
            if not exchange.waiting_for_client:
                exchange.waiting_for_client, exchange.waiting_since = True, perf_counter()
                client.on_room = self._pass_on
            return
        exchange.waiting_for_client = False
        piece, self._start = self._start + response.take(), b""
        if piece:
            exchange.bytes_sent += len(piece)
            if exchange.reader is not None:
                exchange.reader.feed(piece)
        if response.complete:
            self._last(piece)
            return
        if piece or ahead:
            self._send(piece)
        if response.error is not None:
            self._break_off(response.error)
        else:
            exchange.waiting_since = perf_counter()

    def _send(self, piece: bytes) -> None:
        self._send_head()
        self._client.write(piece)

    def _last(self, piece: bytes) -> None:
        exchange = self._exchange
        exchange.done = True
        if exchange.reader is not None:
            exchange.reader.end()
            exchange.outcome = exchange.reader.outcome or exchange.outcome
        self._on_end(exchange)
        self._send_head()
        self._client.end(piece)
        self._finish(None)

    def _send_head(self) -> None:
        """With what follows it."""
        if self._head is not None:
            head, self._head = self._head, None
            self._exchange.first_byte_s = perf_counter() - self._exchange.began
            lines = [b"%s: %s\r\n" % pair for pair in outcome_headers(self._exchange)]
            self._client.begin_with(self._exchange.status, head.lines + lines, head.length)

    def _break_off(self, error: BaseException) -> None:
        exchange = self._exchange
        if not isinstance(error, OSError):
            self._finish(error)
            return
        said = describe_error(error)
        exchange.outcome = outcome(
            "server_error", "proxy.broken_off", f"broken off after {exchange.bytes_sent} bytes ({said})"
        )
        exchange.error = exchange.outcome.evidence
        if exchange.first_byte_s == 0.0:
            self._finish(
                ProxyRefusal(502, "upstream_failed", f"{exchange.upstream.provider} broke off its answer ({said})")
            )
        else:
            self._finish(BrokenOff())

    def _finish(self, error: BaseException | None) -> None:
        if not self._ended:
            self._ended = True
            self._on_done(error)


def send_refusal(exchange: Exchange, refusal: ProxyRefusal, request: ClientRequest, *, close: bool = False) -> None:
    """Answer with an error of our own."""
    exchange.status, exchange.error = refusal.status, str(refusal)
    now_s = time_ns() // 1_000_000_000
    if exchange.early is not None:
        exchange.early.stop()
        if exchange.early.begun:
            exchange.done = True
            exchange.early.end(shape_of(refusal, exchange.api, now_s))
            return
    body = shape_of(refusal, exchange.api, now_s)
    headers: Pairs = [(b"content-type", b"application/json")]
    headers += headers_of(refusal, exchange.api, now_s)
    if close:
        headers.append((b"connection", b"close"))
    exchange.done = True
    exchange.bytes_sent = len(body)
    request.respond(refusal.status, headers + outcome_headers(exchange), body)


def outcome_headers(exchange: Exchange) -> Pairs:
    """Headers with the outcome of the request, and those that keep a browser from running the answer."""
    queue_ms, upstream_ms = exchange.queue_s * 1000, exchange.upstream_s * 1000
    return [
        *ISOLATED,
        (b"x-fleetgate-waited-ms", b"%d" % queue_ms),
        (b"x-fleetgate-model", _shown_model(exchange).encode("latin-1", "replace")),
        (b"x-fleetgate-attempts", b"%d" % exchange.attempts),
        (b"server-timing", b"fleetgate;dur=%.1f, upstream;dur=%.1f" % (queue_ms, upstream_ms)),
    ]


def _shown_model(exchange: Exchange) -> str:
    """With its account, for a caller that is trusted; names of accounts are no others' business."""
    if exchange.trusted or not exchange.model:
        return exchange.model
    head, slash, name = exchange.model.partition("/")
    return head.partition("@")[0] + slash + name
