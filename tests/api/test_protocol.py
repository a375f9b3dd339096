"""H2: how answers are put on the wire."""

from __future__ import annotations

import asyncio

from headgate.api.protocol import Together

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Transport:
    def __init__(self) -> None:
        self.done: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("closed")


async def test_h2_head_and_body_are_written_together():
    wire = Transport()
    together = Together(wire, asyncio.get_running_loop())
    together.write(HEAD)
    together.write(b"{}")
    await asyncio.sleep(0)
    together.write(b"more")
    assert wire.done == [HEAD + b"{}", b"more"]


async def test_h2_a_head_whose_body_is_not_there_yet_is_written_in_the_next_turn():
    wire = Transport()
    together = Together(wire, asyncio.get_running_loop())
    together.write(HEAD)
    assert wire.done == []
    await asyncio.sleep(0)
    assert wire.done == [HEAD]


async def test_h2_a_head_is_written_before_its_connection_is_closed():
    wire = Transport()
    together = Together(wire, asyncio.get_running_loop())
    together.write(HEAD)
    together.close()
    await asyncio.sleep(0)
    assert wire.done == [HEAD, "closed"]
