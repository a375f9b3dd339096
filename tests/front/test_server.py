"""The number of connections of the server."""

from __future__ import annotations

from typing import Any

from fleetgate.front.server import FrontServer


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
