"""The workers of the service are started again whatever ended them, and Python is started isolated."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from fleetgate.cli import serve_workers
from fleetgate.gate.python_command import python_command
from tests.api.served import PATIENCE_S, Served
from tests.api.test_jobs import submit, until

SOURCES = Path(__file__).parents[2] / "src" / "fleetgate"
WORKER = "echo 2; cat >/dev/null"
FEW_FILES = ["sh", "-c", 'ulimit -S -n 200 && exec "$@"', "sh"]
NO_PROGRAM = ["/there/is/no/such/program"]


def wait_for(done: Callable[[], object]) -> None:
    until = monotonic() + PATIENCE_S
    while not done():
        assert monotonic() < until
        sleep(0.02)


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[serve_workers.Crew, list[str]]]]:
    """Start a crew of two whose worker is, one after the other, each of these commands."""
    begun: list[serve_workers.Crew] = []

    def begin(*commands: list[str]) -> tuple[serve_workers.Crew, list[str]]:
        left = list(commands)
        monkeypatch.setattr(serve_workers, "python_command", lambda *_: left.pop(0) if len(left) > 1 else left[0])
        monkeypatch.setattr(serve_workers, "_FIRST_PAUSE_S", 0.05)
        said: list[str] = []
        begun.append(serve_workers.Crew(2, (), said.append))
        begun[0].start()
        return begun[0], said

    yield begin
    begun[0].stop()


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (NO_PROGRAM, "the worker cannot be started"),
        (["sh", "-c", "exit 70"], "the worker exited unexpectedly (code 70)"),
        (["sh", "-c", "echo 2; kill -9 $$"], "the worker exited unexpectedly (code -9)"),
    ],
    ids=["cannot be started", "ends at once", "is killed"],
)
def test_a_worker_that_fails_again_and_again_is_started_until_it_runs(
    begin: Callable[..., tuple[serve_workers.Crew, list[str]]], first: list[str], why: str
) -> None:
    started, said = begin(first, first, first, ["sh", "-c", WORKER])
    wait_for(lambda: said)
    assert said[0].startswith(why)
    wait_for(lambda: "the worker is running again" in said and not started.trouble())


def test_what_happened_is_said_once_and_readiness_tells_why_meanwhile(
    begin: Callable[..., tuple[serve_workers.Crew, list[str]]],
) -> None:
    started, said = begin(NO_PROGRAM)
    wait_for(lambda: started.trouble().startswith("the worker cannot be started"))
    sleep(0.3)  # it is tried a few times more
    assert len(said) == 1


def test_a_worker_whose_hands_do_not_come_is_trouble_after_a_while(
    begin: Callable[..., tuple[serve_workers.Crew, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    started, said = begin(["sh", "-c", "echo 1; cat >/dev/null"])
    assert not started.trouble(), "it starts"
    monkeypatch.setattr(serve_workers, "_GRACE_S", 0.0)
    wait_for(lambda: started.trouble() == "1 of 2 worker processes are running")
    assert not said


# A service whose worker cannot be started before there is a file, and whose worker then cannot fork twice; in a folder
# with files that must not be imported.
TROUBLED = """
import errno, os, sys
sys.path.pop(0)
from fleetgate.cli import serve_workers as crew
from fleetgate.cli.main import main

flag, command = sys.argv.pop(1), crew.python_command
crew._FIRST_PAUSE_S = crew._LONGEST_PAUSE_S = 0.2
crew.python_command = lambda *words: command(*words) if os.path.exists(flag) else ["/no/such/program"]
main()
"""


class Troubled(Served):
    def spawn(self, *argv: str) -> subprocess.Popen[str]:
        folder = self.home.parent
        for name in ("msgspec", "click", "fleetgate", "signal"):
            (folder / f"{name}.py").write_text(f"open({str(folder / 'executed')!r}, 'a').write({name!r})\n")
        return subprocess.Popen(
            [*FEW_FILES, sys.executable, "-c", TROUBLED, str(folder / "flag"), *argv],
            env={**self.environ, "PYTHONSAFEPATH": ""},
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )


def test_a_service_whose_workers_do_not_run_is_not_ready_until_they_do(tmp_path: Path) -> None:
    served = Troubled(tmp_path)
    try:
        served.process = served.spawn("serve", "--port", "0", "--workers", "1")
        served.wait_until(lambda: served._answers() or served.port, "it has a port")
        served.wait_until(lambda: served.get("/readyz").status == 503, "it is not ready")
        answer = served.get("/readyz").json
        assert answer["status"] == "workers_down"
        assert "cannot be started" in answer["error"]
        assert served.get("/healthz").status == 200
        (tmp_path / "flag").touch()
        served.wait_until(lambda: served.get("/readyz").status == 200, "it is ready")
        until(served, submit(served, "true"), "succeeded")
        ident = submit(served, "sh", "-c", "ulimit -S -n")
        until(served, ident, "succeeded")
        assert served.cli("logs", ident).stdout.strip() == "200", "the limit that the service was started with"
        assert not (tmp_path / "executed").exists(), "a file of the current folder was imported"
    finally:
        served.kill()


# `fleetgate worker` that cannot fork three times.
FORKLESS = """
import errno, os, sys
from fleetgate.cli.main import main

fork, left = os.fork, 3

def fail():
    global left
    left -= 1
    if left >= 0:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()

os.fork = fail
main()
"""


def test_a_worker_that_cannot_fork_tries_again(tmp_path: Path) -> None:
    served = Served(tmp_path)
    command = [sys.executable, "-c", FORKLESS, "worker", "-n", "1"]
    worker = subprocess.Popen(command, env=served.environ, text=True, stderr=subprocess.PIPE)
    try:
        ident = served.cli("submit", "--", "true").stdout.strip()
        served.wait_until(lambda: "succeeded" in served.cli("show", ident).stdout, "the job was run")
    finally:
        worker.terminate()
        _, said = worker.communicate(timeout=PATIENCE_S)
    assert said.count("cannot start another process") == 1
    assert "running again" in said


def test_python_is_started_in_one_way_which_imports_nothing_of_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "fleetgate.py").write_text("raise SystemExit('a file of the current folder was imported')")
    done = subprocess.run(python_command("fleetgate", "--version"), cwd=tmp_path, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    users = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if "sys.executable" in path.read_text()}
    names_it = {"cli/doctor/command.py", "config/install_hint.py", "cli/init/service.py", "cli/shims/shim_folder.py"}
    assert users == {"gate/python_command.py"} | names_it, "the others only print it, or name the program beside it"
