"""The time that `fleetgate run` adds to a command, compared with a bare start of the same Python."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from time import perf_counter

from benchmarks.report import Row, percentile

ROUNDS = 40


def timed(argv: list[str], env: dict[str, str]) -> float:
    began = perf_counter()
    subprocess.run(argv, check=True, env=env)
    return (perf_counter() - began) * 1000


def measure() -> list[Row]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory(prefix="fg-") as folder:
        env |= {"FLEETGATE_HOME": folder, "XDG_CONFIG_HOME": folder}
        bare: list[float] = []
        msgspec: list[float] = []
        run: list[float] = []
        commands = (
            (bare, [sys.executable, "-c", "pass"]),
            (msgspec, [sys.executable, "-c", "import msgspec"]),
            (run, [os.path.join(os.path.dirname(sys.executable), "fleetgate"), "run", "-m", "x/y", "--", "true"]),
        )
        for _ in range(ROUNDS):  # in turn, so that noise meets all alike
            for took, argv in commands:
                took.append(timed(argv, env))
    base, imported, whole = percentile(bare, 0.5), percentile(msgspec, 0.5), percentile(run, 0.5)
    figure = f"{whole:.0f} ms, {whole / base:.1f} times"
    rest = f"`python3 -c pass`: {base:.0f} ms; with `import msgspec`: {imported:.0f} ms"
    return [Row("`fleetgate run -m x/y -- true`", figure, "at most 6 times `python3 -c pass`", rest)]
