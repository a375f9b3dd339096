"""HTTP responses to outcomes: the records of all providers in tests/fixtures/http, each trap by name, and bad input."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetgate.signals.classify_http import classify_response, classify_stream_error, pools_hint
from fleetgate.signals.outcome import DEFAULT_SCOPES, KINDS, OK
from fleetgate.signals.rate_limit_headers import PoolHint, lowered, retry_wait
from fleetgate.signals.wait_times import MAX_WAIT_MS

NOW = 1_776_859_200_000  # 2026-04-22T12:00:00Z, a Wednesday
FIXTURES = Path(__file__).parents[1] / "fixtures" / "http"
RESPONSES = [
    (f"{path.stem}: {case['name']}", {"provider": path.stem, **case})
    for path in sorted(FIXTURES.glob("*.json"))
    if path.stem != "streams"
    for case in json.loads(path.read_text("utf-8"))
]
STREAMS = json.loads((FIXTURES / "streams.json").read_text("utf-8"))


def text_of(body: Any) -> str:
    return body if isinstance(body, str) else json.dumps(body)


def judge(case: dict[str, Any], **changed: Any):
    given_headers = changed.get("headers", case.get("headers", {}))
    body = changed.get("body", text_of(case["body"]))
    return classify_response(case["provider"], case["status"], given_headers, body, NOW, case.get("model", ""))


def check(found, want: dict[str, Any]) -> None:
    assert found.kind == want["kind"], found
    assert found.wait_ms == want["wait_ms"], found
    assert found.scope == want["scope"], found
    assert found.family == want.get("family", ""), found
    assert want.get("rule", found.rule) == found.rule


# --- the corpus ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for _, case in RESPONSES], ids=[name for name, _ in RESPONSES])
def test_s1_every_response_has_the_outcome_scope_and_wait_of_its_record(case):
    found = judge(case)
    check(found, case["want"])
    if found.kind != "ok":
        assert found.rule.partition(".")[2].startswith(str(case["status"]))
        assert found.evidence.startswith(f"HTTP {case['status']}")


@pytest.mark.parametrize("case", [case for _, case in RESPONSES], ids=[name for name, _ in RESPONSES])
def test_s1_the_case_of_headers_and_the_packing_of_the_body_change_nothing(case):
    plain = judge(case)
    headers = case.get("headers", {})
    body = text_of(case["body"]).encode()
    assert judge(case, headers={name.upper(): value for name, value in headers.items()}) == plain
    assert judge(case, headers={name.title(): f" {value} " for name, value in headers.items()}) == plain
    assert judge(case, body=body) == plain
    assert judge(case, body=b"\xef\xbb\xbf\r\n" + body) == plain
    assert judge(case, body=gzip.compress(body)) == plain
    assert judge(case, body=zlib.compress(body)) == plain


@pytest.mark.parametrize("case", STREAMS["errors"], ids=lambda case: case["name"])
def test_s1_an_error_after_a_200_has_the_same_outcome_as_one_before_it(case):
    text = text_of(case["event"])
    for event in (text, text.encode(), f"data: {text}" if text[0] in "{[" else text):
        found = classify_stream_error(case["provider"], event, NOW, case.get("model", ""))
        assert found is not None
        check(found, case["want"])
        assert found.evidence.startswith("error in the stream")


@pytest.mark.parametrize("case", STREAMS["no_errors"], ids=lambda case: case["name"])
def test_s2_what_a_model_says_in_a_stream_is_no_error(case):
    for provider in ("anthropic", "openai", "openrouter", "umans"):
        assert classify_stream_error(provider, text_of(case["event"]), NOW) is None


def test_s1_an_event_may_come_decoded():
    found = classify_stream_error("anthropic", {"type": "error", "error": {"type": "overloaded_error"}}, NOW)
    assert found is not None
    assert found.kind == "overloaded"


# --- traps that a record alone does not show -------------------------------------------------------------------


def test_s2_a_gateway_in_the_words_of_a_typed_error_of_the_provider_is_still_auth():
    body = '{"error":{"type":"permission_error","message":"Your key may not use the gateway"}}'
    assert classify_response("anthropic", 403, {}, body, NOW).kind == "auth"


def test_s2_the_name_of_a_provider_may_be_longer_or_unknown():
    body = '{"type":"error","error":{"type":"rate_limit_error","message":"Rate limited"}}'
    rules = {
        name: classify_response(name, 429, {}, body, NOW).rule.partition(".")[0]
        for name in ("anthropic", "google-vertex-anthropic", "azure-openai", "google", "openai-codex", "umans", "")
    }
    assert list(rules.values()) == ["anthropic", "anthropic", "azure", "gemini", "codex", "other", "other"]


def test_s1_a_model_with_glob_characters_in_its_name_is_no_glob():
    body = '{"error":{"details":[{"violations":[{"quotaId":"RequestsPerDay"}]}]}}'
    found = classify_response("gemini", 429, {}, body, NOW, "odd-model[1m]*")
    assert (found.scope, found.family) == ("family", "odd-model?1m??")


def test_s1_only_the_first_64_kb_of_a_body_are_looked_at():
    padding = "x" * 70_000
    early = '{"error":{"code":"insufficient_quota","message":"' + padding + '"}}'
    late = '{"error":{"message":"' + padding + '","code":"insufficient_quota"}}'
    assert classify_response("openai", 429, {}, early, NOW).kind == "quota"
    assert classify_response("openai", 429, {}, late, NOW).kind == "rate_limited"


def test_s1_a_compressed_bomb_is_read_only_as_far_as_anything_else():
    body = gzip.compress(b'{"error":{"code":"insufficient_quota","message":"' + b"x" * 10**7 + b'"}}')
    assert classify_response("openai", 429, {}, body, NOW).kind == "quota"


HOSTILE: dict[str, bytes | str] = {
    "deep lists": "[" * 60_000,
    "deep objects": '{"error":' * 9_000,
    "an object that never ends": '{"a":1,' * 9_000,
    "many objects": "[" + "{}," * 20_000,
    "a code too deep": '{"error":[[[[[[[[[[[[[{"code":"insufficient_quota"}]]]]]]]]]]]]]}',
    "broken JSON inside the message": '{"error":{"message":"{\\"error\\":1' + "[" * 5_000 + '"}}',
    "brackets": "<" * 60_000,
    "backslashes": '{"message":"' + "\\" * 60_000,
    "broken gzip": b"\x1f\x8b\x08garbage",
    "broken deflate": b"\x78\x9cgarbage",
    "no text": b"\xff\xfe\x00",
    "zeros": "\x00" * 100,
    "other types": '{"error":{"code":true,"message":null,"details":7}}',
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_s1_a_hostile_body_is_judged_by_its_status(body):
    assert classify_response("openai", 429, {}, body, NOW).kind == "rate_limited"
    assert classify_response("openai", 500, {}, body, NOW).kind == "server_error"
    assert classify_response("openai", 404, {}, body, NOW).kind == "local_error"


def test_s1_no_secret_of_a_response_is_in_its_evidence():
    keys = [
        "sk-ant-api03-AAAABBBBCCCCDDDD_eeee-ffff",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "gsk_abcdefghij0123456789",
    ]
    message = (
        f"Incorrect API key provided: {keys[0]}. Authorization: Bearer {keys[1]} at https://u:{keys[2]}@host/?key=tiny"
    )
    found = classify_response("openai", 401, {}, json.dumps({"error": {"message": message}}), NOW)
    assert not any(key[4:] in found.evidence for key in (*keys, "key=tiny"))
    assert "Incorrect API key provided" in found.evidence


# --- retry headers (S3) ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "wait_ms"),
    [
        ("30", 30_000),
        ("0", 0),
        ("1.5", 1_500),
        (".25", 250),
        ("0.0001", 1),
        ("30, 30", 30_000),
        ("30s", 30_000),
        ("1m30s", 90_000),
        ("Wed, 22 Apr 2026 12:01:00 GMT", 60_000),
        ("Wednesday, 22-Apr-26 12:01:00 GMT", 60_000),
        ("Wed Apr 22 12:01:00 2026", 60_000),
        ("Wed, 22 Apr 2026 11:59:00 GMT", 0),
        ("1776859260", 60_000),
        ("2026-04-22T12:01:00Z", 60_000),
        ("-1", None),
        ("1e3", None),
        ("nan", None),
        ("١٢", None),
        ("9" * 400, None),
        ("Wed, 32 Foo 2026 99:99:99 GMT", None),
        ("", None),
    ],
)
def test_s3_retry_after_is_read_in_seconds_decimals_dates_and_what_else_is_seen(value, wait_ms):
    assert retry_wait({"retry-after": value}, NOW) == wait_ms


def test_s3_a_finer_header_that_cannot_be_read_gives_way_to_a_coarser_one():
    headers = {"retry-after-ms": "soon", "x-ms-retry-after-ms": "-1", "retry-after": "4"}
    assert retry_wait(headers, NOW) == 4_000


# --- hints for pools (X6) --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "hints"),
    [
        ({}, []),
        (
            {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"},
            [PoolHint("requests", 0, 360_000, "x-ratelimit-remaining-requests")],
        ),
        ({"x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": "6m0s"}, []),
        ({"x-ratelimit-remaining-requests": "0"}, []),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "0s"}, []),
        (
            {"x-ratelimit-limit-tokens": "0", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "9s"},
            [],  # a limit of 0 is none
        ),
        ({"x-ratelimit-remaining-requests": "-1", "x-ratelimit-reset-requests": "9s"}, []),
        (
            {
                "Anthropic-RateLimit-Input-Tokens-Remaining": "0",
                "Anthropic-RateLimit-Input-Tokens-Reset": "2026-04-22T12:00:21Z",
                "Anthropic-RateLimit-Requests-Remaining": "0",
                "Anthropic-RateLimit-Requests-Reset": "2026-04-22T12:00:02Z",
            },
            [
                PoolHint("tokens", 0, 21_000, "anthropic-ratelimit-input-tokens-remaining"),
                PoolHint("requests", 0, 2_000, "anthropic-ratelimit-requests-remaining"),
            ],
        ),
        (
            {"x-ratelimit-remaining-req-minute": "0", "x-ratelimit-remaining-tokens-month": "0"},
            [PoolHint("requests", 0, 60_000, "x-ratelimit-remaining-req-minute")],
        ),
        (
            {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1776859230000"},
            [PoolHint("requests", 0, 30_000, "x-ratelimit-remaining")],
        ),
        (
            {"x-codex-primary-used-percent": "100", "x-codex-primary-reset-after-seconds": "90"},
            [PoolHint("usage", 0, 90_000, "primary")],
        ),
        (
            {
                "x-codex-primary-used-percent": "100",
                "x-codex-primary-reset-at": "1776859230",
                "x-codex-credits-has-credits": "True",
            },
            [],
        ),
        (
            {
                "anthropic-ratelimit-unified-status": "allowed_warning",
                "anthropic-ratelimit-unified-5h-status": "rejected",
            },
            [],
        ),
        (
            {"anthropic-ratelimit-unified-status": "rejected", "anthropic-ratelimit-unified-reset": "1776859230"},
            [PoolHint("usage", 0, 30_000, "")],
        ),
        (
            {
                "anthropic-ratelimit-unified-status": "allowed",
                "anthropic-ratelimit-unified-overage-remaining": "0",
                "anthropic-ratelimit-unified-overage-reset": "1776859230",
            },
            [],
        ),
    ],
)
def test_x6_only_a_window_that_is_used_up_and_has_an_end_pauses_a_pool(headers, hints):
    assert pools_hint(headers, NOW) == hints


# --- anything at all -------------------------------------------------------------------------------------------

NAMES = st.sampled_from(
    [
        "retry-after",
        "retry-after-ms",
        "x-ms-retry-after-ms",
        "x-ratelimit-reset",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
        "x-ratelimit-limit-tokens",
        "anthropic-ratelimit-requests-reset",
        "content-type",
        "anthropic-ratelimit-unified-status",
        "anthropic-ratelimit-unified-7d-reset",
        "x-codex-primary-reset-at",
        "anthropic-ratelimit-unified-7d-status",
        "x-codex-primary-used-percent",
        "x-ratelimit-remaining-tokens-month",
    ]
)
VALUES = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["rejected", "allowed", "100", "0", "6m0s", "1776870000", "1776870000000", "2026-04-22T12:00:21Z"]),
    st.integers(-(10**18), 10**18).map(str),
    st.floats().map(str),
)
HEADERS = st.dictionaries(st.one_of(NAMES, st.text(max_size=20)), VALUES, max_size=8)
KEYS = st.sampled_from(
    [
        "error",
        "type",
        "code",
        "status",
        "message",
        "details",
        "metadata",
        "quotaId",
        "retryDelay",
        "resets_at",
        "raw",
        "resets_in_seconds",
        "detail",
        "violations",
        "headers",
        "limit_source",
        "quotaValue",
        "model",
        "choices",
    ]
)
WORDS = st.sampled_from(
    [
        "error",
        "insufficient_quota",
        "rate_limit_error",
        "PerDay",
        "45.8s",
        "limit: 0",
        "1300",
        "response.failed",
        "429",
        "resets 4:20pm (Asia/Tbilisi)",
        "try again in 11.054s",
        "try again at Apr 28th, 2026 10:03 PM.",
        "credit balance",
    ]
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=20), WORDS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(KEYS, st.text()), inner, max_size=5)
    ),
    max_leaves=20,
)
BODIES = st.one_of(st.binary(max_size=200), st.text(max_size=200), JSON.map(json.dumps))
PROVIDERS = st.sampled_from(
    ["anthropic", "openai", "codex", "gemini", "openrouter", "groq", "mistral", "azure", "umans"]
)


def assert_sound(found) -> None:
    assert found.kind in KINDS
    assert found.wait_ms is None or 0 <= found.wait_ms <= MAX_WAIT_MS
    assert found.scope == ("family" if found.family else DEFAULT_SCOPES[found.kind])
    assert len(found.evidence) <= 300
    assert found.evidence.isprintable()
    assert found.rule.isprintable()


@settings(max_examples=150, deadline=None)
@given(PROVIDERS, st.integers(0, 700), HEADERS, BODIES, st.text(max_size=30))
def test_s1_any_response_has_a_sound_outcome(provider, status, headers, body, model):
    found = classify_response(provider, status, headers, body, NOW, model)
    assert_sound(found)
    assert (found == OK) == (200 <= status < 300)


@settings(max_examples=150, deadline=None)
@given(PROVIDERS, HEADERS, BODIES, st.integers(1, 200))
def test_s1_any_429_has_a_sound_outcome_also_when_it_is_cut_off(provider, headers, body, at):
    assert_sound(classify_response(provider, 429, headers, body, NOW))
    assert_sound(classify_response(provider, 429, headers, body[:at], NOW))


@settings(max_examples=150, deadline=None)
@given(PROVIDERS, st.integers(400, 599), HEADERS, BODIES)
def test_s1_the_case_of_header_names_never_matters(provider, status, headers, body):
    headers = {name: value for name, value in headers.items() if name.isascii()}
    shouted = {name.upper(): value for name, value in headers.items()}
    if len(lowered(shouted)) == len(headers):
        plain = classify_response(provider, status, headers, body, NOW)
        assert classify_response(provider, status, shouted, body, NOW) == plain


@settings(max_examples=150, deadline=None)
@given(PROVIDERS, st.one_of(BODIES, st.dictionaries(st.one_of(KEYS, st.text()), JSON)))
def test_s1_any_event_of_a_stream_is_nothing_or_has_a_sound_outcome(provider, event):
    found = classify_stream_error(provider, event, NOW)
    if found is not None:
        assert_sound(found)
        assert found != OK


@settings(max_examples=150, deadline=None)
@given(PROVIDERS, HEADERS)
def test_x6_any_headers_give_hints_that_end(provider, headers):
    for hint in pools_hint(headers, NOW):
        assert 0 < hint.wait_ms <= MAX_WAIT_MS
