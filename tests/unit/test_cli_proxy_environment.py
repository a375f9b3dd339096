"""Agents whose calls would go past the proxy, whatever they are told: `run --proxied` says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleetgate.cli.run.proxy_environment import check_agent
from fleetgate.config.settings import Provider, Settings
from fleetgate.core.errors import BadRequest

CLAUDE = ["claude", "-p", "hi"]


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        (CLAUDE, {"CLAUDE_CODE_USE_BEDROCK": "1"}),
        (CLAUDE, {"CLAUDE_CODE_USE_VERTEX": "true"}),
        (["env", "CLAUDE_CODE_USE_FOUNDRY=1", *CLAUDE], {}),
        (["gemini", "-p", "hi"], {"GOOGLE_GENAI_USE_VERTEXAI": "true"}),
        (["npx", "@google/gemini-cli", "-p", "hi"], {"GOOGLE_GENAI_USE_GCA": "true"}),
    ],
)
def test_an_agent_on_another_cloud_is_refused_by_the_variable_that_sends_it_there(
    command: list[str], environ: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(BadRequest, match=r"is set: .* without --proxied"):
        check_agent(command, (), Settings(), environ, str(tmp_path))


@pytest.mark.parametrize("name", ["CLAUDE_CODE_USE_BEDROCK", "ANTHROPIC_BASE_URL"])
@pytest.mark.parametrize("place", ["project", "user", "given"])
def test_so_is_one_whose_settings_say_it(name: str, place: str, tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "folder"
    settings = json.dumps({"env": {name: "https://elsewhere.example"}})
    for at in (home, folder):
        (at / ".claude").mkdir(parents=True)
    if place != "given":
        ((home if place == "user" else folder) / ".claude" / "settings.json").write_text(settings)
    command = [*CLAUDE, "--settings", settings] if place == "given" else CLAUDE
    with pytest.raises(BadRequest, match=f"its settings set {name}"):
        check_agent(command, (), Settings(), {"HOME": str(home)}, str(folder))


@pytest.mark.parametrize(
    ("command", "models"),
    [
        (["opencode", "run", "-m", "opencode/grok-code", "hi"], ()),
        (["opencode", "run", "--model=github-copilot/gpt-5", "hi"], ()),
        (["opencode", "run", "hi"], ("amazon-bedrock/claude",)),
    ],
)
def test_a_provider_of_opencode_that_the_proxy_does_not_stand_before_is_refused(
    command: list[str], models: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(
        BadRequest, match=r"would bypass the proxy for .*; the proxy serves anthropic, .* without --proxied"
    ):
        check_agent(command, models, Settings(), {}, str(tmp_path))


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        (CLAUDE, {"CLAUDE_CODE_USE_BEDROCK": "0", "CLAUDE_CODE_USE_VERTEX": ""}),
        (["opencode", "run", "-m", "anthropic/claude-opus-4-6", "hi"], {}),
        (["opencode", "run", "-m", "umans/coder", "hi"], {}),
        (["opencode", "run", "hi"], {}),
        (["aider", "--model", "bedrock/claude"], {"CLAUDE_CODE_USE_BEDROCK": "1"}),
        (["make", "nightly"], {"CLAUDE_CODE_USE_BEDROCK": "1"}),
    ],
)
def test_others_are_not(command: list[str], environ: dict[str, str], tmp_path: Path) -> None:
    settings = Settings(providers={"umans": Provider(base_url="https://api.umans.example/v1")})
    check_agent(command, (), settings, environ, str(tmp_path))
