"""`GET /v1/accounts` (rule M4): what `fleetgate accounts --json` prints, for viewers."""

from __future__ import annotations

import json
from pathlib import Path

from tests.api.served import Served

CONFIG = """
[requests]
anthropic = 4
[projects]
web = { weight = 3 }
[providers."anthropic@work"]
env = { CLAUDE_CONFIG_DIR = "~/.claude-work" }
"""


def test_m4_the_accounts_are_those_of_the_command_and_a_viewer_may_read_them(tmp_path: Path) -> None:
    login = tmp_path / ".claude-work" / ".credentials.json"
    login.parent.mkdir()
    login.write_text(json.dumps({"claudeAiOauth": {"accessToken": "a-token-that-is-not-shown"}}))
    with Served(tmp_path, CONFIG) as gate:
        body = {
            "models": ["anthropic@work/m"],
            "kind": "requests",
            "client": "c",
            "renew_within_s": 600,
            "project": "web",
        }
        assert gate.request("POST", "/v1/leases", body).status == 201
        found = {each["account"]: each for each in gate.ok("GET", "/v1/accounts")["accounts"]}
        assert list(found) == ["anthropic@work"]
        work = found["anthropic@work"]
        assert (work["login"], work["identity_known"], work["calls"]) == ("found", False, 1)
        assert [(pool["pool"], pool["in_flight"], pool["limit"]) for pool in work["pools"]] == [
            ("anthropic@work", 1, 4)
        ]
        printed = json.loads(gate.cli("accounts", "--json").stdout)
        assert printed["accounts"][0]["pools"] == work["pools"]
        assert "a-token" not in json.dumps([found, printed])
        assert str(tmp_path) not in json.dumps(found), "no places of files"
        keys = {
            role: gate.cli("key", "create", role, "--role", role, "--project", "web") for role in ("viewer", "agent")
        }
        assert gate.request("GET", "/v1/accounts", token=keys["viewer"].stdout.strip()).status == 200
        assert gate.request("GET", "/v1/accounts", token=keys["agent"].stdout.strip()).status == 403
        (project,) = gate.ok("GET", "/v1/projects")["projects"]
        assert (project["weight"], project["agents"], project["calls"]) == (3, 0, 1)
