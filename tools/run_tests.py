"""`make check` and all tests, in lanes at once: python tools/run_tests.py

Each lane waits a good part of its time for real processes and browsers, so two cores can do seven of them. A lane is
one command after another; its output is shown when it has ended, and if one fails, so does this. At the end it is told
what each took: what counts is the processor time of all together, and that no lane is left alone in the end.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Thread

CORE = ("tests/golden", "tests/unit/test_core_*.py")
# What each lane runs, of tests/; a last lane has the rest.
LANES = {
    "processes": ("processes/test_run*.py", "processes/test_jobs_*.py", "processes/test_[st]*.py"),
    "hosts": ("processes/*.py",),
    "service": ("api",),
    "proxy": ("proxy", "library"),
}
AFTER_CORE = ("processes/test_[a-i]*.py",)
# On the core as it is installed, compiled where there is a C compiler; the other lanes run the sources.
ON_COMPILED = ("golden", "property/test_core_*.py", "simulation")
LOOK_S = 15.0
PYTEST = (sys.executable, "-m", "pytest", "--durations=12")


def main() -> int:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # every process would compile all that it imports anew
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where this was started in the background
    core = _found(CORE, set())
    taken = {*core, *map(str, Path("tests/agents").glob("test_*.py"))}  # the latter: `make agents`
    compiled = _found((f"tests/{each}" for each in ON_COMPILED), set())
    taken.update(compiled)
    installed = ["env", f"PYTHONPATH={Path('build/compiled').absolute()}", *PYTEST, "tests/unit/test_core_compiled.py"]
    after_core = _found((f"tests/{each}" for each in AFTER_CORE), taken)
    commands = {"check and core": [["make", "check"], [*PYTEST, *core, "--cov"], [*PYTEST, *after_core]]}
    commands["compiled"] = [["sh", "tools/compiled"], [*installed, *compiled]]
    for name, parts in LANES.items():
        commands[name] = [[*PYTEST, *_found((f"tests/{each}" for each in parts), taken)]]
    commands["the rest"] = [[*PYTEST, *_found(("tests/*",), taken)]]
    with tempfile.TemporaryDirectory() as scratch:
        return _run([_Lane(scratch, name, each) for name, each in commands.items()])


def _found(patterns: Iterable[str], taken: set[str]) -> list[str]:
    """The files of tests that these name, and that nobody has taken yet."""
    found: list[str] = []
    for pattern in patterns:
        for path in sorted(Path().glob(pattern)):
            files = sorted(path.glob("**/test_*.py")) if path.is_dir() else [path]
            found += [str(each) for each in files if each.name.startswith("test_") and str(each) not in taken]
        taken.update(found)
    return found


def _run(lanes: list[_Lane]) -> int:
    began = time.monotonic()
    shown: set[str] = set()
    try:
        while running := [lane for lane in lanes if lane.is_alive()]:
            running[0].join(LOOK_S)
            for lane in lanes:
                if not lane.is_alive() and lane.name not in shown:
                    shown.add(lane.name)
                    print(f"\n=== {lane.name}\n{lane.output()}", flush=True)
            now = time.monotonic() - began
            print(f"{now:4.0f} s: {', '.join(lane.progress() for lane in lanes)}", flush=True)
    except KeyboardInterrupt:
        for lane in lanes:
            lane.stop()
    for lane in lanes:
        print(f"{lane.name}: {lane.took_s:.0f} s, {lane.cpu_s:.0f} s of processor time")
    return int(any(lane.code for lane in lanes))  # also one that was killed, whose code is negative


class _Lane(Thread):
    def __init__(self, scratch: str, name: str, commands: list[list[str]]) -> None:
        super().__init__(name=name)
        self.code = 0
        self.took_s = self.cpu_s = 0.0
        self._commands = commands
        self._path = Path(scratch) / name
        self._path.touch()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def run(self) -> None:
        began = time.monotonic()
        with self._path.open("ab") as file:
            for argv in self._commands:
                self._process = subprocess.Popen(argv, stdout=file, stderr=subprocess.STDOUT)
                _, status, used = os.wait4(self._process.pid, 0)
                self.code = self._process.returncode = os.waitstatus_to_exitcode(status)
                self.took_s = time.monotonic() - began
                self.cpu_s += used.ru_utime + used.ru_stime
                if self.code:
                    return

    def stop(self) -> None:
        self._commands = []
        if self._process is not None and self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGTERM)

    def output(self) -> str:
        return self._path.read_text(errors="replace")

    def progress(self) -> str:
        if not self.is_alive():
            return f"{self.name} ended with {self.code}"
        percents = re.findall(r"\[ *([0-9]+)%\]", self.output())
        return f"{self.name} {percents[-1] if percents else 0}%"


if __name__ == "__main__":
    sys.exit(main())
