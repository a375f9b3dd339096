"""`fleetgate usage` (rule U4)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import msgspec
import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.budgets.usage_sums import HOUR_MS
from fleetgate.core.entities import Spec
from fleetgate.core.usage import ESTIMATE, PARTIAL, RECORD, RESPONSE, Usage
from tests.cli.command_line import Cli, opened
from tests.usage_hours import OPUS, row, write_hours


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def fill(cli: Cli) -> int:
    """Two hours of usage; the later of them."""
    hour = cli.gate.now() // HOUR_MS - 1
    first = [row(40, "web", input=41_000, cache_read=3_200_000, output=3_210, cost=310_000)]
    second = [
        row(1, "web", "umans/coder", cost=None),
        row(2, "docs", cost=4_100_000),
        row(1, "docs", cost=900_000, source=ESTIMATE),
        row(3, "docs", "umans/coder", cost=None, source=PARTIAL),
    ]
    write_hours(cli.gate.log, {hour - 1: first, hour: second})
    return hour


def test_u4_usage_is_a_table_with_a_total_in_units_for_people(cli: Cli):
    fill(cli)
    _, _, title, *rows, total, _, unknown, estimates, partial = cli.ok("usage").splitlines()
    assert title.split() == ["PROJECT", "MODEL", "CALLS", "IN", "CACHED", "OUT", "COST"]
    assert [line.split() for line in rows] == [
        ["docs", OPUS, "~3", "~2k", "-", "~200", "~$5.00"],
        ["web", OPUS, "40", "41k", "3.2M", "3.2k", "$0.31"],
        ["docs", "umans/coder", "3", "1k", "-", "100", "?"],
        ["web", "umans/coder", "1", "1k", "-", "100", "?"],
    ]
    assert total.split() == ["total", "~47", "~45k", "~3.2M", "~3.6k", "≥", "~$5.31"]
    assert "prices" in unknown
    assert "1 call ended unseen" in estimates
    assert "3 responses broke off" in partial


def test_u4_usage_as_json_and_csv_has_every_digit(cli: Cli):
    fill(cli)
    document = cli.json("usage", "--by", "project")
    assert set(document) == {"by", "since", "until", "rows", "total", "rows_left_out"}
    docs, web = document["rows"]
    assert (docs["project"], docs["cost_usd"], docs["cost_complete"], docs["estimated_calls"]) == (
        "docs",
        5.0,
        False,
        1,
    )
    assert (web["calls"], web["input"], web["cache_read"], web["output"], web["tokens"]) == (
        41,
        42_000,
        3_200_000,
        3_310,
        3_245_310,
    )
    assert document["total"]["cost_usd"] == 5.31
    assert "model" not in web
    table = list(csv.DictReader(io.StringIO(cli.ok("usage", "--by", "model,source", "--csv"))))
    assert [
        (line["model"], line["source"], line["calls"], line["cost_usd"], line["cost_complete"]) for line in table
    ] == [
        (OPUS, "response", "42", "4.41", "true"),
        (OPUS, "estimate", "1", "0.9", "true"),
        ("umans/coder", "partial", "3", "", "false"),
        ("umans/coder", "response", "1", "", "false"),
    ]


def test_u4_usage_of_a_period_a_project_and_some_models(cli: Cli):
    hour = fill(cli)
    at = {n: str((hour + n) * 3600) for n in (-1, 0)}
    assert cli.json("usage", "--since", at[0])["total"]["calls"] == 7
    assert cli.json("usage", "--since", at[-1], "--until", at[0])["total"]["calls"] == 40
    assert cli.json("usage", "--project", "docs", "--model", "anthropic")["total"]["calls"] == 3
    assert [line["day"] for line in cli.json("usage", "--by", "day")["rows"]] == sorted(
        line["day"] for line in cli.json("usage", "--by", "day")["rows"]
    )
    assert len(cli.json("usage", "--by", "hour")["rows"]) == 2


def test_u4_usage_of_nothing_says_what_to_do(cli: Cli):
    said = cli.ok("usage", "--project", "nosuch")
    assert said.startswith("nothing was counted for project nosuch from ")
    assert "fleetgate run" in said
    assert "fleetgate env claude" in said
    assert cli.ok("usage", "--csv").count("\n") == 1
    empty = cli.json("usage")
    assert (empty["rows"], empty["total"]["cost_usd"], empty["total"]["cost_complete"]) == ([], None, True)


def test_u4_usage_that_cannot_be_meant_is_refused(cli: Cli):
    assert "valid are project, model, account, host, key, kind, source, day, hour, run" in cli.refused(
        "usage", "--by", "colour"
    )
    assert "--since 'soon'" in cli.refused("usage", "--since", "soon")
    assert "choose one" in cli.refused("usage", "--json", "--csv")
    assert "not a selector" in cli.refused("usage", "--model", "a b")


def test_u4_usage_is_read_while_another_process_holds_the_lock_and_with_a_broken_config(cli: Cli):
    fill(cli)
    cli.config.write_text("[agents")
    other = cli.gate.log.connect()
    other.lock()
    try:
        other.begin()
        assert cli.json("usage")["total"]["calls"] == 47
    finally:
        other.close()


def test_u4_names_in_a_table_cannot_move_the_cursor(cli: Cli):
    write_hours(cli.gate.log, {cli.gate.now() // HOUR_MS - 1: [row(1, "\x1b[2Jweb")]})
    for options in ((), ("--csv",), ("--json",)):
        assert "\x1b" not in cli.ok("usage", *options)


def test_u4_usage_by_run_is_what_its_calls_used_and_equals_the_sums(cli: Cli):
    run, other = cli.occupy(OPUS), cli.occupy("umans/coder")
    spec = Spec(models=(OPUS,), kind="requests", host=cli.gate.host)
    cli.gate.one(cmd.Acquire("call-000001", spec, cli.gate.me, run=run))
    cli.gate.one(cmd.Release("call-000001", usage=Usage(calls=1, output=30, cost=5, source=RESPONSE)))
    cli.gate.one(cmd.Acquire("call-000002", spec, cli.gate.me))
    cli.gate.one(cmd.Release("call-000002", usage=Usage(calls=1, output=4, cost=1, source=RESPONSE)))
    cli.gate.one(cmd.Release(run, usage=Usage(calls=9, output=900, cost=90, source=RECORD)))  # the proxy saw its calls
    cli.gate.one(cmd.Settle(other, Usage(calls=2, output=7, source=RECORD)))
    document = cli.json("usage", "--by", "run,host,kind")
    found = [(line["run"], line["kind"], line["calls"], line["output"]) for line in document["rows"]]
    assert found == [(run, "requests", 1, 30), (None, "requests", 1, 4), (other, "agents", 2, 7)]
    assert {line["host"] for line in document["rows"]} == {cli.gate.host}
    assert document["total"] == cli.json("usage")["total"]
    total = document["total"]
    assert (total["calls"], total["output"], total["cost_complete"]) == (4, 41, False)
    assert run in cli.ok("usage", "--by", "run")


def test_u4_usage_by_run_says_from_when_on_runs_are_known(cli: Cli):
    cli.gate.one(cmd.Release(cli.occupy(OPUS), usage=Usage(calls=1, output=1, source=RECORD)))
    cli.occupy("umans/coder")  # a commit behind it, which the snapshot is of
    log, replica = cli.gate.log, cli.gate.replica
    for _ in range(2):
        log.save_snapshot(msgspec.json.encode(replica.catch_up().export()), replica.position)
        cli.gate.one(cmd.Release(cli.occupy(OPUS), usage=Usage(calls=1, output=2, source=RECORD)))
    while log.maintain(-1_000_000):
        pass
    said = cli("usage", "--by", "run")
    assert "the history begins there" in said.err
    assert cli.json("usage", "--by", "run")["total"]["calls"] == 2
    assert cli.json("usage")["total"]["calls"] == 3, "the sums know more than the history"


def test_u4_days_and_hours_are_those_of_the_configured_zone(cli: Cli):
    cli.configure('time_zone = "Asia/Kolkata"')
    fill(cli)
    document = cli.json("usage", "--by", "hour")
    assert all(line["hour"].endswith(":30:00+05:30") for line in document["rows"])
    assert ":30 to " in cli.ok("usage").splitlines()[0]
