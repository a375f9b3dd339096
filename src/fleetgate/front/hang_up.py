"""Whether a client has closed its connection, which the event loop cannot see while nothing is read."""

from __future__ import annotations

import asyncio
import select

_HUNG_UP = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)  # the last one only Linux has


def has_hung_up(transport: asyncio.Transport) -> bool:
    if transport.is_closing():
        return False
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), _HUNG_UP)
    return bool(poll.poll(0))
