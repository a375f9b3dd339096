"""H4: `/metrics`: every number is documented, and counts what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fleetgate.api.metrics.prometheus import METRICS
from tests.api.served import Served

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
_LINE = re.compile(r'^([a-z_]+)(\{(?:[a-z]+="(?:[^"\\]|\\.)*",?)*\})? ([0-9.e+-]+|\+Inf)$')


def read(served: Served) -> dict[str, float]:
    """Every sample by its name and labels; fails on a line that is none."""
    found = {}
    for line in served.get("/metrics").body.decode().splitlines():
        if not line.startswith("# "):
            match = _LINE.match(line)
            assert match, line
            found[match[1] + (match[2] or "")] = float(match[3])
    return found


@pytest.mark.parametrize("name", METRICS)
def test_h4_every_metric_is_on_its_page(name: str):
    kind, _ = METRICS[name]
    assert re.search(rf"^\| `{name}`.* \| {kind} \|", PAGE.read_text(), re.M), f"docs/metrics.md lacks {name} ({kind})"


def test_h4_the_page_names_no_others():
    assert set(re.findall(r"^\| `(fleetgate_\w+)`", PAGE.read_text(), re.M)) == set(METRICS)


def test_h4_the_numbers_follow_what_happens(fresh: Served):
    fresh.cap("umans", 2, cooldown_ms=0, on_429="step")
    held = fresh.lease(id="holder-0001", renew_within_s=600).json["lease"]
    fresh.lease(id="holder-0002", renew_within_s=600)
    fresh.lease()
    fresh.lease(id="waiter-0001", wait_s=0.1)
    fresh.ok("PUT", "/v1/backoffs", {"key": "openai", "reason": "auth"})
    fresh.ok("POST", f"/v1/leases/{held}/release", {"outcome": "rate_limited", "retry_after_s": 600})
    fresh.ok("POST", "/v1/leases/holder-0002/release", {"force": True})
    umans = '{kind="requests",pool="umans"}'
    expected = {
        f"fleetgate_in_flight{umans}": 0,
        f"fleetgate_limit{umans}": 1,
        f"fleetgate_cap{umans}": 2,
        f"fleetgate_queued{umans}": 1,
        f"fleetgate_paused{umans}": 1,
        "fleetgate_leases": 0,
        "fleetgate_tickets": 1,
        'fleetgate_backoffs{reason="auth"}': 1,
        'fleetgate_grants_total{kind="requests"}': 2,
        'fleetgate_releases_total{kind="requests",outcome="rate_limited"}': 1,
        'fleetgate_deferrals_total{reason="concurrency_cap"}': 1,
        'fleetgate_queued_total{reason="concurrency_cap"}': 1,
        f"fleetgate_rate_limits_total{umans}": 1,
        f"fleetgate_reductions_total{umans}": 1,
        'fleetgate_reclaims_total{cause="forced"}': 1,
        'fleetgate_wait_seconds_count{kind="requests"}': 2,
        'fleetgate_hold_seconds_bucket{kind="requests",le="+Inf"}': 2,
    }
    found = fresh.wait_until(
        lambda: (
            {name: numbers[name] for name in expected if name in numbers}
            if (numbers := read(fresh)).get('fleetgate_reclaims_total{cause="forced"}')
            else None
        ),
        "the feed has counted",
    )
    assert found == expected
    numbers = read(fresh)
    assert numbers["fleetgate_log_commits_total"] >= 6
    assert numbers["fleetgate_log_batch_size_count"] == numbers["fleetgate_log_commits_total"]
    assert numbers["fleetgate_log_seq"] == fresh.get("/v1/status").json["seq"]
    fresh.wait_until(lambda: read(fresh)["fleetgate_event_loop_lag_seconds_count"] > 0, "the lag is measured")
