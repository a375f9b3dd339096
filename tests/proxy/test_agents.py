"""Agents that are told to use the proxy: `fleetgate run --proxied` and `fleetgate env`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetgate.testing.script import Fault
from tests.api.served import Served
from tests.proxy.proxied import Proxied

# An agent that calls a model as it was told to, and prints what it was told and what it got.
AGENT = """#!/usr/bin/env python3
import json, os, sys, urllib.request
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
body = json.dumps({"model": "claude-x", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}).encode()
request = urllib.request.Request(url, body, {"content-type": "application/json", "x-api-key": "some-key"})
with urllib.request.urlopen(request) as answer:
    status = answer.status
print(json.dumps({"args": sys.argv[1:], "env": dict(os.environ), "status": status}))
"""


def _agent(folder: Path, name: str) -> str:
    path = folder / name
    path.write_text(AGENT)
    path.chmod(0o755)
    return str(path)


def _run(gate: Served, *argv: str) -> dict[str, object]:
    ran = gate.cli("run", "--proxied", "--quiet", "--classify", "none", *argv)
    assert ran.returncode == 0, ran.stderr
    said: dict[str, object] = json.loads(ran.stdout)
    return said


@pytest.fixture
def gate(proxied: Callable[..., Proxied], monkeypatch: pytest.MonkeyPatch) -> Proxied:
    for name in ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENCODE_CONFIG_CONTENT"):
        monkeypatch.delenv(name, raising=False)
    return proxied()


def test_x3_an_agent_that_one_429_would_end_finishes(gate: Proxied, tmp_path: Path) -> None:
    gate.provider.script(Fault(status=429, retry_after_s=0.2))
    said = _run(gate, "--project", "blue", "--", _agent(tmp_path, "claude"), "-p", "hi")
    assert said["status"] == 200
    assert said["args"] == ["-p", "hi"]
    env = said["env"]
    assert isinstance(env, dict)
    assert int(env["API_TIMEOUT_MS"]) >= 600_000
    told = [event["ticket"] for event in gate.events("queued", "granted") if event.get("ticket")]
    asked = [ticket for ticket in told if ticket["spec"]["kind"] == "requests"]
    assert len(asked) == 2, "each attempt passed the gate"
    assert {ticket["client"] for ticket in asked} == {env["FLEETGATE_LEASE"]}, "its requests are tied to its lease"
    assert {ticket["spec"]["project"] for ticket in asked} == {"blue"}


def test_codex_is_told_by_arguments(gate: Proxied, tmp_path: Path) -> None:
    args = _run(gate, "--", _agent(tmp_path, "codex"), "exec", "--json", "hi")["args"]
    assert isinstance(args, list)
    assert args[-3:] == ["exec", "--json", "hi"]
    assert 'model_provider="fleetgate"' in args
    [base] = [word for word in args if word.startswith("model_providers.fleetgate.base_url=")]
    assert base.startswith(f'model_providers.fleetgate.base_url="{gate.url}/l/')
    assert base.endswith('/openai/v1"')


def test_opencode_keeps_what_it_was_told_already(gate: Proxied, tmp_path: Path) -> None:
    gate.environ["OPENCODE_CONFIG_CONTENT"] = '{"theme":"x","provider":{"anthropic":{"options":{"apiKey":"k"}}}}'
    env = _run(gate, "--", _agent(tmp_path, "opencode"), "run", "hi")["env"]
    assert isinstance(env, dict)
    config = json.loads(env["OPENCODE_CONFIG_CONTENT"])
    assert config["theme"] == "x"
    options = config["provider"]["anthropic"]["options"]
    assert options["apiKey"] == "k"
    assert options["baseURL"].endswith("/anthropic/v1")
    assert config["provider"]["fake"]["options"]["baseURL"].endswith("/fake/v1"), "those of the config, too"


def test_an_agent_that_is_sent_elsewhere_is_not_sent_here(gate: Proxied, tmp_path: Path) -> None:
    gate.environ["ANTHROPIC_BASE_URL"] = "https://gateway.example"
    ran = gate.cli("run", "--proxied", "--", _agent(tmp_path, "claude"))
    assert ran.returncode == 64
    assert 'base_url = "https://gateway.example" under [providers.anthropic]' in ran.stderr
    assert not gate.events("granted")


def test_an_agent_whose_calls_would_go_past_the_proxy_is_not_started(gate: Proxied, tmp_path: Path) -> None:
    ran = gate.cli("run", "--proxied", "--", "env", "CLAUDE_CODE_USE_BEDROCK=1", _agent(tmp_path, "claude"), "-p", "hi")
    assert ran.returncode == 64, ran.stderr
    assert "CLAUDE_CODE_USE_BEDROCK is set" in ran.stderr
    assert not gate.events("granted")


def test_without_a_service_it_says_what_to_start(tmp_path: Path) -> None:
    nobody = Served(tmp_path)
    for command in (("run", "--proxied", "--", "true"), ("env", "claude")):
        ran = nobody.cli(*command)
        assert ran.returncode == 69
        assert "fleetgate serve" in ran.stderr


def test_env_prints_what_a_shell_takes(gate: Proxied) -> None:
    ran = gate.cli("env", "claude", "--project", "blue")
    assert f"export ANTHROPIC_BASE_URL={gate.url}/p/blue/anthropic\n" in ran.stdout
    assert json.loads(gate.cli("env", "--json").stdout)["env"]["OPENAI_BASE_URL"] == f"{gate.url}/openai/v1"
    assert "# start it with: codex -c" in gate.cli("env", "codex").stdout
    unknown = gate.cli("env", "nobody")
    assert unknown.returncode == 64
    assert "claude, opencode, codex" in unknown.stderr
