"""100 MB of JSON lines from a child through the runner, compared with the same child at a bare pipe."""

from __future__ import annotations

import os
import resource
import sys
from time import perf_counter

from benchmarks.report import Row, percentile

SIZE_MB = 100
ROUNDS = 7

WRITER = f"""
import os
line = b'{{"type":"text","part":{{"text":"' + b"x" * 160 + b'"}}}}\\n'
block = line * (65536 // len(line))
left = {SIZE_MB} * 1_000_000
while left > 0:
    left -= os.write(1, block[:left])
"""

WRAPPER = """
import os, sys
from fleetgate.runner.child import Child, tappable
from fleetgate.runner.supervisor import supervise
child = Child.prepare(sys.argv[1:], os.environ, own_group=True, taps=tappable())
child.start()
sys.exit(supervise(child, on_bytes=lambda stream, data: None).code)
"""

ECHO = """
import os
print("ready", flush=True)
for _ in range(1000):
    os.write(1, os.read(0, 100))
"""


def rate(argv: list[str]) -> tuple[float, float]:
    """MB a second that come out of a command from its first byte on, and seconds of processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    read_fd, write_fd = os.pipe()
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, write_fd, 1)])
    os.close(write_fd)
    size = len(os.read(read_fd, 1))
    began = perf_counter()
    while data := os.read(read_fd, 262_144):
        size += len(data)
    took = perf_counter() - began
    os.close(read_fd)
    _, status = os.waitpid(pid, 0)
    if status or size != SIZE_MB * 1_000_000:
        raise RuntimeError(f"{argv[:1]} wrote {size} bytes and ended with {status}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return SIZE_MB / took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def echoes_ms(argv: list[str]) -> list[float]:
    """How long a line takes to a child that answers at once, and back."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    dup2 = os.POSIX_SPAWN_DUP2
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=[(dup2, to_read, 0), (dup2, from_write, 1)])
    os.close(to_read)
    os.close(from_write)
    os.read(from_read, 100)
    took = []
    for _ in range(1000):
        began = perf_counter()
        os.write(to_write, b"line\n")
        os.read(from_read, 100)
        took.append((perf_counter() - began) * 1000)
    os.close(to_write)
    os.close(from_read)
    os.waitpid(pid, 0)
    return took


def measure() -> list[Row]:
    writer, echo = [sys.executable, "-c", WRITER], [sys.executable, "-c", ECHO]
    wrapper = [sys.executable, "-c", WRAPPER]
    bare, tapped = [], []
    for _ in range(ROUNDS):  # in turn, so that noise meets both alike
        bare.append(rate(writer))
        tapped.append(rate([*wrapper, *writer]))
    direct, passed = echoes_ms(echo), echoes_ms([*wrapper, *echo])
    best, base = max(tapped), max(bare)
    middle = percentile([one for one, _ in tapped], 0.5)
    figure = f"best {best[0]:,.0f}, median {middle:,.0f} MB/s, {min(cpu for _, cpu in tapped):.2f} s of processor"
    middle = percentile([one for one, _ in bare], 0.5)
    baseline = f"best {base[0]:,.0f}, median {middle:,.0f} MB/s, {min(cpu for _, cpu in bare):.2f} s of processor"
    late = f"p50 {percentile(passed, 0.5):.3f}, p99 {percentile(passed, 0.99):.3f} ms"
    straight = f"p50 {percentile(direct, 0.5):.3f}, p99 {percentile(direct, 0.99):.3f} ms"
    return [
        Row(f"{SIZE_MB} MB of lines through a tap", figure, "300 MB/s", f"a bare pipe: {baseline}"),
        Row("a line to a tapped child and back", late, "p99 under 5 ms", f"a bare pipe: {straight}"),
    ]


if __name__ == "__main__":
    for row in measure():
        print(row.what, "|", row.figure, "|", row.baseline)
