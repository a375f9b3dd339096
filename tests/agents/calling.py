"""How each real agent is started: on the fake provider, in a home of its own, with a key that opens nothing.

Where an agent can be told not to try a refused call again for long, it is told so. Where it cannot, Fleetgate ends it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

KEY = "sk-dummy-" + "0" * 24
PROMPT = "Say hello."


class Call(NamedTuple):
    """A command for `fleetgate run -m MODEL -- …`, and its environment."""

    model: str
    argv: list[str]
    env: dict[str, str]


Caller = Callable[[str, str, Path, str], Call]


def bare_environment(home: Path) -> dict[str, str]:
    """Nothing of the person who runs the tests: neither keys, nor settings, nor a way round by a proxy."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
    return {**kept, "HOME": str(home), "TERM": "dumb", "NO_COLOR": "1", "CI": "1"}


def opencode(program: str, url: str, home: Path, prompt: str) -> Call:
    models = {"coder": {"name": "Coder"}, "small": {"name": "Small"}}
    options = {"baseURL": f"{url}/v1", "apiKey": KEY}
    umans = {"npm": "@ai-sdk/openai-compatible", "name": "Umans", "options": options, "models": models}
    config = {"autoupdate": False, "share": "disabled", "small_model": "umans/small", "provider": {"umans": umans}}
    argv = [program, "run", "-m", "umans/coder", "--format", "json", "--print-logs", "--log-level", "ERROR", prompt]
    env = {"OPENCODE_CONFIG_CONTENT": json.dumps(config), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return Call("umans/coder", argv, env)


def codex(program: str, url: str, home: Path, prompt: str) -> Call:
    settings = {
        "model_provider": '"fake"',
        "model_providers.fake.name": '"Fake"',
        "model_providers.fake.base_url": f'"{url}/v1"',
        "model_providers.fake.env_key": '"FAKE_KEY"',
        "model_providers.fake.wire_api": '"responses"',
        "model_providers.fake.request_max_retries": "0",
        "model_providers.fake.stream_max_retries": "0",
        "analytics.enabled": "false",
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    argv = [program, "exec", "--json", "-m", "gpt-5", "--skip-git-repo-check", *options, prompt]
    return Call("openai/gpt-5", argv, {"FAKE_KEY": KEY})


def claude(program: str, url: str, home: Path, prompt: str) -> Call:
    argv = [program, "-p", prompt, "--model", "claude-opus-4-6", "--output-format", "stream-json", "--verbose"]
    env = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEY,
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    return Call("anthropic/claude-opus-4-6", argv, env)


def gemini(program: str, url: str, home: Path, prompt: str) -> Call:
    folder = home / ".gemini"
    folder.mkdir(exist_ok=True)
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"disableAutoUpdate": True, "maxAttempts": 2},
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    argv = [program, "-p", prompt, "-m", "gemini-2.5-pro", "--output-format", "stream-json"]
    env = {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    return Call("google/gemini-2.5-pro", argv, env)


def aider(program: str, url: str, home: Path, prompt: str) -> Call:
    off = ["--no-git", "--no-check-update", "--no-show-model-warnings", "--no-show-release-notes", "--no-gitignore"]
    off += ["--analytics-disable", "--no-detect-urls", "--no-pretty", "--no-suggest-shell-commands"]
    argv = [program, "--message", prompt, "--model", "openai/coder", "--yes-always", *off]
    return Call("openai/coder", argv, {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": KEY})


CALLERS: dict[str, Caller] = {
    "opencode": opencode,
    "codex": codex,
    "claude": claude,
    "gemini": gemini,
    "aider": aider,
}
