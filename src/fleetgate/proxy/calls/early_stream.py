"""A stream that begins before the provider has answered: comments, so that the client of a request that waits long does
not give up (`comment_after` of a provider).

With the first of them its status is 200, whatever comes. So an error that comes then is an event of the stream, in the
shape of its API. Only where the clients of an API are known to read comments: Gemini's do not.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetgate.front.request import ClientRequest
    from fleetgate.proxy.calls.exchange import Exchange
    from fleetgate.proxy.headers import Pairs

EVERY_S = 15.0
_APIS = ("anthropic", "openai")
_COMMENT = b": Fleetgate: waiting in the queue\n\n"
_STREAM = re.compile(rb'(?<!\\)"stream"\s{0,20}:\s{0,20}true')


def wants_stream(exchange: Exchange) -> bool:
    """Whether a call asks for a stream of events, as far as its body can be read."""
    return (
        exchange.api in _APIS
        and bool(exchange.candidates)
        and not exchange.headers.encoding
        and bool(_STREAM.search(exchange.body.data))
    )


class EarlyStream:
    """The beginning of one answer."""

    def __init__(
        self, exchange: Exchange, client: ClientRequest, loop: asyncio.AbstractEventLoop, head: Callable[[], Pairs]
    ) -> None:
        self._exchange = exchange
        self._client = client
        self._loop = loop
        self._head = head
        self._handle = loop.call_later(exchange.upstream.comment_after_s, self._say)
        self.begun = False

    def stop(self) -> None:
        """The provider's own answer follows, or nothing."""
        self._handle.cancel()

    def _say(self) -> None:
        exchange, client = self._exchange, self._client
        if exchange.gone or exchange.done or exchange.status:
            return
        if not self.begun and not exchange.queued_at:  # it is not in the queue now: its answer may come at any moment
            self._handle = self._loop.call_later(1.0, self._say)
            return
        if not self.begun:
            self.begun = True
            client.begin(200, [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), *self._head()])
        if not client.paused:
            client.write(_COMMENT)
        self._handle = self._loop.call_later(EVERY_S, self._say)

    def end(self, body: bytes) -> None:
        """An error, after all: `body` in the shape of the API."""
        self.stop()
        data = b"data: " + b" ".join(body.split(b"\n")) + b"\n\n"
        self._client.end(b"event: error\n" + data if self._exchange.api == "anthropic" else data)
