"""`fleetgate metrics` (rule O7)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule, Spec
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log import open_log
from fleetgate.present.run_statistics import percentile
from tests.cli.command_line import Cli, opened

OPUS = "anthropic/claude-opus-4-6"
HOUR_MS = 3_600_000


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def run(cli: Cli, outcome: str = "ok", model: str = OPUS, kind: str = "agents") -> None:
    cli.gate.one(cmd.Release(cli.occupy(model, kind=kind), outcome))


def test_o7_metrics_sum_up_by_model(cli: Cli):
    cli.gate.one(cmd.SetRule(Rule("agents", "host", 1)))
    for outcome in ("ok", "ok", "rate_limited", "local_error"):
        run(cli, outcome)
        if outcome == "rate_limited":
            cli.gate.one(cmd.EndBackoff(OPUS))
    run(cli, model="umans/coder", kind="requests")
    held = cli.occupy(OPUS)
    cli.gate.one(cmd.Acquire("aaaaaaaaaa", Spec(models=(OPUS,), host=cli.gate.host), cli.gate.me, wait=False))
    cli.gate.one(cmd.Reclaim(held, "the test"))
    document = cli.json("metrics")
    assert document["hours"] == 24
    assert document["since"].endswith("Z")
    opus, umans = document["models"]
    assert set(opus) >= {
        "model", "kind", "runs", "ok", "failed", "deferrals", "reclaims", "rate_limits",
        "wait_p50_s", "wait_p95_s", "hold_p50_s", "hold_p95_s",
    }  # fmt: skip
    assert (opus["model"], opus["kind"], opus["runs"], opus["ok"]) == (OPUS, "agents", 4, 2)
    assert opus["failed"] == {"rate_limited": 1, "local_error": 1}
    assert (opus["deferrals"], opus["reclaims"], opus["rate_limits"]) == (1, {"forced": 1}, 1)
    assert (umans["model"], umans["kind"], umans["runs"]) == ("umans/coder", "requests", 1)


def test_o7_metrics_tell_rate_limits_by_pool(cli: Cli):
    cli.gate.one(cmd.SetRule(Rule("requests", "umans", 4, on_429="step")))
    for _ in range(2):
        cli.gate.one(cmd.Report(kind="requests", target="umans", retry_after_ms=1))
    assert cli.json("metrics")["pools"] == [{"pool": "umans", "kind": "requests", "rate_limits": 2, "reductions": 2}]
    assert "umans (requests): rate-limited 2 times, auto-reduced 2 times" in cli.ok("metrics")


def test_o7_metrics_look_only_so_far_back(cli: Cli):
    now = cli.gate.now()
    for age_h, model in ((30, "old/one"), (5, "new/one"), (5, "new/one"), (1, "newest/one")):
        gate = DirectGate(open_log(f"sqlite://{cli.folder}/past", clock=lambda at=now - age_h * HOUR_MS: at))  # type: ignore[misc]
        for _ in range(3):
            gate.one(cmd.Acquire(f"id{gate.state.seq}", Spec(models=(model,)), gate.me))
            gate.one(cmd.Release(f"id{gate.state.seq - 1}"))
        gate.close()
    cli.env("FLEETGATE_HOME", str(cli.folder / "past"))
    runs = {
        hours: {row["model"]: row["runs"] for row in cli.json("metrics", "--hours", hours)["models"]}
        for hours in ("2", "24", "31", "0.5")
    }
    assert runs["0.5"] == {}
    assert runs["2"] == {"newest/one": 3}
    assert runs["24"] == {"newest/one": 3, "new/one": 6}
    assert runs["31"] == {"newest/one": 3, "new/one": 6, "old/one": 3}


def test_o7_metrics_for_people_are_a_table(cli: Cli):
    run(cli)
    run(cli, "server_error")
    cli.gate.decide([cmd.Bypass(cli.gate.me)])
    text = cli.ok("metrics")
    (line,) = [line for line in text.splitlines() if line.startswith(OPUS)]
    assert line.split()[:6] == [OPUS, "agents", "2", "1", "1", "server_error"]
    assert "also: 1 bypassed" in text


def test_o7_nothing_to_sum_up_says_so(cli: Cli):
    assert cli.ok("metrics", "--hours", "3") == "nothing finished in the last 3h (running now: fleetgate ps)\n"
    assert cli.json("metrics")["models"] == []


@pytest.mark.parametrize("hours", ["0", "-1", "nan", "inf", "many", "1e9", "", "24h", "٣"])
def test_q1_bad_hours_are_usage_errors(cli: Cli, hours: str):
    assert "valid is a number of hours above 0" in cli.refused("metrics", "--hours", hours)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([], 50, None), ([7], 50, 7), ([7], 95, 7), ([3, 1, 2], 50, 2), (list(range(1, 101)), 95, 95), ([1, 9], 50, 1)],
)
def test_o7_a_percentile_is_one_of_the_values(values: list[int], percent: int, expected: int | None):
    assert percentile(values, percent) == expected
