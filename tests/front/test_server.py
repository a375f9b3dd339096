"""The number of connections of the server."""

from __future__ import annotations

from email.utils import formatdate
from time import gmtime
from typing import Any

from fleetgate.front.server import FrontServer, http_date


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


def test_dates_are_what_http_wants_on_every_day_of_a_week_and_in_every_month() -> None:
    for day in range(0, 400, 13):
        at = 1_700_000_000 + day * 86_461
        assert http_date(gmtime(at)) == formatdate(at, usegmt=True).encode()
