"""The whole test run, `make check` and every test, in several lanes at once: python tools/run_tests.py

Each lane spends much of its time waiting for real processes and browsers, so two cores can serve all lanes together. A
lane runs its commands one after the other and shows its output when it has ended.

A test that fails while everything runs at once may have failed because the machine was too slow for it. When all lanes
have ended and at most three tests have failed, those tests run once more, one after the other, with nothing else
running. If all of them pass, the run passes, and its last lines name them: "failed under load, passed alone". With more
than three failures, or if anything else fails (lint, types, coverage, a crash of pytest), the run fails.

At the end each lane shows what it took. What counts is the processor time of all lanes together, and that all lanes end
at about the same time.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

CORE = ("tests/golden", "tests/unit/test_core_*.py")
# The tests of each lane, as patterns below tests/, without those of an earlier lane; a last lane runs all other tests.
LANES = {
    "runs": ("processes/test_run_*.py", "processes/test_[st]*.py"),
    "service": ("api", "processes/test_jobs*.py"),
    "security": ("security", "library", "processes/test_runner_*.py"),
    "proxy": ("proxy",),
    "hosts": ("processes",),
    "pages": ("dashboard", "docs"),
}
AFTER_CORE = ("processes/test_[a-i]*.py",)
# These run on the core as it is installed, compiled where there is a C compiler; all other tests run the sources.
ON_COMPILED = ("golden", "property/test_core_*.py", "simulation")
# These run on both: types that do not matter to the sources matter to compiled code.
ALSO_ON_COMPILED = (
    "front/test_co*.py",
    "proxy/test_attempts.py",
    "proxy/test_faults.py",
    "proxy/test_http_client_connection.py",
    "proxy/test_out*.py",
    "proxy/test_pass_through.py",
    "proxy/test_store_trouble.py",
    "proxy/test_unusual_requests.py",
)
PROGRESS_S = 15.0
MOST_RETRIED = 3
PYTEST = (sys.executable, "-m", "pytest", "--durations=12")
TESTS_FAILED = 1  # pytest's exit code when all tests ran and some failed


@dataclass(frozen=True)
class Command:
    """One command of a lane. Tests of a command that are `retried` may fail under load; others must pass at once."""

    argv: tuple[str, ...]
    tests: tuple[str, ...] = ()
    retried: bool = False


def main() -> int:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every process would compile again what it imports
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if this was started in the background
    return run_lanes(_lanes())


def _lanes() -> dict[str, list[Command]]:
    core = _find(CORE, set())
    apart = [*Path("tests/agents").glob("test_*.py"), *Path("tests/newcomer").glob("test_*.py")]  # they load much
    taken = {*core, *map(str, apart)}  # `make agents` and `make newcomer` run those
    compiled = _find(_below_tests(ON_COMPILED), set())
    taken.update(compiled)
    compiled += _find(_below_tests(ALSO_ON_COMPILED), set())
    on_compiled = ("env", f"PYTHONPATH={Path('build/compiled').absolute()}", *PYTEST)
    lanes = {
        "check and core": [
            Command(("make", "check")),
            Command((*PYTEST, "--cov"), core),  # not retried: the tests of the core do not depend on time
            Command(PYTEST, _find(_below_tests(AFTER_CORE), taken), retried=True),
        ],
        "compiled": [
            Command(("sh", "tools/compiled")),
            Command(on_compiled, ("tests/unit/test_core_compiled.py", *compiled), retried=True),
        ],
    }
    for name, patterns in LANES.items():
        lanes[name] = [Command(PYTEST, _find(_below_tests(patterns), taken), retried=True)]
    lanes["the rest"] = [Command(PYTEST, _find(("tests/*",), taken), retried=True)]
    return lanes


def _below_tests(patterns: Iterable[str]) -> list[str]:
    return [f"tests/{pattern}" for pattern in patterns]


def _find(patterns: Iterable[str], taken: set[str]) -> tuple[str, ...]:
    """The test files that match these patterns and that no other lane has taken yet."""
    found: list[str] = []
    for pattern in patterns:
        for path in sorted(Path().glob(pattern)):
            files = sorted(path.glob("**/test_*.py")) if path.is_dir() else [path]
            found += [str(each) for each in files if each.name.startswith("test_") and str(each) not in taken]
        taken.update(found)
    return tuple(found)


def run_lanes(commands: dict[str, list[Command]]) -> int:
    """Run all lanes at once, then the tests that failed under load; the exit code."""
    with tempfile.TemporaryDirectory() as scratch:
        lanes = [_Lane(Path(scratch) / str(number), *each) for number, each in enumerate(commands.items())]
        try:
            _watch(lanes)
        except KeyboardInterrupt:
            for lane in lanes:
                lane.stop()
            return 1
        for lane in lanes:
            print(f"{lane.name}: {lane.took_s:.0f} s, {lane.cpu_s:.0f} s of processor time")
        return _judge(lanes)


def _watch(lanes: list[_Lane]) -> None:
    """Show the progress of all lanes, and the output of each lane that has ended."""
    began = time.monotonic()
    shown: set[str] = set()
    while len(shown) < len(lanes):
        for lane in lanes:
            if lane.is_alive():
                lane.join(PROGRESS_S)
                break
        for lane in lanes:
            if not lane.is_alive() and lane.name not in shown:
                shown.add(lane.name)
                print(f"\n=== {lane.name}\n{lane.output()}", flush=True)
        now = time.monotonic() - began
        print(f"{now:4.0f} s: {', '.join(lane.progress() for lane in lanes)}", flush=True)


def _judge(lanes: list[_Lane]) -> int:
    """The exit code of the run. Tests that failed are tried again if there are few of them and nothing else failed."""
    failed = [(command, test) for lane in lanes for command, tests in lane.failed for test in tests]
    if failed:
        print(f"\n{len(failed)} failed under load:", *(test for _, test in failed), sep="\n  ", flush=True)
    if any(lane.code for lane in lanes):
        return 1
    if len(failed) > MOST_RETRIED:
        print(f"these are more than {MOST_RETRIED}: none is tried again", flush=True)
        return 1
    again = [test for command, test in failed if subprocess.run([*command.argv, test], check=False).returncode]
    for _, test in failed:
        print(f"failed {'under load and alone' if test in again else 'under load, passed alone'}: {test}", flush=True)
    return int(bool(again))


class _Lane(Thread):
    """Commands that run one after the other, with their output in a file.

    `failed` has the tests that failed and may be tried again, `code` is not 0 if anything else failed.
    """

    def __init__(self, folder: Path, name: str, commands: Sequence[Command]) -> None:
        super().__init__(name=name)
        self.code = 0
        self.failed: list[tuple[Command, list[str]]] = []
        self.took_s = self.cpu_s = 0.0
        self._commands = commands
        self._folder = folder
        self._output = folder / "output"
        self._stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        self._output.touch()
        self.start()

    def run(self) -> None:
        began = time.monotonic()
        for number, command in enumerate(self._commands):
            cache = self._folder / f"cache{number}"
            code = self._run(command, cache)
            self.took_s = time.monotonic() - began
            if code == 0:
                continue
            tests = _failed_tests(cache) if command.retried and code == TESTS_FAILED else []
            if self._stopped or not tests:
                self.code = code
                return
            self.failed.append((command, tests))

    def _run(self, command: Command, cache: Path) -> int:
        argv = [*command.argv, *command.tests]
        if command.tests:
            argv += ["-o", f"cache_dir={cache}"]
        with self._output.open("ab") as file:
            self._process = subprocess.Popen(argv, stdout=file, stderr=subprocess.STDOUT)
            _, status, used = os.wait4(self._process.pid, 0)
        self.cpu_s += used.ru_utime + used.ru_stime
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode

    def stop(self) -> None:
        self._stopped = True
        if self._process is not None and self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGTERM)

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def progress(self) -> str:
        if not self.is_alive():
            return f"{self.name} {'failed' if self.code or self.failed else 'passed'}"
        percents = re.findall(r"\[ *([0-9]+)%\]", self.output())
        return f"{self.name} {percents[-1] if percents else 0}%"


def _failed_tests(cache: Path) -> list[str]:
    """The ids of the tests that failed, as pytest's own cache has them."""
    try:
        found = json.loads((cache / "v/cache/lastfailed").read_text())
    except FileNotFoundError:
        return []
    return sorted(found)


if __name__ == "__main__":
    sys.exit(main())
