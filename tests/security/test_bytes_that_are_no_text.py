"""Arguments, names and folders that are not UTF-8 reach the agent byte for byte, and stop nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

BYTES = b"caf\xc3 \xff"
FLEETGATE = os.fsencode(Path(sys.executable).with_name("fleetgate"))


class Home:
    """A state folder of its own, and commands in a folder whose name is no text."""

    def __init__(self, folder: Path) -> None:
        self.here = os.fsencode(folder) + b"/here\xff"
        Path(os.fsdecode(self.here)).mkdir()
        self.env = {"PATH": os.environ["PATH"], "HOME": str(folder), "FLEETGATE_HOME": str(folder / "state")}

    def run(self, *words: bytes, **env: str) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [FLEETGATE, *words], cwd=self.here, env={**self.env, **env}, capture_output=True, timeout=60, check=False
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode(errors="replace")
        return done


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


PRINTS = (b"--", b"printf", b"%s", BYTES)


@pytest.mark.parametrize(
    ("options", "env"),
    [
        ((), {}),
        ((b"--key", BYTES, b"--role", BYTES, b"--project", b"p" + BYTES), {}),
        ((b"--session", BYTES), {}),
        ((), {"FLEETGATE_BYPASS": "1"}),
        ((b"--fail-open",), {"FLEETGATE_STORE": "sqlite:///proc/nowhere"}),
    ],
    ids=["run", "names", "session", "bypass", "fail open"],
)
def test_the_agent_gets_exactly_its_bytes(home: Home, options: tuple[bytes, ...], env: dict[str, str]):
    done = home.run(b"run", *options, *PRINTS, **env)
    assert (done.returncode, done.stdout) == (0, BYTES)


def test_what_is_kept_of_it_is_readable(home: Home):
    home.run(b"run", b"--key", BYTES, *PRINTS)
    told = home.run(b"history", b"--json").stdout.decode()
    assert "caf\\\\xc3 \\\\xff" in told
    for line in told.splitlines():
        msgspec.json.decode(line)


def test_keys_that_differ_in_such_a_byte_are_different_keys(home: Home):
    first = home.run(b"acquire", b"--no-wait", b"--key", b"a\xff", b"--pid", str(os.getpid()).encode())
    other = home.run(b"acquire", b"--no-wait", b"--key", b"a\xfe", b"--pid", str(os.getpid()).encode())
    again = home.run(b"acquire", b"--no-wait", b"--key", b"a\xff", b"--pid", str(os.getpid()).encode())
    assert (first.returncode, other.returncode, again.returncode) == (0, 0, 75)


def test_a_job_keeps_its_bytes_until_it_runs(home: Home):
    script = b'printf "%s|%s|%s" "$1" "$V" "$PWD"'
    line = home.run(
        b"submit", b"--name", b"n" + BYTES, b"--env", b"V=" + BYTES, b"--", b"sh", b"-c", script, b"x", BYTES
    )
    ident = line.stdout.strip()
    worker = subprocess.Popen([FLEETGATE, b"worker", b"-n", b"1"], env=home.env, stderr=subprocess.DEVNULL)
    try:
        assert home.run(b"wait", ident).returncode == 0
    finally:
        worker.terminate()
        worker.wait(30)
    assert home.run(b"logs", ident).stdout == BYTES + b"|" + BYTES + b"|" + home.here
    shown = msgspec.json.decode(home.run(b"show", b"--json", b"n" + BYTES).stdout)
    assert shown["command"][-1] == "caf\\xc3 \\xff"
    assert shown["cwd"].endswith("here\\xff")


@pytest.mark.parametrize("words", [(b"logs",), (b"cancel",), (b"release",), (b"run", b"-m", BYTES, b"--", b"true")])
def test_a_name_that_cannot_be_meant_is_said_so(home: Home, words: tuple[bytes, ...]):
    assert home.run(*words, BYTES).returncode == 64


def test_a_state_folder_whose_name_is_no_text_is_refused_with_a_sentence(home: Home):
    done = home.run(b"run", b"--", b"true", FLEETGATE_HOME=os.fsdecode(home.here))
    assert done.returncode == 78
    assert b"valid is a path whose name is UTF-8" in done.stderr


def test_the_sessions_of_an_agent_in_such_a_folder_are_looked_for(tmp_path: Path):
    from fleetgate.signals.agents import agent_for

    today = tmp_path / "sessions" / "2026" / "01" / "01"
    today.mkdir(parents=True)
    (today / "x.jsonl").write_text("{}\n")
    environ = {"CODEX_HOME": str(tmp_path), "HOME": str(tmp_path)}
    (tmp_path / ".claude" / "projects" / "-here-").mkdir(parents=True)
    for name in ("claude", "codex", "gemini"):
        assert list(agent_for([name]).session_files(environ, "/here\udcff", 1_767_225_600_000)) == []
