"""`GET /v1/usage`: what `fleetgate usage --json` prints (rule U4)."""

from __future__ import annotations

import json
from pathlib import Path

from fleetgate.core.budgets.usage_sums import HOUR_MS
from fleetgate.log import open_log
from tests.api.served import Served
from tests.usage_hours import OPUS, row, write_hours


def fill(served: Served) -> int:
    """The last 299 hours; the current one."""
    log = open_log(f"sqlite://{served.home}")
    hour = log.now() // HOUR_MS
    write_hours(log, {hour - n: [row(n, "web"), row(1, "docs", "umans/coder", cost=None)] for n in range(1, 300)})
    log.close()
    return hour


def test_u4_usage_over_http_is_what_the_command_prints(fresh: Served):
    empty = fresh.ok("GET", "/v1/usage")
    assert (empty["by"], empty["rows"], empty["total"]["calls"]) == (["project", "model"], [], 0)
    since = str((fill(fresh) - 72) * 3600)
    told = fresh.ok("GET", f"/v1/usage?by=model,day&since={since}&project=web")
    options = ("--by", "model,day", "--since", since, "--project", "web")
    printed = json.loads(fresh.cli("usage", *options, "--json").stdout)
    assert told["rows"] == printed["rows"]
    assert told["total"] == printed["total"]
    assert {line["model"] for line in told["rows"]} == {OPUS}
    assert told["total"]["calls"] == sum(range(1, 73))
    few = fresh.ok("GET", "/v1/usage?by=hour&since=20d&limit=10")
    assert (len(few["rows"]), few["rows_left_out"], few["total"]["calls"]) == (10, 289, sum(range(300)) + 299)
    assert few["total"]["cost_complete"] is False
    assert fresh.ok("GET", "/v1/usage?by=run")["rows"] == []


def test_u4_a_question_about_usage_that_is_wrong_is_answered_with_what_is_valid(served: Served):
    for query, words in (
        ("by=colour", "valid are project, model"),
        ("since=soon", "since 'soon'"),
        ("limit=0", "limit"),
        ("by=" + "x" * 300, "by"),
        ("model=host", "model host"),
    ):
        answer = served.get(f"/v1/usage?{query}")
        assert answer.status == 400, answer
        assert words in answer.json["error"]


def test_u4_days_over_http_are_those_of_the_configured_zone(tmp_path: Path):
    with Served(tmp_path, 'time_zone = "Asia/Kolkata"') as served:
        fill(served)
        rows = served.ok("GET", "/v1/usage?by=hour")["rows"]
    assert rows
    assert all(line["hour"].endswith(":30:00+05:30") for line in rows)
