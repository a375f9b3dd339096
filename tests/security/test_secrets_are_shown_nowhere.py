"""A secret in a command line is in no listing, no history and no file but the database of a job's owner."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Spec
from fleetgate.gate.liveness import process_identity
from fleetgate.jobs.blocking_api import JobService
from fleetgate.present.json.jobs import JobFilter
from tests.cli.command_line import Cli, opened

SECRET = "S3cr3tV4lueXYZ"
WORDS = ["sh", "-c", "true", "x", "--api-key", SECRET, f"sk-ant-{SECRET}", f"OPENAI_API_KEY={SECRET}"]
FLEETGATE = [sys.executable, "-m", "fleetgate"]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def looked_at(cli: Cli, *names: str) -> str:
    listings = [[name] for name in ("queue", "ps", "jobs", "history", "status")] + [["show", name] for name in names]
    return "".join(cli(*each).out + cli(*each, "--json").out for each in listings)


def test_a_job_shows_everything_but_the_secret(cli: Cli):
    ident = cli.ok("submit", "--name", f"deploy with token={SECRET}", "--env", f"PLAIN={SECRET}", "--", *WORDS).strip()
    told = looked_at(cli, ident)
    assert SECRET not in told
    assert "--api-key" in told
    desk = JobService(lambda loaded: cli.gate, None)
    assert SECRET not in repr(desk.one(ident))
    assert desk.page(JobFilter(name="S3cr3t"), 0, 10).total == 0  # nor can it be guessed by a filter


def test_a_run_that_ran_waited_or_was_refused_leaves_no_secret(cli: Cli):
    cli.configure("[agents]\nhost = 1\n")
    for options in ((), ("--fail-open",)):
        subprocess.run([*FLEETGATE, "run", *options, "--", *WORDS], check=True, timeout=60)
    subprocess.run(
        [*FLEETGATE, "run", "--", *WORDS], env={**os.environ, "FLEETGATE_BYPASS": "1"}, check=True, timeout=60
    )
    cli.ok("acquire", "--pid", str(os.getpid()))
    done = subprocess.run([*FLEETGATE, "run", "--no-wait", "--", *WORDS], capture_output=True, timeout=60, check=False)
    assert done.returncode == 75
    assert SECRET.encode() not in done.stdout + done.stderr
    done = subprocess.run(
        [*FLEETGATE, "run", "--wait", "1", "--", *WORDS], capture_output=True, timeout=60, check=False
    )
    assert SECRET.encode() not in done.stdout + done.stderr
    assert SECRET not in looked_at(cli)
    cli.close()
    for path in Path(os.environ["FLEETGATE_HOME"]).rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_a_process_that_a_message_describes_shows_no_secret():
    with subprocess.Popen(["sh", "-c", "read x", "x", "--token", SECRET], stdin=subprocess.PIPE) as child:
        assert SECRET not in process_identity.describe(child.pid)
        child.kill()


def test_a_history_that_an_older_version_wrote_shows_no_secret(cli: Cli):
    spec = Spec(host=cli.gate.host)
    asked = cmd.Acquire("old-request", spec, cli.gate.me, wait=True, command=f"agent --api-key {SECRET}")
    cli.gate.decide([asked, cmd.Bypass(cli.gate.me, (), f"env TOKEN={SECRET} agent")])
    told = cli.ok("history") + cli.ok("history", "--json")
    assert "--api-key" in told
    assert SECRET not in told
