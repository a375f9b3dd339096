"""The plugins for Claude Code and opencode, in the real agents: limits are reported, and the fleet is shown."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.script import Fault
from tests.agents.calling import KEY, Call, bare_environment, claude, opencode
from tests.agents.installing import CannotInstall, installed
from tests.agents.running import FLEETGATE, WITHIN_S, Place

PLUGINS = Path(__file__).parents[2] / "plugins"


def program(name: str) -> str:
    try:
        return str(installed(name))
    except CannotInstall as error:
        pytest.skip(str(error))


class Fleet:
    """An agent's environment with Fleetgate in its PATH and a store of its own."""

    def __init__(self, place: Place) -> None:
        self.place = place
        env = bare_environment(place.home)
        env["PATH"] = f"{Path(FLEETGATE).parent}{os.pathsep}{env['PATH']}"
        self.env = {**env, "FLEETGATE_HOME": str(place.home / "fleetgate")}

    def run(self, argv: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            env={**self.env, **env},
            cwd=self.place.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )

    def limits(self) -> dict[str, str]:
        """What is held back, and why: backoffs and paused pools."""
        status = json.loads(self.run([FLEETGATE, "status", "--json"], {}).stdout)
        found = {backoff["key"]: backoff["reason"] for backoff in status["backoffs"]}
        return found | {pool["pool"]: pool["pause_cause"] for pool in status["pools"] if pool["paused"]}

    def limits_during(self, argv: list[str], env: Mapping[str, str], said: str = "") -> dict[str, str]:
        """The same, as soon as there is one, while an agent is running; it is ended then."""
        agent = subprocess.Popen(
            argv,
            env={**self.env, **env},
            cwd=self.place.work,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert agent.stdin is not None
        with agent:
            agent.stdin.write(said)
            agent.stdin.flush() if said else agent.stdin.close()
            until = monotonic() + 120
            try:
                while not (found := self.limits()) and monotonic() < until:
                    sleep(0.2)
                return found
            finally:
                agent.terminate()


@pytest.fixture
def fleet(place: Place) -> Fleet:
    return Fleet(place)


def run_claude(fleet: Fleet, provider: FakeProvider, prompt: str) -> subprocess.CompletedProcess[str]:
    call = claude(program("claude"), provider.url, fleet.place.home, prompt)
    return fleet.run([*call.argv, "--plugin-dir", str(PLUGINS / "claude-code")], call.env)


def prompts(provider: FakeProvider) -> str:
    return "\n".join(
        json.dumps(request.json()["messages"]) for request in provider.seen if "/v1/messages" in request.path
    )


def test_claude_code_accepts_the_plugin_and_its_marketplace(fleet: Fleet):
    for path in (PLUGINS / "claude-code", PLUGINS):
        checked = fleet.run([program("claude"), "plugin", "validate", str(path)], {})
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_claude_code_installs_the_plugin_from_its_marketplace(fleet: Fleet):
    for words in (["marketplace", "add", str(PLUGINS)], ["install", "fleetgate@fleetgate"]):
        done = fleet.run([program("claude"), "plugin", *words], {})
        assert done.returncode == 0, done.stdout + done.stderr
    assert "fleetgate@fleetgate" in fleet.run([program("claude"), "plugin", "list"], {}).stdout


@pytest.mark.parametrize(
    ("fault", "held", "reason"),
    [
        (Fault(status=429, retry_after_s=120, times=1000), "*/claude-opus-*:anthropic", "rate_limited"),
        (Fault(status=529, times=1000), "anthropic/claude-opus-4-6", "overloaded"),
    ],
)
def test_a_limit_that_a_session_of_claude_code_meets_is_reported(fleet: Fleet, fault: Fault, held: str, reason: str):
    """In a session that goes on: `claude -p` with one prompt ends its hooks with itself."""
    message = {"type": "user", "message": {"role": "user", "content": "Say hello."}}
    with FakeProvider(faults=[fault]) as provider:
        call = claude(program("claude"), provider.url, fleet.place.home, "")
        argv = [word for word in call.argv if word]
        argv += ["--input-format", "stream-json", "--plugin-dir", str(PLUGINS / "claude-code")]
        assert fleet.limits_during(argv, call.env, json.dumps(message) + "\n") == {held: reason}


def test_an_answer_that_is_good_reports_nothing_and_the_server_of_the_plugin_is_started(fleet: Fleet):
    with FakeProvider() as provider:
        ran = run_claude(fleet, provider, "Say hello.")
    assert ran.returncode == 0, ran.stdout
    assert fleet.limits() == {}
    (init,) = [json.loads(line) for line in ran.stdout.splitlines() if '"subtype":"init"' in line]
    assert [server["name"] for server in init["mcp_servers"]] == ["plugin:fleetgate:fleetgate"]
    assert init["mcp_servers"][0]["status"] in ("connected", "pending")
    assert "fleetgate:fleet" in init["slash_commands"]


def test_the_slash_command_gives_the_model_the_state_of_the_fleet(fleet: Fleet):
    with FakeProvider() as provider:
        ran = run_claude(fleet, provider, "/fleetgate:fleet")
        said = prompts(provider)
    assert ran.returncode == 0, ran.stdout
    assert "nothing is waiting" in said
    assert "nothing was counted" in said


def with_plugin(call: Call) -> dict[str, str]:
    config = json.loads(call.env["OPENCODE_CONFIG_CONTENT"])
    config["plugin"] = [f"file://{PLUGINS}/opencode/fleetgate.js"]
    return {**call.env, "OPENCODE_CONFIG_CONTENT": json.dumps(config)}


def test_a_limit_that_opencode_meets_is_reported_while_it_tries_again(fleet: Fleet):
    with FakeProvider(faults=[Fault(status=429, retry_after_s=120, times=1000)]) as provider:
        call = opencode(program("opencode"), provider.url, fleet.place.home, "Say hello.")
        assert fleet.limits_during(call.argv, with_plugin(call)) == {"umans/coder": "rate_limited"}


def test_opencode_works_with_the_plugin_and_its_command_shows_the_fleet(fleet: Fleet):
    with FakeProvider() as provider:
        call = opencode(program("opencode"), provider.url, fleet.place.home, "now")
        ran = fleet.run([*call.argv[:-1], "--command", "fleet", call.argv[-1]], with_plugin(call))
        said = json.dumps([request.json() for request in provider.seen if "completions" in request.path])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "nothing is waiting" in said
    assert fleet.limits() == {}


def test_opencode_connects_to_the_server_of_the_plugin(fleet: Fleet):
    call = opencode(program("opencode"), "http://127.0.0.1:9", fleet.place.home, "")
    listed = fleet.run([call.argv[0], "mcp", "list"], with_plugin(call))
    assert re.search(r"✓ fleetgate\W+(?:\[\d+m)?connected", listed.stdout), listed.stdout


def test_the_status_line_is_shown_in_a_session_of_claude_code(fleet: Fleet):
    """A plugin cannot set it: `fleetgate init` writes this setting."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed, and shows what a terminal shows")
    fleet.run([FLEETGATE, "cap", "set", "host", "7"], {})
    until = monotonic() + 60
    while "7" not in fleet.run([FLEETGATE, "statusline"], {}).stdout and monotonic() < until:
        sleep(0.2)  # the line is made of what was true at the call before
    line = fleet.run([FLEETGATE, "statusline"], {}).stdout.strip()
    home, work = fleet.place.home, fleet.place.work
    (home / ".claude").mkdir()
    setting = {"statusLine": {"type": "command", "command": "fleetgate statusline"}}
    (home / ".claude" / "settings.json").write_text(json.dumps(setting))
    known: dict[str, Any] = {
        "hasCompletedOnboarding": True,
        "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
    }
    known["projects"] = {str(work): {"hasTrustDialogAccepted": True}}
    (home / ".claude.json").write_text(json.dumps(known))
    with FakeProvider() as provider:
        call = claude(program("claude"), provider.url, home, "")
        env = {**fleet.env, **call.env, "TERM": "xterm-256color"}
        env.pop("CI")
        shown = on_terminal([call.argv[0], "--plugin-dir", str(PLUGINS / "claude-code")], env, work, line)
    assert line in shown


def on_terminal(argv: list[str], env: Mapping[str, str], folder: Path, wanted: str) -> str:
    """What a program shows on a terminal, as soon as this is part of it."""
    tmux = ["tmux", "-S", str(folder / "tmux")]
    set_ = [f"{name}={value}" for name, value in env.items()]
    subprocess.run(
        [*tmux, "new-session", "-d", "-x", "160", "-y", "40", "env", "-i", *set_, *argv], cwd=folder, check=True
    )
    try:
        until = monotonic() + 60
        while monotonic() < until:
            shown = subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=False).stdout
            if wanted in shown:
                break
            sleep(0.2)
        return shown
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
