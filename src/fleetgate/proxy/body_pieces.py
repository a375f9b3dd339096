"""A large body, or one whose end is still to come, in pieces (proxy/request_body.py)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetgate.proxy.request_body import RequestBody

_PIECE_BYTES = 1 << 18  # written at once


async def body_pieces(body: RequestBody, data: bytes) -> AsyncIterator[bytes]:
    """`data`, and what has yet to come of the body."""
    for start in range(0, len(data), _PIECE_BYTES):
        yield data[start : start + _PIECE_BYTES]
    while not body.whole:
        if piece := await body.read_more():
            yield piece
