"""The whole tokens that are found in credential files, and nothing else of them."""

from __future__ import annotations

import json

import pytest

from fleetgate.gate.providers.credential_tokens import tokens_in

A, B, C = "sk-ant-oat01-aaaaaaaa", "sk-ant-ort01-bbbbbbbb", "eyJhbGciOi.cccccccc.dddd"
CLAUDE = {"claudeAiOauth": {"accessToken": A, "refreshToken": B, "expiresAt": 1, "scopes": ["user:inference-and-more"]}}
CODEX = {
    "OPENAI_API_KEY": "sk-proj-0123456789",
    "tokens": {
        "id_token": "eyJ.id.token-of-codex",
        "access_token": C,
        "refresh_token": B,
        "account_id": "acc-" + "1" * 20,
    },
    "last_refresh": "2026-01-01T00:00:00.000Z",
}
OPENCODE = {
    "anthropic": {"type": "oauth", "refresh": B, "access": A, "expires": 1},
    "openai": {"type": "api", "key": "sk-proj-0123456789"},
    "google": {"type": "api", "key": "AIzaSy-0123456789"},
}
GEMINI = {
    "access_token": "ya29.0123456789abc",
    "refresh_token": "1//0123456789abcdef",
    "token_type": "Bearer",
}


@pytest.mark.parametrize(
    ("content", "provider", "found"),
    [
        (CLAUDE, "anthropic", {A}),
        (CODEX, "openai", {"sk-proj-0123456789", C}),
        (OPENCODE, "anthropic", {A}),
        (OPENCODE, "openai", {"sk-proj-0123456789"}),
        (OPENCODE, "google", {"AIzaSy-0123456789"}),
        (OPENCODE, "groq", set()),
        (GEMINI, "google", {"ya29.0123456789abc"}),
        ({"anthropic": A, "openai": C}, "anthropic", {A}),
        ({"umans": {"nested": [{"apiKey": A}]}}, "umans", {A}),
        ({"apiKey": "short"}, "umans", set()),
        ({"apiKey": "two words that are long"}, "umans", set()),
        ({"key_id": A, "url": "https://example.org/key", "email": "someone@example.org"}, "umans", set()),
    ],
)
def test_of_json_the_providers_own_tokens_are_found(content: object, provider: str, found: set[str]) -> None:
    assert tokens_in(json.dumps(content).encode(), provider) == found


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (f"{A}\n", {A}),
        (f"export SOME_KEY='{A}'\nOTHER={C}\n", {A, C}),
        ("# a comment that is rather long\n\n", set()),
        ("short\n", set()),
        ("", set()),
        ('{"apiKey": "half-written-token-', set()),
        ("[" * 5000, set()),
    ],
)
def test_of_other_text_a_line_or_the_value_of_a_variable_is_a_token(content: str, found: set[str]) -> None:
    assert {token for token in tokens_in(content.encode(), "umans") if "=" not in token} == found


def test_of_a_login_file_only_the_named_part_counts() -> None:
    assert tokens_in(json.dumps(OPENCODE).encode(), "anthropic", "openai") == {"sk-proj-0123456789"}
    assert tokens_in(json.dumps(OPENCODE).encode(), "anthropic", "xai") == frozenset()
