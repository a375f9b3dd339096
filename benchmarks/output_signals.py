"""The cost of reading an agent's output: 100 MB of records through a pipe, copied with and without a `Reader`, and the
whole way through the runner compared with a bare pipe.

There are three children. One writes prepared blocks as fast as the pipe takes them, which is the hardest case for the
process between. One makes each record and writes it at once, as an agent does. One prints records through a buffer. On
a busy machine, look at the medians and the processor time: the other figures vary too much.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter, process_time

from benchmarks.report import Row, percentile
from fleetgate.signals.agents import agent_for
from fleetgate.signals.classify_process import Reader

MB = 100
BLOCK = 65_536
ROUNDS = 3
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
PRINTED = (
    _RECORD
    + f"""
import sys
left, number = {MB} * 1_000_000, 0
while left > 0:
    left -= sys.stdout.buffer.write(record(number))
    number += 1
"""
)
# `fleetgate run` from the start of the child to its end, without the gate.
RUNNER = f"""
import os, sys
from fleetgate.runner.child import Child, tappable
from fleetgate.runner.early_stop import EarlyStop
from fleetgate.runner.supervisor import supervise
from fleetgate.signals.agents import agent_for
from fleetgate.signals.classify_process import Reader
read, argv = sys.argv[1], sys.argv[2:]
child = Child.prepare(argv, os.environ, own_group=True, taps=tappable())
reader = Reader(agent_for({ARGV!r}), {ARGV!r}, lambda: 0)
child.start()
end = supervise(child, on_bytes=reader.feed, ends=EarlyStop(reader)) if read else supervise(child)
sys.exit(end.code or int(bool(read) and reader.judge(0, None).kind != "ok"))
"""


def pass_through(child: str, feed: Callable[[int, bytes], None] | None) -> tuple[float, float]:
    """Seconds from the first byte to the last, and seconds of our own processor time."""
    sink = os.open(os.devnull, os.O_WRONLY)
    with subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        source = process.stdout.fileno()
        data = os.read(source, BLOCK)
        began, worked = perf_counter(), process_time()
        while data:
            os.write(sink, data)  # first: the copy does not wait for the reader
            if feed is not None:
                feed(1, data)
            data = os.read(source, BLOCK)
        took = perf_counter() - began, process_time() - worked
    os.close(sink)
    return took


def come_out(argv: list[str]) -> tuple[float, float]:
    """Seconds from the first byte of a command to the last, and seconds of processor time that it took in all."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        source = process.stdout.fileno()
        os.read(source, BLOCK)
        began = perf_counter()
        while os.read(source, BLOCK):
            pass
        took = perf_counter() - began
    if process.returncode:
        raise AssertionError(f"ended with {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def through_the_runner(child: str) -> Row:
    """The child under the runner, which reads its records; under one that only passes them on; and alone; in turn."""
    alone = [sys.executable, "-c", child]
    ways = (alone, [sys.executable, "-c", RUNNER, "", *alone], [sys.executable, "-c", RUNNER, "read", *alone])
    rounds = [[come_out(way) for way in ways] for _ in range(ROUNDS)]
    bare, passed, read = (min(one[number][0] for one in rounds) for number in range(3))
    bare_cpu, passed_cpu, read_cpu = (min(one[number][1] for one in rounds) for number in range(3))
    middle = percentile([one[1][0] / one[2][0] for one in rounds], 0.5)
    return Row(
        f"{MB} MB of JSON lines, printed, through the runner",
        f"best {MB / read:.1f} MB/s, {100 * (passed / read - 1):+.1f} %, median {100 * (middle - 1):+.1f} %; "
        f"{read_cpu:.2f} s of processor",
        "under 5 % of the throughput",
        f"passed on unread: best {MB / passed:.1f} MB/s; {passed_cpu:.2f} s of processor; "
        f"the child at a bare pipe: best {MB / bare:.1f} MB/s; {bare_cpu:.2f} s",
    )


def compare(child: str) -> tuple[float, float, float, float, float]:
    """The best of several rounds, in turn: seconds without and with, our processor seconds without and with; and the
    median of the rates with, in rates without."""
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
        percentile([one[0] / two[0] for one, two in zip(bare, read, strict=True)], 0.5),
    )


def share(child: str) -> float:
    """How much of the time from the first byte to the last is spent reading: the median of several rounds.

    Whatever else the machine does slows both alike, so this holds on a busy one too.
    """
    shares = []
    for _ in range(ROUNDS):
        reader, spent = Reader(agent_for(ARGV), ARGV, lambda: 0), 0.0

        def timed(stream: int, data: bytes, feed: Callable[[int, bytes], None] = reader.feed) -> None:
            nonlocal spent
            began = perf_counter()
            feed(stream, data)
            spent += perf_counter() - began

        took, _ = pass_through(child, timed)
        shares.append(spent / took)
    return percentile(shares, 0.5)


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
        bare, read, bare_cpu, read_cpu, middle = compare(child)
        figure = f"best {MB / read:.0f} MB/s, {100 * (bare / read - 1):+.1f} %, median {100 * (middle - 1):+.1f} %"
        figure += f"; {read_cpu * 1000:.0f} ms of processor; {100 * share(child):.1f} % of the time is reading"
        baseline = f"copying alone: best {MB / bare:.0f} MB/s; {bare_cpu * 1000:.0f} ms of processor"
        rows.append(Row(f"reading {MB} MB of JSON lines, {what}", figure, "under 5 % of the throughput", baseline))
    rows.append(through_the_runner(PRINTED))
    rows.append(Row("judging the end of a long output", f"{judging() * 1000:.1f} ms", "", ""))
    return rows
