"""The library in a strict program: warnings are errors, asyncio in debug mode, nothing left open (rules Y1, Q2)."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import fleetgate
from fleetgate.gate.wakeup import mailbox
from tests.library.helpers import CODER

OPENINGS = 200

STRICT = """
import asyncio, sys, threading
import fleetgate

store = sys.argv[1]

async def work(gate, number):
    try:
        async with gate.lease("umans/coder", timeout_s=5 if number % 2 else 0.02, project=str(number % 3)):
            await asyncio.sleep(0.005)
    except fleetgate.NotAdmitted:
        pass

async def main():
    async with fleetgate.open_gate(store) as gate, fleetgate.open_gate(store) as other:
        await gate.set_cap("umans", 2, cooldown_s=0.01)
        tasks = [asyncio.create_task(work(one, number)) for number in range(30) for one in (gate, other)]
        await asyncio.sleep(0.05)
        for task in tasks[::7]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stream = gate.events(since=0)
        await anext(stream)
        await stream.aclose()
        waiting = [asyncio.create_task(work(gate, 1)) for _ in range(4)]
        await asyncio.sleep(0)
    for end in await asyncio.gather(*waiting, return_exceptions=True):
        assert end is None or isinstance(end, fleetgate.FleetgateError), repr(end)

asyncio.run(main(), debug=True)

with fleetgate.sync.open_gate(store) as gate:
    threads = [threading.Thread(target=lambda: gate.lease("umans/coder").__enter__().release()) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_a_strict_program_sees_no_warning_and_no_complaint(store: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", STRICT, store],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONASYNCIODEBUG": "1"},
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if line and not _is_slowness(line)]
    assert (done.returncode, complaints) == (0, []), done.stderr


def _is_slowness(line: str) -> bool:
    """In debug mode asyncio names what took over 100 ms: on a busy machine that says nothing."""
    return line.startswith("Executing <") and "took" in line


async def test_openings_and_closings_leave_no_file_no_task_and_no_thread_behind(sqlite: str) -> None:
    async def once() -> None:
        async with fleetgate.open_gate(sqlite) as gate, gate.lease(CODER):
            pass

    async def until_alone() -> None:
        """Tasks that were told to end need a turn of the loop for it."""
        async with asyncio.timeout(60):
            while asyncio.all_tasks() != {asyncio.current_task()}:
                await asyncio.sleep(0.01)
        gc.collect()

    await once()
    await until_alone()
    files, threads = open_files(), threading.active_count()
    for _ in range(OPENINGS):
        await once()
    await until_alone()
    assert open_files() == files
    assert threading.active_count() == threads
    folder = Path(sqlite.removeprefix("sqlite://"))
    assert list(Path(mailbox.runtime_folder(str(folder))).iterdir()) == []


def test_openings_and_closings_of_the_other_face_leave_none_behind_either(sqlite: str) -> None:
    def once() -> None:
        with fleetgate.sync.open_gate(sqlite) as gate, gate.lease(CODER):
            pass

    once()
    gc.collect()
    files, threads = open_files(), threading.active_count()
    for _ in range(OPENINGS // 4):
        once()
    gc.collect()
    assert open_files() == files
    assert threading.active_count() == threads


async def test_openings_that_fail_leave_none_behind(tmp_path: Path) -> None:
    async def once() -> None:
        try:
            async with fleetgate.open_gate(f"sqlite://{tmp_path}/store") as gate:
                await gate.set_cap("umans", 0)
        except fleetgate.FleetgateError:
            return

    await once()
    files = open_files()
    for _ in range(20):
        await once()
    gc.collect()
    assert open_files() == files


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a Path for each would be an open file more
