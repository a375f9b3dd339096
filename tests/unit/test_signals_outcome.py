"""Outcomes: their scopes, and evidence without secrets."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetgate.signals.outcome import DEFAULT_SCOPES, KINDS, OK, Outcome, cut_secrets, evidence_of, outcome, shorten


def test_s1_there_are_eight_outcomes_each_with_its_scope():
    assert KINDS == (
        "ok",
        "rate_limited",
        "usage_window",
        "quota",
        "overloaded",
        "auth",
        "server_error",
        "local_error",
    )
    assert set(DEFAULT_SCOPES) == set(KINDS)
    assert [outcome(kind, "rule").scope for kind in KINDS] == [
        *("", "model", "account", "account"),
        *("model", "account", "model", ""),
    ]


def test_s1_a_family_is_a_scope_and_a_wait_is_never_negative():
    found = outcome("usage_window", "rule", family="claude-opus-*", wait_ms=-5)
    assert found == Outcome("usage_window", "family", "claude-opus-*", 0, "rule")
    assert outcome("usage_window", "rule", scope="model").scope == "model"
    assert outcome("auth", "rule").wait_ms is None


def test_s1_an_outcome_is_written_without_what_it_does_not_have():
    assert msgspec.json.encode(OK) == b'{"kind":"ok"}'
    assert msgspec.json.decode(msgspec.json.encode(outcome("quota", "r", "e")), type=Outcome).evidence == "e"


SECRETS = {
    "Anthropic": "sk-ant-api03-AbCdEf0123456789_-AbCdEf0123456789-QQ",
    "Anthropic OAuth": "sk-ant-oat01-AbCdEf0123456789AbCdEf0123456789",
    "OpenAI": "sk-AbCdEf0123456789AbCdEf0123456789AbCdEf0123456789",
    "OpenAI project": "sk-proj-AbCdEf0123456789_AbCdEf",
    "OpenAI, its middle left out": "sk-proj-AbCd************************Wxyz",
    "OpenRouter": "sk-or-v1-0123456789abcdef0123456789abcdef",
    "Google": "AIzaSyA0123456789-abcdefghijklmnopqrstuv",
    "Google OAuth": "ya29.a0AfB_byC0123456789",
    "Groq": "gsk_AbCdEf0123456789AbCdEf0123456789",
    "xAI": "xai-AbCdEf0123456789AbCdEf",
    "Hugging Face": "hf_AbCdEfGhIjKlMnOpQrSt",
    "GitHub": "ghp_AbCdEf0123456789AbCdEf0123456789AbCd",
    "AWS": "AKIAIOSFODNN7EXAMPLE",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "hex": "0123456789abcdef0123456789abcdef",
    "base64": "dGhpcyBpcyBub3QgYSBzZWNyZXQgYnV0IGl0IGxvb2tz/GlrZSBvbmU+MTIz==",
}
NAMED = [
    "Authorization: Bearer {}",
    "authorization: Basic {}",
    "Bearer {}",
    "x-api-key: {}",
    "X-Goog-Api-Key={}",
    "ANTHROPIC_API_KEY={} claude -p",
    '{{"api_key": "{}"}}',
    '{{\\"apiKey\\":\\"{}\\"}}',
    "password={}",
    "client_secret: '{}'",
    '"refresh_token":"{}"',
    "Cookie: a=1; session={}; b=2",
    "authorization: token {}",
    "https://user:{}@example.com/v1",
    "https://{}@example.com/v1",
    "https://example.com/v1?alt=sse&key={}&x=1",
    "https://example.com/?token={}",
]


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS.keys())
@pytest.mark.parametrize("frame", ["{}", "key {} refused", "({}).", '"{}"', "a={},b", "\x1b[31m{}\x1b[0m", "x\n{}\ny"])
def test_s1_a_secret_that_shows_what_it_is_is_cut_out_wherever_it_stands(secret, frame):
    found = evidence_of(frame.format(secret))
    assert "***" in found
    assert secret[8:16] not in found


@pytest.mark.parametrize(
    "frame", ["0\x1b {} \ud7fc", "0\x1b[31m{}", "0\x1b]0;t\x07{}", "a\u200b{}", "0\x1b\x1b {}\x1b"]
)
@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS.keys())
def test_s1_nothing_unseen_before_a_secret_hides_it(secret, frame):
    assert secret[8:16] not in evidence_of(frame.format(secret))


@pytest.mark.parametrize("frame", NAMED)
def test_s1_a_value_under_a_telling_name_is_cut_out_whatever_it_looks_like(frame):
    found = evidence_of(frame.format("hunter2hunter"))
    assert "***" in found
    assert "hunter2" not in found


def test_s1_a_secret_broken_by_control_characters_is_still_one():
    assert "3456789" not in evidence_of("sk-ant-\x00api03-AbCdEf\x1b[1m012\u200b3456789AbCdEf")


def test_s1_a_secret_at_the_end_of_what_is_looked_at_is_not_shown_in_part():
    for fill in range(4060, 4100):
        assert "AbC" not in cut_secrets("x" * fill + " sk-ant-api03-AbCdEf0123456789")


@pytest.mark.parametrize(
    "text",
    [
        "HTTP 429 rate_limit_error: Number of requests has exceeded your rate limit",
        "quotaId GenerateRequestsPerDayPerProjectPerModel-FreeTier",
        "generativelanguage.googleapis.com/generate_content_free_tier_input_token_count",
        "models/claude-3-5-sonnet-20241022 and accounts/fireworks/models/llama-v3p1-405b-instruct",
        "request id: req_011CSHoEeqs5C35K2UUqR7Fy, 7f54fbff-3504-477a-b4a2-08359988239d",
        "exceeded retry limit, last status: 429 Too Many Requests, code=429",
        "You've hit your session limit · resets 4:20pm (Asia/Tbilisi)",
        "risk-averse task-runner disk-full",
    ],
)
def test_s1_what_helps_to_understand_stays(text):
    assert evidence_of(text) == text


def test_s1_evidence_is_one_short_line_without_control_characters():
    text = "\x1b]0;title\x07a\x1b[31m\tb\r\n\x00c\u202e d\u2028e\x9bf"
    assert evidence_of(text) == "a b c d ef"
    assert evidence_of("ab " * 200) == ("ab " * 200)[:299].rstrip() + "…"
    assert shorten("x" * 300) == "x" * 300
    assert shorten("x" * 301) == "x" * 299 + "…"


@given(st.text(), st.sampled_from(list(SECRETS.values())), st.text())
def test_s1_evidence_of_any_text_is_a_printable_line_that_stays_as_it_is(before, secret, after):
    found = evidence_of(f"{before} {secret} {after}")
    assert len(found) <= 300
    assert found.isprintable()
    assert evidence_of(found) == found
    assert secret[8:20] not in found


@pytest.mark.parametrize("piece", ["eyJ", "sk-", "://", "api_key=", "bearer ", "\x1b]", "A1", "key=", "eyJaaaaaa."])
def test_s1_a_long_text_is_cleaned_quickly(piece):
    began = time.process_time()
    evidence_of(piece * (100_000 // len(piece)))
    assert time.process_time() - began < 1
