"""A request that came as a whole is in the queue before its task begins (rules X2, X4): what if that task ends at
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fleetgate.config.file import load
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.serving.service_gate import ServiceGate
from fleetgate.log import open_log
from fleetgate.proxy.app import Proxy
from tests.service_gate import opened_service

CONFIG = """
[requests]
fake = { cap = 1, cooldown = 0 }
[providers.fake]
base_url = "http://127.0.0.1:9/v1"
"""
BODY = bytearray(b'{"model":"m1"}')


class Cycle:
    """A request's own view of its connection, as the server has it."""

    def __init__(self, *, disconnected: bool) -> None:
        self.disconnected = disconnected
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        if not self.disconnected:
            await asyncio.get_running_loop().create_future()  # it stays
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)


class Silent:
    """The client's connection: nothing is passed on to it here."""

    def __init__(self, *, has_left: bool) -> None:
        self.has_left = has_left

    def on_disconnect(self, call: object, *, by_task: bool) -> Any:
        return lambda: None

    def on_room(self, call: object) -> None:
        pass


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[ServiceGate, Proxy]]:
    (folder / "config.toml").write_text(CONFIG)
    url = f"sqlite://{folder}/store"
    async with opened_service(GateCore(open_log(url), load(str(folder / "config.toml")), str(folder))) as gate:
        proxy = Proxy(gate, loopback=True, is_token=lambda key: False, folder=str(folder))
        await proxy.start()
        yield gate, proxy
        await proxy.stop()


def request(path: bytes = b"/fake/chat/completions", *, has_left: bool = False) -> dict[str, Any]:
    head = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    asked = {"type": "http", "method": "POST", "http_version": "1.1", "query_string": b"", "headers": head}
    return {**asked, "path": path.decode(), "raw_path": path, "fleetgate.client": Silent(has_left=has_left)}


async def held(gate: ServiceGate) -> tuple[int, int]:
    state = await gate.read()
    return len(state.leases), len(state.tickets)


def test_x4_a_client_that_is_gone_when_the_task_begins_gives_back_what_was_asked_for(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(tmp_path) as (gate, proxy):
            for _ in range(3):  # the first has a slot by then, the others wait
                scope = request(has_left=True)
                assert proxy.wants(scope)
                assert proxy.ahead(scope, BODY)
                await proxy(scope, (cycle := Cycle(disconnected=True)).receive, cycle.send)
                assert not cycle.sent
            assert await held(gate) == (0, 0)

    asyncio.run(scene())


def test_x2_what_is_ahead_is_in_the_queue_at_once_and_goes_on_from_there(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(tmp_path) as (gate, proxy):
            scopes = [request(), request()]
            for scope in scopes:
                assert proxy.wants(scope)
                assert proxy.ahead(scope, BODY)
            await asyncio.sleep(0)
            assert await held(gate) == (1, 1)
            for scope in scopes:  # no process listens there: each gets that error, and leaves its slot
                cycle = Cycle(disconnected=False)
                await asyncio.wait_for(proxy(scope, cycle.receive, cycle.send), 30)
                assert cycle.sent[0]["status"] == 502
            assert await held(gate) == (0, 0)

    asyncio.run(scene())


def test_x1_what_cannot_be_read_is_left_to_the_task(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(tmp_path) as (gate, proxy):
            scope = request()
            scope["headers"] = [*scope["headers"], (b"x-fleetgate-hold", b"soon")]
            assert proxy.wants(scope)
            assert not proxy.ahead(scope, BODY)
            assert not proxy.ahead(request() | {"fleetgate.route": scope["fleetgate.route"]}, bytearray(1 << 20))
            assert await held(gate) == (0, 0)

    asyncio.run(scene())
