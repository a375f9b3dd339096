"""The proxy in the process of a test, and requests without connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from fleetgate.config.file import load
from fleetgate.front.request import Headers
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.serving.service_gate import ServiceGate
from fleetgate.log import open_log
from fleetgate.proxy.app import Proxy
from tests.front.request_wire import HEADERS, RequestWire
from tests.service_gate import opened_service

CONFIG = """
[requests]
fake = {{ cap = 1, cooldown = 0 }}
[providers.fake]
base_url = "http://127.0.0.1:{port}/v1"
"""
BODY = b'{"model":"m1"}'


@asynccontextmanager
async def opened(folder: Path, port: int = 9) -> AsyncIterator[tuple[ServiceGate, Proxy]]:
    """A gate and its proxy to one provider, `fake`."""
    (folder / "config.toml").write_text(CONFIG.format(port=port))
    url = f"sqlite://{folder}/store"
    async with opened_service(GateCore(open_log(url), load(str(folder / "config.toml")), str(folder))) as gate:
        proxy = Proxy(gate, loopback=True, is_token=lambda key: False, folder=str(folder))
        await proxy.start()
        yield gate, proxy
        await proxy.stop()


def asked(headers: Headers = HEADERS, body: bytes = BODY) -> RequestWire:
    return RequestWire("POST", b"/fake/chat/completions", body, headers)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)
