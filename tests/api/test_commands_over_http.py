"""Commands on a service elsewhere (rules H2, E2): with a key, without the store, for each role."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetgate.cli.click_group import COMMANDS as ALL
from fleetgate.cli.service.over_http import COMMANDS
from tests.api.served import PATIENCE_S, Served


class Elsewhere:
    """A machine without the store: an empty home folder, the address of the service and a key."""

    def __init__(self, gate: Served, home: Path, key: str) -> None:
        self._gate = gate
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLEETGATE_", "AIDEVOPS_"))}
        url = f"http://127.0.0.1:{gate.port}"
        self.home = home
        home.mkdir(exist_ok=True)
        self.environ = {**kept, "HOME": str(home), "FLEETGATE_SERVICE": url, "FLEETGATE_KEY": key}

    def __call__(self, *words: str, code: int = 0, **environ: str) -> str:
        command = [sys.executable, "-m", "fleetgate", *words]
        done = subprocess.run(
            command, env={**self.environ, **environ}, text=True, capture_output=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        assert self.environ["FLEETGATE_KEY"] not in done.stdout + done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = '[requests]\numans = { cap = 1, cooldown = "0", on_429 = "step" }\n[agents]\nhost = 9\n'
    with Served(tmp_path_factory.mktemp("over-http"), config) as served:
        yield served


def machine(gate: Served, tmp_path: Path, name: str, *options: str) -> Elsewhere:
    done = gate.cli("key", "create", name, *options, "--json")
    assert done.returncode == 0, done.stderr
    return Elsewhere(gate, tmp_path / name, json.loads(done.stdout)["key"])


def test_h2_an_operators_commands_read_and_change_the_gate_of_a_service_elsewhere(gate: Served, tmp_path: Path) -> None:
    ops = machine(gate, tmp_path, "ops", "--role", "operator")
    lease = gate.lease("umans/coder", project="web", renew_within_s=600).json["lease"]
    assert json.loads(ops("status", "--json"))["running"] == 1
    assert "umans" in ops("status")
    assert lease in ops("ps")
    assert "web" in ops("projects")
    assert "umans" in ops("accounts")
    assert "nothing was used" in ops("usage")
    assert ops("capacity", "-m", "umans/coder", "--kind", "requests", code=75).startswith("red")
    assert ops("select", "-m", "umans/coder") == "umans/coder\n"
    waiting = gate.lease("umans/coder", project="docs", wait_s=0.1, queue=True, renew_within_s=600).json["id"]
    assert waiting in ops("queue")
    assert json.loads(ops("queue", "--json"))["tickets"][0]["id"] == waiting
    assert "position 1" in ops("bump", waiting)
    ops("cancel", waiting)
    assert gate.get("/v1/tickets").json["tickets"] == []

    ops("cap", "set", "umans", "3", "--cooldown", "100ms")
    assert "umans" in ops("cap", "ls")
    (cap,) = [each for each in gate.get("/v1/caps").json["caps"] if each["selector"] == "umans"]
    assert (cap["kind"], cap["cap"], cap["cooldown_ms"]) == ("requests", 3, 100)
    ops("cap", "set", "new", "2")
    assert ("agents", 2) in [(each["kind"], each["cap"]) for each in gate.get("/v1/caps").json["caps"]]
    ops("cap", "rm", "new")
    ops("cap", "reset", "umans")
    ops("budget", "set", "project:web", "usd", "5", "--per", "day")
    assert "project:web usd/day" in ops("budget", "ls")
    ops("budget", "add", "project:web usd/day", "2")
    ops("budget", "reset", "project:web usd/day")
    ops("budget", "rm", "project:web usd/day")
    ops("backoff", "set", "umans/other", "overloaded", "5m")
    assert "umans/other" in ops("backoff", "ls")
    ops("backoff", "clear", "--all")
    ops("pause", "umans", "--for", "1m")
    assert "paused until" in ops("status")
    ops("resume", "umans")
    ops("report", "umans", "--rate-limited", "--retry-after", "1s")
    ops("drain", "elsewhere")
    ops("drain", "elsewhere", "--end")
    by = {event["type"]: event["by"] for event in gate.get("/v1/history?n=500").json["events"] if event.get("by")}
    assert {by[each] for each in ("rule_set", "cancelled", "draining", "budget_set")} == {"key ops"}
    gate.ok("POST", f"/v1/leases/{lease}/release", {})


def test_h2_jobs_are_submitted_followed_and_stopped_from_elsewhere(gate: Served, tmp_path: Path) -> None:
    robot = machine(gate, tmp_path, "robot", "--project", "web", "--class", "batch", "--max-priority", "3")
    ident = robot(
        "submit", "--name", "greet", "--priority", "9", "--env", "WHO=you", "--", "sh", "-c", "echo hi $WHO"
    ).strip()
    shown = json.loads(robot("show", ident, "--json"))
    assert (shown["project"], shown["class"], shown["priority"], shown["by"]) == ("web", "batch", 3, "key robot")
    assert "greet" in robot("jobs")
    worker = gate.spawn("worker")
    try:
        assert robot("logs", "-f", ident) == "hi you\n"
        assert "succeeded" in robot("show", ident)
        sleeper = robot("submit", "--", "sleep", "600").strip()
        gate.wait_until(lambda: sleeper in {each["id"] for each in gate.get("/v1/leases").json["leases"]}, "it runs")
        assert f"stopped {sleeper}" in robot("stop", sleeper)
        gate.wait_until(lambda: gate.get(f"/v1/jobs/{sleeper}").json["state"] == "cancelled", "it is cancelled")
        robot("retry", sleeper)
        robot("cancel", sleeper)
    finally:
        worker.kill()
        worker.wait(PATIENCE_S)
        for stream in (worker.stdout, worker.stderr):
            assert stream is not None
            stream.close()


def test_e2_every_command_with_an_agents_key_stays_within_its_project(gate: Served, tmp_path: Path) -> None:
    robot = machine(gate, tmp_path, "agent", "--project", "web", "--max-priority", "3")
    lease = gate.lease("mine/theirs", project="docs", renew_within_s=600).json["lease"]
    held = gate.lease("umans/coder", project="docs", renew_within_s=600).json["lease"]
    ticket = gate.lease("umans/coder", project="docs", wait_s=0.1, queue=True, renew_within_s=600).json["id"]
    job = gate.ok("POST", "/v1/jobs", {"command": ["their-command"], "project": "docs"})["id"]
    theirs = {"docs", "their-command", "mine/theirs", lease, held, ticket, job}
    words = {
        "show": [job],
        "logs": [job],
        "submit": ["--project", "docs", "--", "true"],
        "cancel": [ticket],
        "stop": [lease],
        "bump": [ticket],
        "report": ["--rate-limited", "--lease", lease],
        "retry": [job],
        "approve": [job],
        "pause": ["umans"],
        "resume": ["umans"],
        "drain": ["elsewhere"],
        "select": ["-m", "umans/coder"],
        "capacity": ["-m", "umans/coder"],
        "cap set": ["umans", "9"],
        "cap rm": ["umans"],
        "cap reset": ["umans"],
        "budget set": ["umans", "calls", "1", "--per", "1m"],
        "budget rm": ["x usd/day"],
        "budget unset": ["x usd/day"],
        "budget reset": ["x usd/day"],
        "budget add": ["x usd/day", "1"],
        "backoff set": ["umans/coder", "overloaded"],
        "backoff clear": ["--all"],
    }
    reads = {"status", "ps", "queue", "usage", "projects", "jobs", "budget ls", "capacity", "select"}
    for name in (name for names in COMMANDS.values() for name in names.split(", ")):
        done = subprocess.run(
            [sys.executable, "-m", "fleetgate", *name.split(), *words.get(name, [])],
            env=robot.environ,
            text=True,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        said = done.stdout + done.stderr
        assert (done.returncode == 0) == (name in reads), f"{name}: {done.returncode} {said}"
        assert name != "cap set" or "needs the role operator" in said, said
        given = {word for word in words.get(name, []) if word in theirs}  # a refusal may repeat what was typed
        assert not [each for each in theirs - given if each in said], f"{name} names something of docs: {said}"
    for path, ident in (("leases", lease), ("leases", held), ("jobs", job)):
        assert gate.get(f"/v1/{path}/{ident}").status == 200, f"{ident} is gone"
    assert not [event for event in gate.get("/v1/history?n=500").json["events"] if event.get("by") == "key agent"]
    for ident in (lease, held):
        gate.ok("POST", f"/v1/leases/{ident}/release", {})
    gate.request("DELETE", f"/v1/tickets/{ticket}")


def test_h2_a_command_that_no_service_does_is_refused_and_those_of_this_machine_work(
    gate: Served, tmp_path: Path
) -> None:
    wall = machine(gate, tmp_path, "wall", "--role", "viewer")
    said = wall("history", code=64)
    assert "fleetgate history: type it where the store is, without --service and FLEETGATE_SERVICE" in said
    assert wall("run", "--", "echo", "here") == "here\n"
    assert "leave --service out" in wall("--service", wall.environ["FLEETGATE_SERVICE"], "worker", code=64)
    assert "--json" in wall("help", "status")
    assert "needs the role admin" in wall("key", "ls", code=77)
    assert "needs the role operator" in wall("cap", "set", "umans", "2", code=77)


def test_q1_what_is_wrong_with_a_service_or_a_key_is_one_sentence(gate: Served, tmp_path: Path) -> None:
    wall = machine(gate, tmp_path, "wrong", "--role", "viewer")
    assert "neither FLEETGATE_KEY" in wall("status", FLEETGATE_KEY="", code=64)
    assert "refused" in wall("status", FLEETGATE_KEY="fgk_nonsense", code=77)
    assert "valid is an http or https URL" in wall("--service", "ftp://x", "status", code=64)
    assert "does not answer" in wall("--service", "http://127.0.0.1:1", "status", code=69)
    assert not list(wall.home.rglob("*.db")), "nothing is stored on a machine that only asks"


def test_h2_every_command_is_done_over_http_or_refused_or_of_this_machine() -> None:
    known = {name for names in COMMANDS.values() for name in names.split(", ")}
    assert {name.split()[0] for name in known} <= set(ALL)
    assert {"status", "ps", "queue", "usage", "accounts", "capacity", "submit", "jobs", "show", "logs"} <= known
    assert {"cancel", "stop", "bump", "report", "cap set", "budget set"} <= known
