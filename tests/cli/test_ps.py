"""`fleetgate ps` (rules L3, O3)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule, Spec
from fleetgate.gate.liveness import process_identity
from tests.cli.command_line import Cli, opened

KEYS = {"id", "model", "kind", "slots", "pools", "holder", "child_pid", "command", "granted_at", "age_s"}
OPUS = "anthropic/claude-opus-4-6"
ELSEWHERE = "build-07|abc|1|4711|99"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until its stdin is closed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        yield child
        child.kill()


def lend(cli: Cli, ident: str, holder: str, command: str = "aider") -> None:
    cli.gate.one(cmd.Acquire(ident, Spec(models=(OPUS,), host=cli.gate.host), holder, command=command))


def test_o3_ps_json_has_every_key(cli: Cli):
    ident = cli.occupy(OPUS)
    (lease,) = cli.json("ps")["leases"]
    assert set(lease) >= KEYS
    assert (lease["id"], lease["model"], lease["kind"], lease["slots"]) == (ident, OPUS, "agents", 1)
    assert lease["pools"] == ["*/claude-opus-*:anthropic", f"host:{cli.gate.host}"]
    assert lease["holder"] == {"host": cli.gate.host, "pid": os.getpid()}
    assert (lease["child_pid"], lease["command"]) == (None, "the test")
    assert lease["granted_at"].endswith("Z")
    assert 0 <= lease["age_s"] < 60


def test_o3_what_is_not_known_is_null(cli: Cli):
    cli.gate.one(cmd.Acquire("aaaaaaaaaa", Spec(kind="requests"), cli.gate.me))
    (lease,) = cli.json("ps")["leases"]
    assert (lease["model"], lease["command"], lease["pools"], lease["ends_at"]) == (None, None, [], None)


def test_l3_the_pid_is_the_agents_own(cli: Cli, child: subprocess.Popen[bytes]):
    ident = cli.occupy(OPUS)
    cli.gate.one(cmd.Claim(ident, process_identity.identify(child.pid) or ""))
    (lease,) = cli.json("ps")["leases"]
    assert (lease["child_pid"], lease["lives_with"]["pid"], lease["gone"]) == (child.pid, child.pid, False)
    (line,) = [line for line in cli.ok("ps").splitlines() if line.startswith(ident)]
    assert str(child.pid) in line.split()


def test_l3_an_ended_agent_is_marked_gone_and_the_way_out_is_told(cli: Cli, child: subprocess.Popen[bytes]):
    ident = cli.occupy(OPUS)
    cli.gate.one(cmd.Claim(ident, process_identity.identify(child.pid) or ""))
    child.kill()
    child.wait()
    assert cli.json("ps")["leases"][0]["gone"] is True
    text = cli.ok("ps")
    assert "gone" in next(line for line in text.splitlines() if line.startswith(ident)).split()
    assert "fleetgate release ID --force" in text
    assert "1 running (1 gone: see fleetgate ps)" in cli.ok("status")
    assert ident in cli.state.leases, "looking takes nothing back"


def test_l3_a_grant_that_nobody_has_claimed_yet_is_marked(cli: Cli):
    cli.gate.one(cmd.SetRule(Rule("agents", "host", cap=1)))
    first = cli.occupy(OPUS)
    lend(cli, "tttttttttt", ELSEWHERE)
    cli.gate.one(cmd.Release(first))
    (lease,) = cli.json("ps")["leases"]
    assert (lease["id"], lease["claimed"], lease["gone"]) == ("tttttttttt", False, None)
    text = cli.ok("ps")
    assert "build-07" in text
    assert "unclaimed: just granted" in text


def test_l3_the_oldest_comes_first(cli: Cli):
    idents = [cli.occupy() for _ in range(3)]
    assert [lease["id"] for lease in cli.json("ps")["leases"]] == idents
    assert [line.split()[0] for line in cli.ok("ps").splitlines()[1:4]] == idents


def test_l3_several_slots_are_told(cli: Cli):
    cli.gate.one(cmd.SetRule(Rule("requests", "umans", cap=8)))
    cli.occupy("umans/coder", kind="requests", slots=3)
    assert "umans/coder x3" in cli.ok("ps")


def test_l3_nothing_running_says_how_to_start(cli: Cli):
    assert cli.ok("ps") == "nothing is running (to run something: fleetgate run -m MODEL -- COMMAND…)\n"
    assert cli.json("ps") == {"leases": []}


def test_l3_a_long_command_is_cut(cli: Cli):
    lend(cli, "aaaaaaaaaa", cli.gate.me, "x" * 200)
    assert "x" * 79 + "…\n" in cli.ok("ps")
    assert cli.json("ps")["leases"][0]["command"] == "x" * 200


@pytest.mark.parametrize("argv", [("--jsn",), ("extra",)])
def test_q1_bad_options_are_usage_errors(cli: Cli, argv: tuple[str, ...]):
    assert "more:  fleetgate ps --help" in cli.refused("ps", *argv)
