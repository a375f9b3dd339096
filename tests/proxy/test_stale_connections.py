"""A call that meets a connection which the provider is closing is sent again by another, if it may arrive twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proxy.in_process import BODY, asked, opened, until
from tests.proxy.origin import Wire, asking

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def _two_calls(folder: Path, port: int, second: bytes) -> tuple[int, bytes]:
    """Status and body of the second of two calls; the first leaves its connection idle."""
    async with opened(folder, port) as (gate, proxy):
        for body in (BODY, second):
            wire = asked(body=body)
            assert proxy.wants(wire.request)
            proxy(wire.request)
            await until(lambda wire=wire: wire.finished)  # type: ignore[misc]
        state = await gate.read()
        assert not state.leases
        return wire.status, wire.body


@pytest.mark.parametrize(("second", "status", "times"), [(BODY, 200, 3), (b'{"no":"model"}', 502, 2)])
async def test_a_call_that_meets_a_closing_connection(tmp_path: Path, second: bytes, status: int, times: int) -> None:
    """As the provider's "I close this" and our request cross on their way."""
    seen: dict[int, int] = {}

    async def behave(wire: Wire) -> str:
        await wire.body()
        seen[wire.number] = seen.get(wire.number, 0) + 1
        if seen[wire.number] > 1:
            return "close"
        await wire.say(WHOLE)
        return ""

    async with asking(behave) as (origin, pool):
        got, body = await _two_calls(tmp_path, pool.port, second)
        assert got == status
        assert (body == b"ok") == (status == 200)
        assert origin.asked == times, "what must not arrive twice is not sent twice"


async def test_a_call_that_got_half_a_word_is_not_sent_again(tmp_path: Path) -> None:
    async def behave(wire: Wire) -> str:
        await wire.body()
        first = wire.number == 1 and origin.asked == 1
        await wire.say(WHOLE if first else b"HTTP/1.1 2")
        return "" if first else "close"

    async with asking(behave) as (origin, pool):
        assert (await _two_calls(tmp_path, pool.port, BODY))[0] == 502
        assert origin.asked == 2
