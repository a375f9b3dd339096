"""A request that came as a whole is in the queue at once (rules X2, X4), and leaves it when its client does."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fleetgate.gate.serving.service_gate import ServiceGate
from tests.front.request_wire import HEADERS
from tests.proxy.in_process import asked, opened, until


async def held(gate: ServiceGate) -> tuple[int, int]:
    state = await gate.read()
    return len(state.leases), len(state.tickets)


def test_x4_a_client_that_leaves_at_once_gives_back_what_was_asked_for(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(tmp_path) as (gate, proxy):
            wires = [asked() for _ in range(3)]  # the first has a slot at once, the others wait
            for wire in wires:
                assert proxy.wants(wire.request)
                proxy(wire.request)
                wire.leave()
            async with asyncio.timeout(30):
                while await held(gate) != (0, 0):
                    await asyncio.sleep(0.001)
            assert not any(wire.sent for wire in wires)

    asyncio.run(scene())


def test_x2_a_whole_request_is_in_the_queue_at_once_and_goes_on_from_there(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(tmp_path) as (gate, proxy):
            wires = [asked(), asked()]
            for wire in wires:
                proxy(wire.request)
            assert sum(await held(gate)) == 2
            for wire in wires:  # no process listens there: each gets that error, and leaves its slot
                await until(lambda wire=wire: wire.finished)  # type: ignore[misc]
                assert wire.status == 502
            assert await held(gate) == (0, 0)

    asyncio.run(scene())


def test_x1_a_request_that_cannot_be_read_is_refused_and_has_no_place_in_the_queue(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(tmp_path) as (gate, proxy):
            proxy((wire := asked([*HEADERS, (b"x-fleetgate-hold", b"soon")])).request)
            assert wire.status == 400
            assert await held(gate) == (0, 0)

    asyncio.run(scene())
