"""What one connection may cost: memory, time, and a place among the others.

- What a client sends behind an unanswered request is kept as it came, up to `KEPT_BYTES`; then nothing more is read.
- A head has to come within seconds, a body at a moderate pace, and responses have to be read.
- When there are as many connections as there may be, the one that has been idle for longest gives way to a new one.
"""

from __future__ import annotations

import resource

HEAD_BYTES = 20 * 1024  # the request line and all headers; also trailers and what chunks say of themselves
KEPT_BYTES = 16 * 1024  # of what follows an unanswered request
BODY_BYTES = 64 * 1024  # of a body that the handler has not taken; then the client has to wait

HEAD_S = 10.0  # from its first byte, or from a new connection on, to the end of a head
BODY_S = 30.0  # for a body, and more for each byte of it:
BODY_BYTES_PER_S = 1024
UNREAD_S = 120.0  # how long a client may leave a response unread
IDLE_S = 75.0  # between two requests
LINGER_S = 2.0  # how long the rest of a refused request is read, so that the client sees the response
LINGER_BYTES = 8 * 1024 * 1024  # and how much of it
CHECK_S = 1.0  # how often these times are checked

REFUSED_CONNECTIONS = 32  # connections over the maximum that still get a response
MOST_CONNECTIONS = 4_000
_OTHER_FILES = 64  # of the process itself


def most_connections() -> int:
    """How many clients there is room for: each may need a connection to a provider as well."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(8, min(MOST_CONNECTIONS, (soft - _OTHER_FILES) // 2))
