"""Rates of providers: by the headers of any response (rule V6), and by a refusal that names one (rule V8)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetgate.core.usage import Reading
from fleetgate.signals.classify_http import classify_response
from fleetgate.signals.rate_limit_headers import lowered, pools_hint, readings_of

NOW = 1_776_859_200_000  # 2026-04-22T12:00:00Z
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def anthropic(**windows: tuple[int, int, str]) -> dict[str, str]:
    headers = {}
    for name, values in windows.items():
        for part, value in zip(("limit", "remaining", "reset"), values, strict=True):
            headers[f"anthropic-ratelimit-{name.replace('_', '-')}-{part}"] = str(value)
    return headers


ANTHROPIC = anthropic(
    requests=(1000, 999, "2026-04-22T12:00:00Z"),
    input_tokens=(80_000, 61_000, "2026-04-22T12:00:14Z"),
    output_tokens=(16_000, 16_000, "2026-04-22T12:00:00Z"),
    tokens=(96_000, 77_000, "2026-04-22T12:00:14Z"),
)
OPENAI = {
    "x-ratelimit-limit-requests": "10000",
    "x-ratelimit-remaining-requests": "9999",
    "x-ratelimit-reset-requests": "6ms",
    "x-ratelimit-limit-tokens": "30000000",
    "x-ratelimit-remaining-tokens": "29999990",
    "x-ratelimit-reset-tokens": "1ms",
}


@pytest.mark.parametrize(
    ("provider", "headers", "readings"),
    [
        (
            "anthropic",
            ANTHROPIC,
            [
                Reading("calls", 1000, 999, 0, MINUTE),
                Reading("input", 80_000, 61_000, 14_000, MINUTE),
                Reading("output", 16_000, 16_000, 0, MINUTE),
            ],
        ),
        (
            "anthropic",
            anthropic(tokens=(100_000, 4000, "2026-04-22T12:00:30Z")),
            [Reading("tokens", 100_000, 4000, 30_000, MINUTE)],
        ),
        (
            "openai",
            OPENAI,
            [Reading("calls", 10_000, 9999, 6), Reading("tokens", 30_000_000, 29_999_990, 1)],
        ),
        (
            "openai",
            {
                "x-ratelimit-limit-requests": "200",
                "x-ratelimit-remaining-requests": "198",
                "x-ratelimit-reset-requests": "14m24s",
            },
            [Reading("calls", 200, 198, 864_000, DAY)],
        ),
        (
            "openai",
            {
                "x-ratelimit-limit-requests": "60",
                "x-ratelimit-remaining-requests": "60",
                "x-ratelimit-reset-requests": "0s",
            },
            [Reading("calls", 60, 60, 0, 0)],
        ),
        (
            "openai",
            {
                "x-ratelimit-limit-tokens": "30000",
                "x-ratelimit-remaining-tokens": "24000",
                "x-ratelimit-reset-tokens": "12s",
            },
            [Reading("tokens", 30_000, 24_000, 12_000, MINUTE)],
        ),
        (
            "groq",
            {
                "x-ratelimit-limit-requests": "14400",
                "x-ratelimit-remaining-requests": "14370",
                "x-ratelimit-reset-requests": "2m59.56s",
                "x-ratelimit-limit-tokens": "18000",
                "x-ratelimit-remaining-tokens": "17997",
                "x-ratelimit-reset-tokens": "7.66s",
            },
            [Reading("calls", 14_400, 14_370, 179_560, DAY), Reading("tokens", 18_000, 17_997, 7660, MINUTE)],
        ),
        (
            "mistral",
            {
                "x-ratelimit-limit-req-minute": "720",
                "x-ratelimit-remaining-req-minute": "717",
                "x-ratelimit-limit-tokens-minute": "5000000",
                "x-ratelimit-remaining-tokens-minute": "4999911",
                "x-ratelimit-limit-tokens-month": "1000000000",
                "x-ratelimit-remaining-tokens-month": "999",
                "x-ratelimit-tokens-query-cost": "52",
            },
            [Reading("calls", 720, 717, 0, MINUTE), Reading("tokens", 5_000_000, 4_999_911, 0, MINUTE)],
        ),
        (
            "mistral",
            {
                "x-ratelimitbysize-limit-minute": "500000",
                "x-ratelimitbysize-remaining-minute": "499975",
                "x-ratelimitbysize-limit-month": "1000000000",
                "x-ratelimitbysize-remaining-month": "999999000",
                "ratelimitbysize-query-cost": "25",
            },
            [Reading("tokens", 500_000, 499_975, 0, MINUTE)],
        ),
        (
            "mistral",
            {"ratelimitbysize-limit": "500000", "ratelimitbysize-remaining": "499975", "ratelimitbysize-reset": "57"},
            [Reading("tokens", 500_000, 499_975, 57_000, 0)],
        ),
        (
            "openrouter",
            {"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "3", "X-RateLimit-Reset": "1776859230000"},
            [Reading("calls", 20, 3, 30_000, 0)],
        ),
        (
            "my-azure",
            {
                "x-ratelimit-limit-tokens": "60000",
                "x-ratelimit-remaining-tokens": "100",
                "x-ratelimit-reset-tokens": "9",
            },
            [Reading("tokens", 60_000, 100, 9000, MINUTE)],
        ),
        (
            "other",  # as Cerebras and Nous have them
            {
                "x-ratelimit-limit-requests-day": "1440",
                "x-ratelimit-remaining-requests-day": "1",
                "x-ratelimit-reset-requests-day": "33011.38",
                "x-ratelimit-limit-tokens-1h": "8000",
                "x-ratelimit-remaining-tokens-1h": "7000",
            },
            [Reading("calls", 1440, 1, 33_011_380, DAY), Reading("tokens", 8000, 7000, 0, HOUR)],
        ),
        (
            "other",  # as Fireworks has them
            {
                "x-ratelimit-limit-tokens-prompt": "60000",
                "x-ratelimit-remaining-tokens-prompt": "59000",
                "x-ratelimit-limit-tokens-generated": "6000",
                "x-ratelimit-remaining-tokens-generated": "5999",
            },
            [Reading("input", 60_000, 59_000), Reading("output", 6000, 5999)],
        ),
    ],
)
def test_V6_headers_tell_the_rates_of_a_provider(
    provider: str, headers: dict[str, str], readings: list[Reading]
) -> None:
    dialect = "azure" if "azure" in provider else provider
    assert list(readings_of(dialect, lowered(headers), NOW)) == readings


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-ratelimit-remaining-tokens": "5"},
        {"x-ratelimit-limit-tokens": "-1", "x-ratelimit-remaining-tokens": "-1", "x-ratelimit-reset-tokens": "0"},
        {"x-ratelimit-limit-tokens": "0", "x-ratelimit-remaining-tokens": "0"},
        {"x-ratelimit-limit-tokens": "9" * 15, "x-ratelimit-remaining-tokens": "1"},
        {"x-ratelimit-limit-tokens": "9" * 4000, "x-ratelimit-remaining-tokens": "1"},
        {"x-ratelimit-limit-images": "50", "x-ratelimit-remaining-images": "1"},
        {"x-ratelimit-limit-input-images": "50", "x-ratelimit-remaining-input-images": "1"},
        {"anthropic-ratelimit-unified-5h-limit": "50", "anthropic-ratelimit-unified-5h-remaining": "1"},
        {"x-ratelimit-limit-requests": "nan", "x-ratelimit-remaining-requests": "inf"},
    ],
)
def test_V6_what_is_no_limit_makes_no_rate(headers: dict[str, str]) -> None:
    assert readings_of("openai", headers, NOW) == ()


def test_V6_a_limit_by_the_day_counts_only_where_there_is_no_shorter_one() -> None:
    headers = {
        "x-ratelimit-limit-tokens-minute": "60000",
        "x-ratelimit-remaining-tokens-minute": "50000",
        "x-ratelimit-limit-tokens-day": "1000000",
        "x-ratelimit-remaining-tokens-day": "900",
    }
    assert readings_of("other", headers, NOW) == (Reading("tokens", 60_000, 50_000, 0, MINUTE),)


def test_X6_a_rate_that_is_followed_pauses_nothing() -> None:
    headers = OPENAI | {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "60s"}
    assert [hint.what for hint in pools_hint(headers, NOW)] == ["tokens"]
    assert pools_hint(headers, NOW, rates=["calls", "tokens"]) == []


def test_V6_of_two_windows_of_one_unit_the_tightest_counts() -> None:
    headers = OPENAI | {
        "x-ratelimit-limit-project-tokens": "30000000",
        "x-ratelimit-remaining-project-tokens": "5",
        "x-ratelimit-reset-project-tokens": "1m0s",
    }
    assert Reading("tokens", 30_000_000, 5, MINUTE, MINUTE) in readings_of("openai", headers, NOW)


@given(
    st.dictionaries(
        st.sampled_from([*OPENAI, *ANTHROPIC, "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]),
        st.text(max_size=30) | st.integers().map(str) | st.floats().map(str),
    ),
    st.sampled_from(["anthropic", "openai", "groq", "other"]),
)
def test_V6_no_header_makes_a_rate_that_cannot_be(headers: dict[str, str], dialect: str) -> None:
    for each in readings_of(dialect, headers, NOW):
        assert 0 <= each.remaining <= each.limit <= 1 << 40
        assert each.limit >= 1
        assert each.reset_ms >= 0


def refusal(provider: str, message: str, headers: dict[str, str] | None = None, details: Any = None) -> Any:
    body: dict[str, Any] = {"error": {"message": message, "type": "rate_limit_error"}}
    if details is not None:
        body["error"]["details"] = details
    return classify_response(provider, 429, headers or {}, json.dumps(body), NOW, "m")


@pytest.mark.parametrize(
    ("provider", "message", "unit", "reading"),
    [
        (
            "openai",
            "Rate limit reached for gpt-5 on tokens per min (TPM): Limit 30000, Used 29500, Requested 800. Visit https://x",
            "tokens",
            Reading("tokens", 30_000, 500, 0, MINUTE),
        ),
        (
            "openai",
            "Rate limit reached for gpt-5 on requests per min (RPM): Limit 3, Used 3, Requested 1. Try again in 20s.",
            "calls",
            Reading("calls", 3, 0, 0, MINUTE),
        ),
        (
            "anthropic",
            "This request would exceed your organization's rate limit of 30,000 input tokens per minute (org: x).",
            "input",
            Reading("input", 30_000, 0, 0, MINUTE),
        ),
        (
            "anthropic",
            "This request would exceed the rate limit for your organization (x) of 8,000 output tokens per minute.",
            "output",
            Reading("output", 8000, 0, 0, MINUTE),
        ),
        (
            "anthropic",
            "This request would exceed your organization's rate limit of 50 requests per minute.",
            "calls",
            Reading("calls", 50, 0, 0, MINUTE),
        ),
        ("anthropic", "Number of request tokens has exceeded your per-minute rate limit (https://x).", "input", None),
        ("anthropic", "Number of requests has exceeded your per-minute rate limit.", "calls", None),
        ("azure", "Requests to the Creation Operation have exceeded token rate limit of your S0 tier.", "tokens", None),
        ("azure", "Requests to the Operation have exceeded call rate limit of your current tier.", "calls", None),
        ("mistral", "Requests rate limit exceeded", "calls", None),
    ],
)
def test_V8_a_refusal_names_the_rate_that_it_means(
    provider: str, message: str, unit: str, reading: Reading | None
) -> None:
    found = refusal(provider, message)
    assert (found.kind, found.rate) == ("rate_limited", unit)
    assert found.readings == (() if reading is None else (reading,))


@pytest.mark.parametrize(
    "message",
    [
        "Number of concurrent connections to the API exceeds your rate limit. Please try again later.",
        "Rate limit reached for m: too many requests at once. Please slow down.",
        "This request would exceed your account's rate limit. Please try again later.",
        "Rate limit reached for m on tokens per day (TPD): Limit 100000, Used 99000, Requested 2000. Try again in 28m.",
        "Rate limit reached for m on requests per day (RPD): Limit 200, Used 200, Requested 1. Try again in 7m12s.",
        "Rate limit exceeded",
        "",
    ],
)
def test_V8_a_refusal_that_names_no_rate_means_none(message: str) -> None:
    assert refusal("openai", message).rate == ""


def test_V8_headers_of_a_refusal_name_the_rate_of_which_nothing_remains() -> None:
    empty = ANTHROPIC | anthropic(output_tokens=(16_000, 0, "2026-04-22T12:00:20Z"))
    found = refusal("anthropic", "Rate limited", empty)
    assert found.rate == "output"
    assert Reading("output", 16_000, 0, 20_000, MINUTE) in found.readings
    assert refusal("anthropic", "Rate limited", ANTHROPIC).rate == ""


def test_V8_what_the_headers_tell_about_a_rate_goes_before_the_words() -> None:
    headers = anthropic(input_tokens=(30_000, 2000, "2026-04-22T12:00:56Z"))
    found = refusal("anthropic", "This request would exceed your rate limit of 30,000 input tokens per minute", headers)
    assert (found.rate, found.readings) == ("input", (Reading("input", 30_000, 2000, 56_000, MINUTE),))


def test_V8_an_empty_window_by_the_day_is_no_rate() -> None:
    headers = {
        "x-ratelimit-limit-requests": "14400",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "6h0m0s",
    }
    assert refusal("groq", "Rate limit reached", headers).rate == ""


def quota(name: str, value: str = "") -> dict[str, Any]:
    violation = {"quotaMetric": "generativelanguage.googleapis.com/x", "quotaId": name}
    return violation | ({"quotaValue": value} if value else {})


@pytest.mark.parametrize(
    ("violations", "unit", "readings"),
    [
        (
            [quota("GenerateContentInputTokensPerModelPerMinute-FreeTier", "250000")],
            "input",
            (Reading("input", 250_000, 0, 12_300, MINUTE),),
        ),
        (
            [quota("GenerateRequestsPerMinutePerProjectPerModel-FreeTier", "10")],
            "calls",
            (Reading("calls", 10, 0, 12_300, MINUTE),),
        ),
        ([quota("GenerateRequestsPerMinutePerProjectPerModel")], "calls", ()),
        (
            [
                quota("GenerateRequestsPerMinutePerProjectPerModel", "10"),
                quota("GenerateRequestsPerDayPerProjectPerModel", "500"),
            ],
            "",
            (),
        ),
    ],
)
def test_V8_gemini_names_its_quotas(violations: list[Any], unit: str, readings: tuple[Reading, ...]) -> None:
    details = [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "12.3s"},
    ]
    found = refusal("gemini", "You exceeded your current quota, check your plan and billing.", {}, details)
    assert (found.rate, found.readings) == (unit, readings)
