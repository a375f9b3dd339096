"""The question whose login a token is: a request to the provider that costs nothing, before the first call is counted.

It is asked with the client's own headers and token, at `identity_path` of the provider, and its answer names the
organization in a header. So the first call with a refreshed token waits for a slot of its account like any other: no
cap is exceeded, and no backoff is tried out.
"""

from __future__ import annotations

import asyncio

from fleetgate.proxy.calls.exchange import Exchange
from fleetgate.proxy.headers import Pairs
from fleetgate.proxy.http_client.connection import UpstreamResponse

_PATIENCE_S = 5.0
_ABOUT_BODY = frozenset((b"content-type", b"content-encoding", b"accept-encoding", b"accept"))
_NO_SUCH_PATH = frozenset((404, 405))


async def ask_identity(exchange: Exchange) -> Pairs:
    """The headers of the provider's answer; none if it does not answer well."""
    upstream = exchange.upstream
    headers: Pairs = [pair for pair in exchange.headers.sent if pair[0] not in _ABOUT_BODY]
    headers += exchange.headers.keys.items()
    response: UpstreamResponse | None = None
    head: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_news(_: UpstreamResponse) -> None:
        if not head.done():
            head.set_result(None)

    try:
        async with asyncio.timeout(_PATIENCE_S):
            request = upstream.request("GET", upstream.identity_path.encode(), b"", headers, b"")
            connection = await upstream.connections.connect()
            response = connection.send(request, on_news)
            await head
    except (OSError, ValueError):  # TimeoutError is one
        return []
    finally:
        if response is not None:
            response.close()
    if response.status in _NO_SUCH_PATH:
        upstream.identity_path = ""  # it is not asked again
    return response.raw_headers if response.status < 300 else []
