"""The number of connections of the server."""

from __future__ import annotations

import asyncio
import ssl
from email.utils import formatdate
from pathlib import Path
from time import gmtime
from typing import Any

import pytest

from fleetgate.front import limits
from fleetgate.front.server import FrontServer, http_date
from tests.front.fronted import echo, fronted
from tests.proxy.tls import Authority


class Link:
    """A connection, as far as the server counts it. All came in the same millisecond."""

    idle = True
    since = 1.0

    def __init__(self, number: int, cut: list[int]) -> None:
        self._number = number
        self._cut = cut

    def abort(self) -> None:
        self._cut.append(self._number)


async def test_h5_of_connections_that_came_in_the_same_millisecond_the_first_gives_way_first() -> None:
    server, cut = FrontServer(most_connections=8), list[int]()
    links: list[Any] = [Link(number, cut) for number in range(40)]
    assert all(server.add(link) for link in links)
    assert cut == list(range(32))
    assert len(server) == 8


@pytest.mark.parametrize("with_tls", [False, True])
async def test_h5_silent_connections_give_way_to_new_ones_with_and_without_tls(with_tls: bool, tmp_path: Path) -> None:
    authority = Authority(tmp_path) if with_tls else None
    trust = ssl.create_default_context(cafile=authority.file) if authority else None
    async with fronted(echo, tls=authority and authority.context, most_connections=8) as (server, connect):
        silent = [await connect() for _ in range(60)]
        for _ in range(3):
            client = await connect(trust)
            client.send(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await client.response())[0] == 200
        assert len(server) <= 8
        async with asyncio.timeout(limits.HEAD_S / 2):
            assert await silent[0].rest() == b"", "the oldest of them was closed to make room, not since it was silent"


def test_dates_are_what_http_wants_on_every_day_of_a_week_and_in_every_month() -> None:
    for day in range(0, 400, 13):
        at = 1_700_000_000 + day * 86_461
        assert http_date(gmtime(at)) == formatdate(at, usegmt=True).encode()
