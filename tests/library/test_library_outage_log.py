"""An outage of the store is one warning of the logger `fleetgate`, and its end is another."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fleetgate.api.events.feed import Feed
from fleetgate.api.metrics import time_series
from fleetgate.api.metrics.time_series import Series
from fleetgate.cli.log_output import log_to_stderr
from fleetgate.gate.library import background_tasks
from fleetgate.gate.library.gate import Gate
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.node import node as node_module
from fleetgate.gate.node.node import Node
from fleetgate.gate.outage_log import OutageLog, Trouble, logger
from fleetgate.gate.serving import client_renewals
from fleetgate.gate.serving.client_renewals import ClientRenewals
from fleetgate.gate.serving.service_gate import ServiceGate
from fleetgate.log.memory import MemoryLog
from fleetgate.log.protocol import Commit, Position, StoreError
from tests.library.helpers import CODER, in_queue, until


class BrokenLog(MemoryLog):
    """A log that cannot be read while `broken`."""

    broken = False
    failures = 0
    reads = 0

    def read(self, after: Position, limit: int = 10_000) -> list[Commit]:
        if self.broken:
            self.failures += 1
            raise StoreError("the disk is gone")
        self.reads += 1
        return super().read(after, limit)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_tasks, "POLL_S", 0.01)
    monkeypatch.setattr(background_tasks, "UPKEEP_S", 0.01)
    monkeypatch.setattr(client_renewals, "SWEEP_S", 0.01)
    monkeypatch.setattr(node_module, "LOOK_S", 0.01)
    monkeypatch.setattr(time_series, "STEP_S", 0.01)


def sentences(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "fleetgate"]


async def breaks_and_works_again(log: BrokenLog, caplog: pytest.LogCaptureFixture) -> None:
    log.broken = True
    await until(lambda: log.failures >= 10)
    assert sentences(caplog) == ["the store cannot be used: the disk is gone"]
    log.broken = False
    await until(lambda: len(sentences(caplog)) > 1)
    reads = log.reads
    await until(lambda: log.reads >= reads + 5)
    assert len(sentences(caplog)) == 2
    assert sentences(caplog)[1].startswith("the store works again, after ")
    assert {record.levelno for record in caplog.records if record.name == "fleetgate"} == {logging.WARNING}


async def test_a_gate_that_waits_warns_once_for_an_outage_and_once_for_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = BrokenLog()
    async with Gate(GateCore(log)) as gate:
        await gate.set_cap("umans", 1)
        async with gate.lease(CODER):
            waiter = asyncio.create_task(gate.lease(CODER).acquire())
            await in_queue(gate, 1)
            await breaks_and_works_again(log, caplog)
            waiter.cancel()


async def _renewals(core: GateCore) -> None:
    clients = ClientRenewals(ServiceGate(core))
    await clients.start()
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await clients.stop()


async def _node(core: GateCore) -> None:
    await Node(core).look_after_host()


async def _series(core: GateCore) -> None:
    gate = ServiceGate(core)
    await Series(gate, Feed(gate), "").run()


@pytest.mark.parametrize("work", [_renewals, _node, _series])
async def test_background_work_of_a_service_warns_once_for_an_outage_and_once_for_its_end(
    work: Callable[[GateCore], Coroutine[Any, Any, None]], caplog: pytest.LogCaptureFixture
) -> None:
    log = BrokenLog()
    async with GateCore(log) as core:
        task = asyncio.create_task(work(core))
        reads = log.reads
        await until(lambda: log.reads >= reads + 5)
        await breaks_and_works_again(log, caplog)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_an_outage_lasts_until_all_work_succeeds_again(caplog: pytest.LogCaptureFixture) -> None:
    outage = OutageLog()
    outage.worked("reads")
    outage.failed("reads", StoreError("away"))
    outage.failed("beats", StoreError("still away"))
    outage.worked("reads")
    assert sentences(caplog) == ["the store cannot be used: away"]
    outage.worked("beats")
    assert sentences(caplog) == ["the store cannot be used: away", "the store works again, after 0 s"]
    outage.failed("beats", TimeoutError())
    assert sentences(caplog)[2:] == ["the store cannot be used: TimeoutError"]


def test_warnings_are_on_stderr_as_text_or_json(capfd: pytest.CaptureFixture[str]) -> None:
    log = logger()
    before = log.handlers[:], log.propagate, log.level
    try:
        say = log_to_stderr()
        say("begins")
        OutageLog().failed("reads", StoreError("100% full\x1b"))
        text = capfd.readouterr().err
        log_to_stderr("json")("begins")
        OutageLog().failed("reads", StoreError("100% full"))
        lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    finally:
        log.handlers[:], log.propagate = before[:2]
        log.setLevel(before[2])
    assert text.splitlines()[0] == "fleetgate: begins"
    assert text.splitlines()[1].startswith("fleetgate: the store cannot be used: 100% full")
    assert "\x1b" not in text
    assert [(line["level"], line["message"]) for line in lines] == [
        ("info", "begins"),
        ("warning", "the store cannot be used: 100% full"),
    ]
    assert all(line["pid"] == os.getpid() and line["time"].endswith("Z") for line in lines)


def fleetgate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FLEETGATE_STORE": f"sqlite://{folder}/store", "HOME": str(folder)}
    command = [sys.executable, "-m", "fleetgate", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_node_writes_json_on_request(tmp_path: Path) -> None:
    done = fleetgate(tmp_path, "node", "--idle", "100ms", "--log-format", "json")
    messages = [json.loads(line)["message"] for line in done.stderr.splitlines()]
    assert done.returncode == 0
    assert "listens at" in messages[0]


def test_the_verbose_option_is_of_every_command(tmp_path: Path) -> None:
    done = fleetgate(tmp_path, "-v", "status")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_verbose_option_shows_the_steps_of_a_run(tmp_path: Path) -> None:
    done = fleetgate(tmp_path, "-v", "run", "-m", "umans/coder", "--", "sh", "-c", "exit 3")
    steps = [line.split(": ", 2)[2] for line in done.stderr.splitlines()]
    assert done.returncode == 3
    assert steps[0] == "requested a slot for umans/coder"
    assert steps[1].startswith("granted umans/coder after 0.")
    assert steps[2].startswith("started process ")
    assert steps[2].endswith(": sh -c exit 3")
    assert steps[3:] == ["ended with exit code 3"]
    ids = {line.split(": ", 2)[1] for line in done.stderr.splitlines()}
    assert len(ids) == 1


def test_a_run_without_the_verbose_option_shows_no_steps(tmp_path: Path) -> None:
    done = fleetgate(tmp_path, "run", "-m", "umans/coder", "--", "true")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_loop_that_tries_again_says_each_problem_once_until_it_works_again() -> None:
    said: list[str] = []
    trouble = Trouble(said.append)
    for error in ("disk full", "disk full", "locked", "disk full"):
        trouble.failed(StoreError(error))
    assert said == ["disk full (still trying)", "locked (still trying)"]
    trouble.worked()
    trouble.failed(StoreError("disk full"))
    assert said[2:] == ["disk full (still trying)"]


def test_run_starts_without_logging() -> None:
    program = (
        "import sys\n"
        "import fleetgate.cli.main, fleetgate.cli.commands.run, fleetgate.gate.slots.direct_gate\n"
        "import fleetgate.gate.outage_log, fleetgate.cli.run.acquire_slot\n"
        "print('logging' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
