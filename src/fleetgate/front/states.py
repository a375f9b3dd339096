"""The states of a client's connection, and every transition between them.

Theory of operation
-------------------
A connection carries one request at a time. What a client sends behind an unanswered request (pipelining) stays in a
buffer, unparsed, until the response is complete. So the parser is never ahead of the response, and one state describes
both directions:

    IDLE ──► HEAD ──► BODY ──► RESPONSE ──► IDLE …
                        │          │
                        └──────────┴──► LINGER ──► CLOSED

- IDLE      nothing of a request has come. The client may stay here for IDLE_S; a new connection for HEAD_S.
- HEAD      a part of a head has come. All of it has to come within HEAD_S.
- BODY      the head is read, and the body is not complete. The handler has the request, and may respond already.
- RESPONSE  the request is complete, and its response is not.
- LINGER    the last response of the connection is written, and the sending half is closed. What the client still sends
            is dropped, so that its system does not throw away a response that was not read yet.
- CLOSED    the connection is gone. A request that was not complete or not answered is told so.

A response that ends before its request (BODY to LINGER) ends the connection: the rest of the body cannot be told from
the next request by a client that gave up. Every state can end in CLOSED, at any moment.
"""

from __future__ import annotations

from enum import Enum


class LinkState(Enum):
    """What a connection is waiting for."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    RESPONSE = "response"
    LINGER = "linger"
    CLOSED = "closed"


TRANSITIONS: dict[LinkState, frozenset[LinkState]] = {
    LinkState.IDLE: frozenset((LinkState.HEAD, LinkState.LINGER, LinkState.CLOSED)),
    LinkState.HEAD: frozenset((LinkState.BODY, LinkState.LINGER, LinkState.CLOSED)),
    LinkState.BODY: frozenset((LinkState.RESPONSE, LinkState.LINGER, LinkState.CLOSED)),
    LinkState.RESPONSE: frozenset((LinkState.IDLE, LinkState.LINGER, LinkState.CLOSED)),
    LinkState.LINGER: frozenset((LinkState.CLOSED,)),
    LinkState.CLOSED: frozenset(),
}
