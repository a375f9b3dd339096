"""The answer, passed on byte for byte as it comes (SPEC X1, X4, X7).

A slow reader slows the provider down: nothing is gathered here. What the provider breaks off is broken off for the
client too, never ended as if it were whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter, time_ns
from typing import Any

from headgate.proxy.errors import Refusal, shape_of
from headgate.proxy.exchange import Exchange
from headgate.proxy.headers import Pairs, passed_back
from headgate.proxy.holding import Answered, told_of
from headgate.proxy.streams import Events
from headgate.signals.http import pools_hint
from headgate.signals.outcome import outcome

Send = Callable[[Any], Awaitable[None]]

_NO_BODY = (204, 304)


class BrokenOff(Exception):
    """The answer cannot be brought to its end."""


async def relay(x: Exchange, answered: Answered, send: Send, leave: Callable[[Exchange], None]) -> None:
    """Send an answer to its last byte, and `leave` with it. BrokenOff when that is not to be had."""
    response, start = answered
    status = response.status
    x.status = status
    headers, event_stream = passed_back(response.raw_headers)
    if status in _NO_BODY:  # a length that no body has: the server would wait for it
        headers = [pair for pair in headers if pair[0] != b"content-length"]
    headers += told(x)
    events = Events(x.upstream.provider, x.model.partition("/")[2]) if status < 300 and x.lease else None
    try:
        # Of a stream the head goes ahead; of anything else, the first byte is waited for: there may be none.
        if not event_stream and not start and not response.at_eof():
            start = await response.readany()
        x.first_byte_s = perf_counter() - x.began
        await send({"type": "http.response.start", "status": status, "headers": headers})
        piece = start
        if not piece and not response.at_eof():
            if (
                not response.at_hand
            ):  # a stream's head that came alone: it is not kept for what follows (api/protocol.py)
                await send({"type": "http.response.body", "body": b"", "more_body": True})
            x.waiting_since = perf_counter()
            piece = await response.readany()
        while True:
            last = response.at_eof() or not piece
            if events is not None and piece:
                events.feed(piece)
            x.bytes_sent += len(piece)
            x.done = last
            if last:
                break
            x.waiting_for_client = True
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            x.waiting_for_client = False
            x.waiting_since = perf_counter()
            piece = await response.readany()
    except OSError as error:
        said = told_of(error)
        x.outcome = outcome("server_error", "proxy.broken_off", f"broken off after {x.bytes_sent} bytes ({said})")
        x.error = x.outcome.evidence
        if x.first_byte_s == 0.0:
            raise Refusal(502, "upstream_failed", f"{x.upstream.provider} broke off its answer ({said})") from None
        raise BrokenOff from None
    if events is not None:
        events.end()
        x.outcome = events.outcome or x.outcome
    leave(x)  # the provider's last byte is here
    await send({"type": "http.response.body", "body": piece})


async def send_refusal(x: Exchange, refusal: Refusal, send: Send, *, close: bool = False) -> None:
    """Answer with an error of our own."""
    x.status, x.error = refusal.status, str(refusal)
    body = shape_of(refusal, x.api)
    headers: Pairs = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % refusal.retry_after_s))
    if close:
        headers.append((b"connection", b"close"))
    x.done = True
    x.bytes_sent = len(body)
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers + told(x)})
    await send({"type": "http.response.body", "body": body})


def told(x: Exchange) -> Pairs:
    """What became of the request on its way (SPEC X7)."""
    line_ms, upstream_ms = x.line_s * 1000, x.upstream_s * 1000
    return [
        (b"x-headgate-waited-ms", b"%d" % line_ms),
        (b"x-headgate-model", x.model.encode("latin-1", "replace")),
        (b"x-headgate-attempts", b"%d" % x.attempts),
        (b"server-timing", b"headgate;dur=%.1f, upstream;dur=%.1f" % (line_ms, upstream_ms)),
    ]


def used_up_ms(provider: str, raw_headers: Any) -> int | None:
    """How long nothing is left, by the headers of any answer; None where something is (SPEC X6)."""
    for name, value in raw_headers:
        small = name.lower()
        if (b"remaining" in small and value in (b"0", b"0.0")) or b"unified-status" in small or b"x-codex-" in small:
            break
    else:
        return None
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw_headers}
    hints = pools_hint(provider, headers, time_ns() // 1_000_000)
    return max((hint.wait_ms for hint in hints), default=None)
