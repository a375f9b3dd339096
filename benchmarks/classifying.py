"""What reading an agent's output costs: 100 MB of its records through a pipe, with a `Reader` beside the copying and
without one.

Two children: one that writes blocks that are ready made, as fast as a pipe takes them (the hardest case for whoever
stands between), and one that makes each record and writes it at once, as an agent does. On a machine that is busy with
other things, look at the processor time: the rest is chance.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter, process_time

from benchmarks.report import Row
from headgate.signals.agents import agent_for
from headgate.signals.process import Reader

MB = 100
BLOCK = 65_536
ROUNDS = 9
ARGV = ["opencode", "run", "-m", "umans/coder", "--format", "json", "go"]

_RECORD = r"""
import json, os
words = "HTTP 429 Too Many Requests: rate limit exceeded, said \"the\" {tool}\n" * 8
def record(number):
    state = {"status": "completed", "input": {"command": "cat notes.txt"}, "output": words[: number % 500 + 20]}
    part = {"id": f"prt_{number:08}", "type": "tool", "tool": "bash", "state": state}
    return json.dumps({"type": "tool_use", "timestamp": 1794774667670 + number, "sessionID": "ses_1", "part": part},
                      separators=(",", ":")).encode() + b"\n"
"""
READY_MADE = (
    _RECORD
    + f"""
ready = b"".join(record(number) for number in range(4000))
left = {MB} * 1_000_000
while left > 0:
    for at in range(0, len(ready), {BLOCK}):
        left -= os.write(1, ready[at : at + {BLOCK}])
"""
)
MADE_ONE_BY_ONE = (
    _RECORD
    + f"""
left, number = {MB} * 1_000_000, 0
while left > 0:
    left -= os.write(1, record(number))
    number += 1
"""
)


def pass_through(child: str, feed: Callable[[int, bytes], None] | None) -> tuple[float, float]:
    """Seconds from the first byte to the last, and seconds of our own processor time."""
    sink = os.open(os.devnull, os.O_WRONLY)
    with subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        source = process.stdout.fileno()
        data = os.read(source, BLOCK)
        began, worked = perf_counter(), process_time()
        while data:
            os.write(sink, data)  # first: nobody waits for the reading
            if feed is not None:
                feed(1, data)
            data = os.read(source, BLOCK)
        took = perf_counter() - began, process_time() - worked
    os.close(sink)
    return took


def compare(child: str) -> tuple[float, float, float, float]:
    """The best of several rounds, in turn: seconds without and with, our processor seconds without and with."""
    bare, read = [], []
    for _ in range(ROUNDS):
        bare.append(pass_through(child, None))
        reader = Reader(agent_for(ARGV), ARGV, lambda: 0)
        read.append(pass_through(child, reader.feed))
        if reader.judge(0, None).kind != "ok":
            raise AssertionError(repr(reader))
    return (
        min(took for took, _ in bare),
        min(took for took, _ in read),
        min(worked for _, worked in bare),
        min(worked for _, worked in read),
    )


def judging() -> float:
    """Seconds to read the end of a long output, when the process has ended."""
    state = {"status": "completed", "output": "word " * 60}
    record = json.dumps({"type": "tool_use", "sessionID": "ses_1", "part": {"state": state}}, separators=(",", ":"))
    reader = Reader(agent_for(ARGV), ARGV, lambda: 0)
    reader.feed(1, (record.encode() + b"\n") * 6000)
    began = perf_counter()
    reader.judge(1, None)
    return perf_counter() - began


def measure() -> list[Row]:
    rows = []
    for what, child in (("ready made", READY_MADE), ("made one by one", MADE_ONE_BY_ONE)):
        bare, read, bare_cpu, read_cpu = compare(child)
        figure = f"{MB / read:.0f} MB/s, {100 * (bare / read - 1):+.1f} %; {read_cpu * 1000:.0f} ms of processor"
        baseline = f"copying alone: {MB / bare:.0f} MB/s; {bare_cpu * 1000:.0f} ms of processor"
        rows.append(Row(f"reading {MB} MB of JSON lines, {what}", figure, "under 5 % of the throughput", baseline))
    rows.append(Row("judging the end of a long output", f"{judging() * 1000:.1f} ms", "", ""))
    return rows
