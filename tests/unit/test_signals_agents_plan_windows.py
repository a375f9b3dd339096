"""Plan windows as providers and agents report them (rule W1), from recorded responses and transcripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetgate.core.plans.reading import DAY_MS, HOUR_MS, PlanReading
from fleetgate.signals.agents import agent_for
from fleetgate.signals.agents.plan_windows import (
    window_in_event,
    windows_in_headers,
    windows_in_statusline,
    windows_in_token_count,
)
from fleetgate.signals.agents.usage import records_of
from fleetgate.signals.classify_process import Reader

FIXTURES = Path(__file__).parents[1] / "fixtures"
NOW_S = 1_776_859_200  # 2026-04-22T12:00:00Z
NOW = NOW_S * 1000
SOON = NOW_S + 60
UNIFIED = "anthropic-ratelimit-unified"


def shown(readings: tuple[PlanReading, ...]) -> dict[str, tuple[int, int]]:
    """Used, and when it resets."""
    return {each.window: (each.used, each.resets_in_ms) for each in readings}


def test_w1_headers_of_anthropic_name_each_window():
    headers = {
        f"{UNIFIED}-status": "allowed",
        f"{UNIFIED}-5h-utilization": "0.63",
        f"{UNIFIED}-5h-status": "allowed",
        f"{UNIFIED}-5h-reset": str(NOW_S + 7_800),
        f"{UNIFIED}-7d-utilization": "0.4012",
        f"{UNIFIED}-7d-reset": str(NOW_S + 86_400),
        f"{UNIFIED}-7d_opus-utilization": "1.04",
        f"{UNIFIED}-7d_opus-reset": str(NOW_S + 86_400),
        f"{UNIFIED}-overage-utilization": "0.5",
        f"{UNIFIED}-overage-reset": str(NOW_S + 86_400),
    }
    found = windows_in_headers(headers, NOW, "claude-opus-4-6")
    assert shown(found) == {"5h": (6_300, 7_800_000), "7d": (4_012, DAY_MS), "7d_opus": (10_400, DAY_MS)}
    assert [each.length_ms for each in found] == [5 * HOUR_MS, 7 * DAY_MS, 7 * DAY_MS]
    assert [each.family for each in found] == ["", "", "claude-opus-*"]


def test_w1_headers_of_codex_name_windows_by_their_minutes():
    headers = {
        "x-codex-primary-used-percent": "42.5",
        "x-codex-primary-window-minutes": "300",
        "x-codex-primary-reset-at": str(NOW_S + 3_600),
        "x-codex-secondary-used-percent": "7",
        "x-codex-secondary-window-minutes": "10079",
        "x-codex-secondary-reset-after-seconds": "600",
    }
    assert shown(windows_in_headers(headers, NOW, "gpt-5")) == {"5h": (4_250, HOUR_MS), "7d": (700, 600_000)}


def test_w1_recorded_refusals_of_anthropic_have_their_windows():
    corpus = json.loads((FIXTURES / "http" / "anthropic.json").read_text())
    cases = [case for case in _objects(corpus) if f"{UNIFIED}-5h-utilization" in case]
    assert cases
    for headers in cases:
        found = shown(windows_in_headers(headers, NOW, ""))
        assert found["5h"] == (10_400, (1_776_870_000 - NOW_S) * 1000)
        assert found["7d"][0] == 4_000


def _objects(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(found for each in value.values() for found in _objects(each))]
    return [found for each in value for found in _objects(each)] if isinstance(value, list) else []


def test_w1_a_reset_in_the_past_makes_no_reading():
    past = {f"{UNIFIED}-5h-utilization": "0.9", f"{UNIFIED}-5h-reset": str(NOW_S - 60)}
    assert windows_in_headers(past, NOW, "") == ()
    long_past = {f"{UNIFIED}-5h-utilization": "0.9", f"{UNIFIED}-5h-reset": str(NOW_S - 90_000)}
    assert windows_in_headers(long_past, NOW, "") == ()
    assert window_in_event({"rateLimitType": "five_hour", "utilization": 0.9, "resetsAt": NOW_S - 60}, NOW, "") is None


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (
            {"status": "allowed", "rateLimitType": "five_hour", "utilization": 0.5, "resetsAt": NOW_S + 60},
            (5_000, 60_000),
        ),
        ({"status": "rejected", "rateLimitType": "seven_day", "resetsAt": NOW_S + 60}, (10_000, 60_000)),
        ({"status": "allowed_warning", "rateLimitType": "five_hour", "utilization": 0.91}, (9_100, 0)),
        ({"status": "allowed", "rateLimitType": "five_hour", "resetsAt": NOW_S + 60}, None),
        ({"status": "rejected", "rateLimitType": "overage", "resetsAt": NOW_S + 60}, None),
        ({"status": "rejected", "resetsAt": NOW_S + 60}, None),
    ],
)
def test_w1_an_event_of_claude_code_names_one_window(info: dict[str, Any], expected: tuple[int, int] | None):
    found = window_in_event(info, NOW, "")
    assert (None if found is None else (found.used, found.resets_in_ms)) == expected


@pytest.mark.parametrize(
    ("name", "window", "used"),
    [
        ("claude_session", "5h", 10_000),
        ("claude_opus", "7d_opus", 10_000),
        ("claude_ok", "5h", 9_100),
        ("claude_json_verbose_ok", "5h", 9_100),
    ],
)
def test_w1_a_recorded_run_of_claude_code_reports_its_window(name: str, window: str, used: int):
    mode = "json" if "json" in name else "stream-json"
    argv = ["claude", "-p", "x", "--output-format", mode, "--verbose", "--model", "claude-opus-4-6"]
    before_reset = 1_794_779_000_000
    reader = Reader(agent_for(argv), argv, lambda: before_reset)
    reader.feed(1, (FIXTURES / "agents" / f"{name}.out").read_bytes())
    reader.used()
    found = reader.plan_windows[window]
    assert found.used == used
    assert found.is_floor == (mode == "json"), "an array is printed at the end, however old its events are"
    if used == 10_000:
        assert abs(found.resets_in_ms - 913_000) < 2_000


def test_w1_words_about_limits_in_tool_output_are_no_windows():
    argv = ["claude", "-p", "x", "--output-format", "stream-json"]
    reader = Reader(agent_for(argv), argv, lambda: NOW)
    line = (
        '{"type":"user","message":{"content":[{"type":"tool_result","content":"{\\"type\\":\\"rate_limit_event\\"}"}]}}'
    )
    reader.feed(1, line.encode() + b"\n")
    assert reader.plan_windows == {}


def test_w1_the_status_line_of_claude_code_has_windows_of_unknown_age():
    limits = {
        "five_hour": {"used_percentage": 23.5, "resets_at": NOW_S + 600},
        "seven_day": {"used_percentage": 41, "resets_at": "2026-04-23T12:00:00Z"},
        "seven_day_opus": None,
    }
    found = windows_in_statusline({"session_id": "x", "rate_limits": limits}, NOW)
    assert shown(found) == {"5h": (2_350, 600_000), "7d": (4_100, DAY_MS)}
    assert all(each.is_floor for each in found)
    assert windows_in_statusline({"cost": {}}, NOW) == ()
    assert windows_in_statusline([], NOW) == ()


def test_w1_a_token_count_of_codex_has_windows_and_its_own_time():
    limits = {
        "primary": {"used_percent": 12.0, "window_minutes": 299, "resets_at": NOW_S + 3_600},
        "secondary": {"used_percent": 80, "window_minutes": 10_080, "resets_in_seconds": 7_200},
    }
    found = windows_in_token_count(limits, NOW, NOW + 5_000)
    assert shown(found) == {"5h": (1_200, HOUR_MS), "7d": (8_000, 2 * HOUR_MS)}
    assert [each.age_ms for each in found] == [5_000, 5_000]
    assert windows_in_token_count({"primary": None, "secondary": None}, NOW, NOW) == ()
    assert windows_in_token_count(None, NOW, NOW) == ()


def test_w1_the_last_token_count_in_a_rollout_is_found():
    records = records_of(agent_for(["codex"]))
    rows = (FIXTURES / "agents" / "sessions" / "codex_usage.jsonl").read_text().splitlines()
    counts = [json.loads(row) for row in rows if '"token_count"' in row]
    limits = {"primary": {"used_percent": 55, "window_minutes": 300, "resets_at": NOW_S + 60}}
    counts[-1]["payload"]["rate_limits"] = limits
    report = records.recorded(json.dumps(counts[-1]).encode())
    assert report is not None
    assert report.limits == limits


_NAMES = ["rate_limits", "five_hour", "used_percentage", "resets_at", "primary", "used_percent", "window_minutes"]
_NAMES += ["rateLimitType", "utilization", "resetsAt", "status"]
_LEAVES = st.none() | st.booleans() | st.floats() | st.text(max_size=8)


@settings(max_examples=60)
@given(st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(_NAMES), inner)))
def test_w1_no_input_makes_a_reader_fail(value: Any):
    windows_in_statusline(value, NOW)
    windows_in_token_count(value, NOW, NOW)
    if isinstance(value, dict):
        window_in_event(value, NOW, "m")
        windows_in_headers({f"{UNIFIED}-5h-utilization": str(value), f"{UNIFIED}-5h-reset": str(value)}, NOW, "m")
