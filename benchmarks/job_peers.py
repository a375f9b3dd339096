"""Job queues to compare with: task-spooler (`tsp`) and huey on SQLite, each used as its documentation says.

All run the same job, which records when it started: `sh -c 'date +%s%N >> FILE'`. They do less: tsp keeps its queue in
memory only, huey runs functions of a program that it imports, and neither has caps that others share. A sentence names
what is not installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from time import perf_counter, sleep, time_ns
from typing import NamedTuple

HANDS = 4

TASKS = """
import subprocess
from huey import SqliteHuey
huey = SqliteHuey(filename={path!r}, fsync=True)
@huey.task()
def run(argv): subprocess.run(argv)
@huey.task()
def nothing(): pass
"""


class Peer(NamedTuple):
    name: str
    a_second: float  # submitted one by one
    starts_ms: list[float]


def stamping(folder: str) -> tuple[list[str], Callable[[int], float]]:
    """A job that writes down when it started, and how to wait for the n-th of them."""
    path = f"{folder}/started"
    with open(path, "w"):
        pass

    def started_ms(number: int) -> float:
        while True:
            with open(path) as file:
                lines = file.read().split()
            if len(lines) >= number:
                return int(lines[number - 1]) / 1e6
            sleep(0.002)

    return ["sh", "-c", f"date +%s%N >> {path}"], started_ms


def starts(submit: Callable[[list[str]], None], folder: str, times: int) -> list[float]:
    """From the call of submit to the job's own first look at the clock."""
    argv, started_ms = stamping(folder)
    found = []
    for number in range(1, times + 4):
        began = time_ns() / 1e6
        submit(argv)
        found.append(started_ms(number) - began)
        sleep(0.05)
    return found[3:]


def task_spooler(folder: str, alone: int, times: int) -> Peer | str:
    program = shutil.which("tsp")
    if program is None:
        return "task-spooler is not installed (Debian: apt install task-spooler)"
    env = {**os.environ, "TS_SOCKET": f"{folder}/ts.socket", "TMPDIR": folder}

    def call(*argv: str) -> None:
        subprocess.run([program, *argv], env=env, stdout=subprocess.DEVNULL, check=True)

    try:
        call("-S", str(HANDS))
        found = starts(lambda argv: call("-n", *argv), folder, times)
        began = perf_counter()
        for _ in range(alone):
            call("-n", "true")
        rate = alone / (perf_counter() - began)
    finally:
        subprocess.run([program, "-K"], env=env, check=False)
    return Peer("task-spooler, a process for each", rate, found)


def huey(folder: str, alone: int, times: int) -> Peer | str:
    if find_spec("huey") is None:
        return "huey is not installed (tools/bootstrap dev,bench)"
    path = f"{folder}/huey.db"
    with open(f"{folder}/fleetgate_bench_tasks.py", "w") as file:
        file.write(TASKS.format(path=path))
    sys.path.insert(0, folder)
    try:
        import fleetgate_bench_tasks as tasks  # type: ignore[import-not-found]
    finally:
        sys.path.remove(folder)
    began = perf_counter()
    for _ in range(alone):
        tasks.nothing()
    rate = alone / (perf_counter() - began)
    tasks.huey.flush()
    consumer = f"{os.path.dirname(sys.executable)}/huey_consumer"
    command = [consumer, "fleetgate_bench_tasks.huey", "-w", str(HANDS), "-k", "process", "-q"]
    env = {**os.environ, "PYTHONPATH": folder}
    with subprocess.Popen(command, env=env, cwd=folder, stderr=subprocess.DEVNULL) as process:
        try:
            return Peer("huey on SQLite, fsync", rate, starts(lambda argv: tasks.run(argv), folder, times))
        finally:
            process.terminate()
