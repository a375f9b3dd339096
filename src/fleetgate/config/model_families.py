"""The families of models that are known by name: they tell a model from a provider, and what may have been meant."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

# How the names of a family start, and whose they are; "" where many offer them.
FAMILIES = {
    "claude": "anthropic",
    "gpt": "openai",
    "chatgpt": "openai",
    "codex": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "gemini": "google",
    "gemma": "google",
    "grok": "xai",
    "deepseek": "deepseek",
    "mistral": "mistral",
    "mixtral": "mistral",
    "magistral": "mistral",
    "codestral": "mistral",
    "devstral": "mistral",
    "llama": "",
    "qwen": "",
    "qwq": "",
    "glm": "",
    "kimi": "",
    "minimax": "",
}
CLAUDE = ("opus", "sonnet", "haiku", "fable")


def provider_of(name: str) -> str:
    """The provider of a bare model name, by its family; "" where that does not tell."""
    word = name.lower()
    return next((provider for start, provider in FAMILIES.items() if word.startswith(start)), "")


def not_a_provider(text: str, providers: Collection[str] = ()) -> str:
    """The sentence for a model's name where a provider's is expected; "" where it may well be a provider.

    A family of Claude, or a known family with a version, is a model, unless it is among the `providers` that are known.
    """
    name, sign, account = text.partition("@")
    if "/" in text or name in providers or not _is_model(name):
        return ""
    full, family = name, name.lower().removeprefix("claude-")
    if _words(name)[0] in CLAUDE:
        full = f"claude-{name}"
    if family in CLAUDE:
        full = f"claude-{family}-*"
    own = f"{provider_of(full) or 'PROVIDER'}{sign}{account}/{full}"
    other = f"*{sign}{account}/{full if family in CLAUDE else name}"
    return f"{name} is not a provider: did you mean {own}, or {other} for a model of that very name of any provider?"


def _is_model(name: str) -> bool:
    words = _words(name)
    if any(word in CLAUDE for word in words):
        return True
    family = next((start for start in FAMILIES if words[0].startswith(start)), "")
    return bool(family) and any(char.isdigit() for char in name)


def _words(name: str) -> list[str]:
    plain = "".join(char if char.isalnum() else " " for char in name.lower())
    return plain.split() or [""]
