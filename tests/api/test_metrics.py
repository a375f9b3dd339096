"""H4: `/metrics`: every number is documented, and counts what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fleetgate.api.metrics.exposition import CounterFamily, HistogramFamily, gauge_lines, process_lines
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


def test_h4_the_text_is_what_prometheus_own_library_writes():
    disable_created_metrics()
    theirs = CollectorRegistry()
    odd, bounds = 'a "b" \\ c\nd é', (0.1, 1.0, 14400.0)
    lines: list[str] = []
    for labels in ((), ("zone", "kind")):
        name = f"things_{len(labels)}_total"
        text = 'What "they" are \\ in\ntwo lines.'
        count, counter = CounterFamily(name, text, labels), Counter(name, text, labels, registry=theirs)
        name = f"spans_{len(labels)}_seconds"
        span, histogram = (
            HistogramFamily(name, text, bounds, labels),
            Histogram(name, text, labels, buckets=bounds, registry=theirs),
        )
        for values in [()] if not labels else [(odd, "x"), ("y", "")]:
            count.labels(*values).inc()
            count.labels(*values).inc(0.25)
            (counter.labels(*values) if labels else counter).inc(1.25)
            for value in (0, 0.1, 0.5, 1.0, 100, 20_000):
                span.labels(*values).observe(value)
                (histogram.labels(*values) if labels else histogram).observe(value)
        lines += [*count.lines(), *span.lines()]
    lines += gauge_lines("level", "How high.", ("pool",), [((odd,), 3), (("b",), -0.5)])
    gauge = Gauge("level", "How high.", ("pool",), registry=theirs)
    gauge.labels(odd).set(3)
    gauge.labels("b").set(-0.5)
    assert "".join(lines) == generate_latest(theirs).decode()


def test_h4_the_process_is_described_as_by_prometheus_own_library():
    theirs = CollectorRegistry()
    ProcessCollector(registry=theirs)

    def found(text: str) -> dict[str, tuple[str, float]]:
        return {each.name: (each.type, each.samples[0].value) for each in text_string_to_metric_families(text)}

    expected, ours = found(generate_latest(theirs).decode()), found("".join(process_lines()))
    assert {name: kind for name, (kind, _) in ours.items()} == {name: kind for name, (kind, _) in expected.items()}
    for name, (_, value) in ours.items():
        assert value == pytest.approx(expected[name][1], rel=0.05, abs=2), name
