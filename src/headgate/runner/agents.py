"""Which model an agent's own command line asks for (SPEC R1), for the agents that are known."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import basename

from headgate.core.errors import BadName
from headgate.core.names import parse_model

# The agent's flags for a model, and the provider that a bare name means.
_AGENTS = {
    "opencode": (("-m", "--model"), ""),
    "claude": (("--model",), "anthropic"),
    "codex": (("-m", "--model"), "openai"),
    "gemini": (("-m", "--model"), "google"),
    "aider": (("--model",), ""),
}
_FAMILIES = {"claude": "anthropic", "gpt": "openai", "o1": "openai", "o3": "openai", "o4": "openai", "gemini": "google"}
_ALIASES = ("opus", "sonnet", "haiku")


def model_of(argv: Sequence[str]) -> str | None:
    """The model that a known agent is told to use, or None."""
    flags, provider = _AGENTS.get(basename(argv[0]), ((), ""))
    for index, word in enumerate(argv[1:], 1):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name in flags:
            value = value if equals else argv[index + 1] if index + 1 < len(argv) else ""
            return _named(value, provider)
    return None


def _named(value: str, provider: str) -> str | None:
    if value in _ALIASES:  # `claude --model opus`: whichever is the latest
        value, provider = f"claude-{value}-latest", provider or "anthropic"
    if "/" not in value:
        provider = provider or next((name for start, name in _FAMILIES.items() if value.startswith(start)), "")
        value = f"{provider}/{value}"
    try:
        return str(parse_model(value))
    except BadName:
        return None
