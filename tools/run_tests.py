"""All tests but those of core, in three lanes at once: python tools/run_tests.py

Most of the time is spent waiting, for real processes and browsers, so two cores can do that. Each lane is a pytest of
its own; its output is shown when all have ended, and the exit code is the worst.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Folders of tests/; a third lane has the rest.
LANES = {"processes": ("processes",), "service": ("api", "dashboard", "proxy")}
LOOK_S = 15.0


def main(ignored: list[str]) -> int:
    """Run both lanes; `ignored` are what was run already."""
    folders = sorted(path.name for path in Path("tests").iterdir() if path.is_dir() and any(path.glob("test_*.py")))
    taken = [name for names in LANES.values() for name in names]
    rest = [name for name in folders if name not in taken]
    with tempfile.TemporaryDirectory() as scratch:
        lanes = [_Lane(scratch, name, [own for own in names if own in folders], []) for name, names in LANES.items()]
        lanes.append(_Lane(scratch, "the rest", rest, [f"--ignore={path}" for path in ignored]))
        return _run(lanes)


def _run(lanes: list[_Lane]) -> int:
    began = time.monotonic()
    try:
        while running := [lane for lane in lanes if lane.process.poll() is None]:
            _wait(running[0].process)
            now = time.monotonic() - began
            print(f"{now:4.0f} s: {', '.join(lane.progress() for lane in lanes)}", flush=True)
    except KeyboardInterrupt:
        for lane in lanes:
            lane.process.terminate()
    for lane in lanes:
        print(f"\n=== {lane.name}: {' '.join(lane.folders)}\n{lane.output()}", flush=True)
    return max(lane.process.wait() for lane in lanes)


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(LOOK_S)
    except subprocess.TimeoutExpired:
        return


class _Lane:
    def __init__(self, scratch: str, name: str, folders: list[str], options: list[str]) -> None:
        self.name = name
        self.folders = [f"tests/{folder}" for folder in folders]
        self._path = Path(scratch) / name
        argv = [sys.executable, "-m", "pytest", *self.folders, *options, "--durations=12"]
        with self._path.open("wb") as file:
            self.process = subprocess.Popen(argv, stdout=file, stderr=subprocess.STDOUT)

    def output(self) -> str:
        return self._path.read_text(errors="replace")

    def progress(self) -> str:
        if self.process.poll() is not None:
            return f"{self.name} ended with {self.process.returncode}"
        percents = re.findall(r"\[ *([0-9]+)%\]", self.output())
        return f"{self.name} {percents[-1] if percents else 0}%"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
