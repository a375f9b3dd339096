"""A model that no cap counts and that looks mistyped is mentioned; others are not (rule C9)."""

from __future__ import annotations

import pytest

from fleetgate.cli.run.mistyped_models import mention_typos
from fleetgate.config.settings import Settings

CAPS = ("host", "project", "anthropic/claude-opus-*", "*/claude-haiku-*", "openai/gpt-5", "umans", "groq@work/llama-*")
SETTINGS = Settings(models=("mistral/codestral-latest",))


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("anthropic/claude-opuss-4-6", "anthropic/claude-opus-*"),
        ("anthropic/claude-opsu-4-6", "anthropic/claude-opus-*"),
        ("anthropic/cluade-opus-4-6", "anthropic/claude-opus-*"),
        ("anthropic@work/claude-ops-4-6", "anthropic/claude-opus-*"),
        ("bedrock/claude-hiaku-4-5", "*/claude-haiku-*"),
        ("mistral/codestrl-latest", "mistral/codestral-latest"),
        ("anthropic/claude-sonet-4-6", "anthropic/claude-sonnet-…"),
    ],
)
def test_c9_a_name_that_is_almost_a_known_one_is_mentioned(model: str, meant: str):
    text = mention_typos(["umans/coder", model], CAPS, SETTINGS)
    assert text.startswith(f"{model} matches no cap on a model; did you mean {meant}?")


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("antropic/claude-opus-4-6", "anthropic/claude-opus-4-6"),
        ("anthropc/claude-haiku-4-6", "anthropic/claude-haiku-4-6"),  # a cap for every provider counts it apart
        ("umnas/coder", "umans/coder"),
    ],
)
def test_c9_a_provider_that_is_almost_a_known_one_is_mentioned(model: str, meant: str):
    text = mention_typos([model], CAPS, SETTINGS)
    assert text == f"{model}: its provider is not known; did you mean {meant}?"


@pytest.mark.parametrize(
    "model",
    [
        "anthropic/claude-opus-4-6",  # counted
        "anthropic/claude-opus-9",
        "umans/anything",
        "openai/gpt-5",
        "openai/gpt-5-mini",  # another model
        "openai/gpt-4o",
        "openai/gpt-6",
        "anthropic/claude-sonnet-4-6",  # known, and without a cap
        "anthropic/claude-3-5-sonnet",
        "groq/llama-4",  # of another account
        "mistral/codestral-latest",
        "local/my-own-model",
        "xyz/abc",
        "openrouter/meta/llama-4",
        "google/gemini-3-pro",
        "zai/glm-4.6",
    ],
)
def test_c9_a_name_that_is_counted_known_or_unlike_any_other_is_not(model: str):
    assert mention_typos([model], CAPS, SETTINGS) == ""


def test_c9_without_caps_and_models_nothing_but_families_and_providers_is_known():
    assert mention_typos(["anthropic/claude-opus-4-6", "a/b"], (), Settings()) == ""
    assert "anthropic/claude" in mention_typos(["anthropc/claude"], (), Settings())
    assert mention_typos([], CAPS, SETTINGS) == ""
