"""What it costs a proxied stream that its usage is read: the CPU instructions of the service, with the reader of usage
and with one that does nothing, counted by valgrind.

Valgrind slows the service down by a factor of thirty or so, so the streams are slow enough that each event is a piece
of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from time import monotonic, sleep

import uvloop

from benchmarks.gateways import NotHere
from benchmarks.report import Row
from benchmarks.traffic import Provider, load

STREAMS = 2 if os.environ.get("FLEETGATE_BENCH_SMALL") else 8
EVENTS = 20 if os.environ.get("FLEETGATE_BENCH_SMALL") else 400
PAUSE_MS = 60  # between two events of a stream
START_S = 300.0
GOAL = 3.0  # percent

_CONFIG = """
[requests]
bench = 100
[providers.bench]
base_url = "http://127.0.0.1:{port}/v1"
"""
# The service, with a reader of responses that looks for errors only.
_WITHOUT = """
from fleetgate.proxy import response_reader
from fleetgate.proxy.response_reader import ResponseReader
def feed(self, piece):
    if self._blind:
        return
    if self._decoder is not None:
        piece = self._decoded(self._decoder, piece)
    first, second = response_reader._WORDS
    assert not self._kept and piece.endswith(b"\\n\\n") and first not in piece and second not in piece
ResponseReader.feed = feed
ResponseReader.usage = lambda self: None
"""
_SERVE = "import sys; from fleetgate.cli.main import main; sys.argv = ['fleetgate', 'serve', '--port', '0']; main()"
_INSTRUCTIONS = re.compile(r"I\s+refs:\s+([0-9,]+)|Collected\s*:\s*([0-9]+)")


def measure() -> list[Row]:
    if shutil.which("valgrind") is None:
        return [Row("instructions for the usage of a stream", "not measured: valgrind is not installed")]
    with_it, without = _instructions(""), _instructions(_WITHOUT)
    events = STREAMS * EVENTS
    percent = (with_it / without - 1) * 100
    return [
        Row(
            "a proxied stream whose usage is read, by CPU instructions",
            f"+{percent:.1f} % ({with_it / events / 1000:.1f} k instructions for an event)",
            f"below {GOAL:g} %",
            f"not read: {without / events / 1000:.1f} k",
        )
    ]


def _instructions(first: str) -> int:
    """What the service executes for all streams, without its start and its end."""
    return _executed(first, EVENTS) - _executed(first, 0)


def _executed(first: str, events: int) -> int:
    return uvloop.run(_serve_streams(first, events))


async def _serve_streams(first: str, events: int) -> int:
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "config.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(_CONFIG.format(port=port))
        environ = {**os.environ, "FLEETGATE_CONFIG": config, "FLEETGATE_HOME": folder, "PYTHONHASHSEED": "0"}
        tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
        process = subprocess.Popen(
            [*tool, sys.executable, "-c", first + _SERVE],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            own = await asyncio.to_thread(_port_of, folder)
            # As many calls in both cases; where nothing is streamed, each has a single event.
            path = f"/bench/v1/stream/{max(events, 1)}/{PAUSE_MS}"
            clients, _ = await load(own, path, STREAMS, 1)
            failed = sum(each.failed for each in clients)
        finally:
            process.terminate()
            _, said = await asyncio.to_thread(process.communicate)
            server.close()
    found = _INSTRUCTIONS.search(said)
    if found is None or failed:
        raise NotHere(f"valgrind counted nothing, or {failed} streams failed: {said[-300:]}")
    return int((found[1] or found[2]).replace(",", ""))


def _port_of(folder: str) -> int:
    deadline = monotonic() + START_S
    while monotonic() < deadline:
        try:
            with open(os.path.join(folder, "serve.json"), encoding="utf-8") as file:
                return int(json.load(file)["port"])
        except (OSError, ValueError, KeyError):
            sleep(0.2)
    raise NotHere(f"the service did not start within {START_S:.0f} s")


if __name__ == "__main__":
    print(measure())
