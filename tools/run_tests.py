"""`make check` and all tests, in lanes at once: python tools/run_tests.py

Most of the time is spent waiting, for real processes and browsers, so two cores can do that. A lane is one command
after another; its output is shown when it has ended, and the exit code is the worst.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Thread

CORE = ["tests/golden", *sorted(str(path) for path in Path("tests/unit").glob("test_core_*.py"))]
# Folders of tests/; a last lane has the rest.
LANES = {
    "processes": ("processes",),
    "service": ("api", "dashboard"),
    "proxy": ("proxy", "simulation"),
}
LOOK_S = 15.0
PYTEST = (sys.executable, "-m", "pytest", "--durations=12")


def main() -> int:
    folders = sorted(path.name for path in Path("tests").iterdir() if path.is_dir() and any(path.glob("test_*.py")))
    taken = [name for names in LANES.values() for name in names]
    rest = [name for name in folders if name not in (*taken, "golden")]
    ignored = [f"--ignore={path}" for path in CORE]
    with tempfile.TemporaryDirectory() as scratch:
        core = [["make", "check"], [sys.executable, "-m", "pytest", *CORE, "--cov"]]
        lanes = [_Lane(scratch, "check and core", core)]
        for name, names in LANES.items():
            lanes.append(_Lane(scratch, name, [[*PYTEST, *_paths(own for own in names if own in folders)]]))
        lanes.append(_Lane(scratch, "the rest", [[*PYTEST, *_paths(rest), *ignored]]))
        return _run(lanes)


def _paths(folders: Iterable[str]) -> list[str]:
    return [f"tests/{folder}" for folder in folders]


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
    return max(lane.code for lane in lanes)


class _Lane(Thread):
    def __init__(self, scratch: str, name: str, commands: list[list[str]]) -> None:
        super().__init__(name=name)
        self.code = 0
        self._commands = commands
        self._path = Path(scratch) / name
        self._path.touch()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def run(self) -> None:
        with self._path.open("ab") as file:
            for argv in self._commands:
                self._process = subprocess.Popen(argv, stdout=file, stderr=subprocess.STDOUT)
                self.code = self._process.wait()
                if self.code:
                    return

    def stop(self) -> None:
        self._commands = []
        if self._process is not None:
            self._process.terminate()

    def output(self) -> str:
        return self._path.read_text(errors="replace")

    def progress(self) -> str:
        if not self.is_alive():
            return f"{self.name} ended with {self.code}"
        percents = re.findall(r"\[ *([0-9]+)%\]", self.output())
        return f"{self.name} {percents[-1] if percents else 0}%"


if __name__ == "__main__":
    sys.exit(main())
