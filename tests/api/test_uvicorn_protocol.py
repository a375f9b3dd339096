"""H2: how answers are put on the wire."""

from __future__ import annotations

import asyncio

from fleetgate.api.http.uvicorn_protocol import BufferedTransport, IdleTimer

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Transport:
    def __init__(self) -> None:
        self.done: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.done.extend(parts)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self.done.append("closed")


async def test_h2_head_and_body_are_written_together():
    wire = Transport()
    together = BufferedTransport(wire, asyncio.get_running_loop())
    together.write(HEAD)
    together.write(b"{}")
    await asyncio.sleep(0)
    together.write(b"more")
    assert wire.done == [HEAD + b"{}", b"more"]


async def test_h2_a_head_whose_body_is_not_there_yet_is_written_in_the_next_turn():
    wire = Transport()
    together = BufferedTransport(wire, asyncio.get_running_loop())
    together.write(HEAD)
    assert wire.done == []
    await asyncio.sleep(0)
    assert wire.done == [HEAD]


async def test_h2_a_head_is_written_before_parts_that_are_written_as_they_are():
    wire = Transport()
    together = BufferedTransport(wire, asyncio.get_running_loop())
    together.write(HEAD)
    together.writelines((b"1", b"2"))
    await asyncio.sleep(0)
    assert wire.done == [HEAD, b"1", b"2"]


async def test_h2_a_head_is_written_before_its_connection_is_closed():
    wire = Transport()
    together = BufferedTransport(wire, asyncio.get_running_loop())
    together.write(HEAD)
    together.close()
    await asyncio.sleep(0)
    assert wire.done == [HEAD, "closed"]


async def _idle_for(moments: list[tuple[float, str]], after_s: float, until_s: float) -> float | None:
    """When a connection was ended that was used like this; None: it was not by then."""
    loop = asyncio.get_running_loop()
    began, ended = loop.time(), loop.create_future()
    idle = IdleTimer(loop, after_s, lambda: ended.set_result(loop.time() - began))
    for at, what in moments:
        loop.call_at(began + at, getattr(idle, what))
    await asyncio.wait([ended], timeout=until_s)
    idle.stop()
    return ended.result() if ended.done() else None


def test_h5_a_connection_on_which_nothing_is_asked_is_ended_and_use_puts_that_off():
    used = [(0.0, "begin"), (0.1, "cancel"), (0.15, "begin")]
    ended = asyncio.run(_idle_for(used, 0.2, 20))
    assert ended is not None
    assert ended >= 0.35 - 0.01


def test_h5_a_connection_that_is_used_or_gone_is_not_ended():
    assert asyncio.run(_idle_for([(0.0, "begin"), (0.05, "cancel")], 0.1, 0.3)) is None
    assert asyncio.run(_idle_for([(0.0, "begin"), (0.05, "stop")], 0.1, 0.3)) is None
