"""`fleetgate queue` (rules A5, A6, O2)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule, Spec
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log import open_log
from tests.cli.command_line import Cli, opened

KEYS = {
    "id", "position", "models", "kind", "slots", "priority", "project", "since", "queued_at", "expires_at", "reason",
    "estimate_s", "holder", "command",
}  # fmt: skip
OPUS = "anthropic/claude-opus-4-6"
ELSEWHERE = "build-07|abc|1|4711|99"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        cli.gate.one(cmd.SetRule(Rule("agents", "host", cap=1)))
        yield cli


def wait(cli: Cli, ident: str, holder: str, command: str = "aider", project: str = "default") -> None:
    spec = Spec(models=(OPUS,), host=cli.gate.host, project=project)
    cli.gate.one(cmd.Acquire(ident, spec, holder, command=command))


def test_o2_queue_json_has_every_key(cli: Cli):
    cli.occupy(OPUS)
    ident = cli.stand(OPUS, priority=5, project="website")
    (ticket,) = cli.json("queue")["tickets"]
    assert set(ticket) >= KEYS
    assert set(ticket["reason"]) >= {"code", "text", "pool", "pools", "until"}
    assert (ticket["id"], ticket["position"], ticket["models"]) == (ident, 1, [OPUS])
    assert (ticket["kind"], ticket["slots"], ticket["priority"], ticket["project"]) == ("agents", 1, 5, "website")
    assert ticket["holder"]["host"] == cli.gate.host
    assert isinstance(ticket["holder"]["pid"], int)
    for key in ("since", "queued_at", "expires_at"):
        assert ticket[key].endswith("Z")


def test_a5_an_estimate_is_absent_rather_than_invented(cli: Cli):
    first = cli.occupy(OPUS)
    cli.stand(OPUS)
    assert cli.json("queue")["tickets"][0]["estimate_s"] is None
    cli.gate.one(cmd.Release(first))
    cli.stand(OPUS)
    low, high = cli.json("queue")["tickets"][0]["estimate_s"]
    assert 0 <= low <= high


def test_a6_the_reason_is_a_code_and_a_sentence(cli: Cli):
    cli.occupy(OPUS)
    cli.stand(OPUS)
    reason = cli.json("queue")["tickets"][0]["reason"]
    assert (reason["code"], reason["pool"], reason["until"]) == ("concurrency_cap", f"host:{cli.gate.host}", None)
    assert (reason["in_flight"], reason["limit"]) == (1, 1)
    text = cli.ok("queue")
    assert f"full 1/1: host:{cli.gate.host}" in text
    assert f"\n1 of 1 slots of host:{cli.gate.host} are taken" in text


def test_a6_a_pause_tells_until_when(cli: Cli):
    cli.gate.one(cmd.SetRule(Rule("requests", "umans", cap=2)))
    cli.gate.one(cmd.Pause("requests", "umans", 3_600_000))
    cli.stand("umans/coder", kind="requests")
    reason = cli.json("queue")["tickets"][0]["reason"]
    assert (reason["code"], reason["until"][-1]) == ("paused", "Z")
    assert "paused 59m: umans" in cli.ok("queue")


def test_a6_a_pause_without_end_has_no_until(cli: Cli):
    cli.gate.one(cmd.SetRule(Rule("requests", "umans", cap=2)))
    cli.gate.one(cmd.Pause("requests", "umans"))
    cli.stand("umans/coder", kind="requests")
    assert cli.json("queue")["tickets"][0]["reason"]["until"] is None
    assert "paused: umans" in cli.ok("queue")


def test_a6_a_cooling_slot_is_told(cli: Cli):
    cli.gate.one(cmd.SetRule(Rule("requests", "umans", cap=1, cooldown_ms=60_000)))
    cli.gate.one(cmd.Release(cli.occupy("umans/coder", kind="requests")))
    cli.stand("umans/coder", kind="requests")
    assert "cooling: umans" in cli.ok("queue")


def test_a5_the_queue_is_shown_by_position(cli: Cli):
    cli.occupy(OPUS)
    second, first = cli.stand(OPUS), cli.stand(OPUS, priority=50)
    tickets = cli.json("queue")["tickets"]
    assert [(ticket["position"], ticket["id"]) for ticket in tickets] == [(1, first), (2, second)]
    lines = cli.ok("queue").splitlines()
    pool = tickets[0]["pool"]
    assert pool == f"host:{cli.gate.host}"
    assert [line.split()[:3] for line in lines[1:3]] == [["1", "of", "2"], ["2", "of", "2"]]
    assert [line.split()[4] for line in lines[1:3]] == [first, second]


def test_a5_an_empty_line_says_where_else_to_look(cli: Cli):
    assert cli.ok("queue").startswith("nothing is waiting (running: fleetgate ps;")
    assert cli.json("queue") == {"tickets": [], "backoffs": [], "total": 0}


def test_a_long_line_is_listed_in_parts(cli: Cli):
    cli.occupy(OPUS)
    idents = [cli.stand(OPUS) for _ in range(7)]
    assert [ticket["id"] for ticket in cli.json("queue", "--limit", "3")["tickets"]] == idents[:3]
    part = cli.json("queue", "--limit", "3", "--offset", "3")
    assert ([ticket["id"] for ticket in part["tickets"]], part["total"]) == (idents[3:6], 7)
    assert part["tickets"][0]["position"] == 4
    assert len(cli.json("queue", "--limit", "3", "--all")["tickets"]) == 7
    assert len(cli.json("queue", "--limit", "0")["tickets"]) == 7
    shown = cli.ok("queue", "--limit", "2", "--offset", "1")
    assert "(1 before these)" in shown
    assert "… and 4 more: fleetgate queue --offset 3, or fleetgate queue --all" in shown
    assert "more:" not in cli.ok("queue")
    assert "valid is a whole number" in cli.refused("queue", "--limit", "many")


def test_o2_another_machine_is_named_and_cannot_be_judged(cli: Cli):
    cli.occupy(OPUS)
    wait(cli, "tttttttttt", ELSEWHERE)
    (ticket,) = cli.json("queue")["tickets"]
    assert (ticket["holder"], ticket["gone"]) == ({"host": "build-07", "pid": 4711}, None)
    assert "build-07  4711" in cli.ok("queue")


def test_o2_one_whose_process_is_gone_is_marked(cli: Cli):
    cli.occupy(OPUS)
    me = cli.gate.me.split("|")
    wait(cli, "tttttttttt", "|".join([*me[:3], "1", "1"]))  # pid 1 has not started at tick 1
    assert cli.json("queue")["tickets"][0]["gone"] is True
    text = cli.ok("queue")
    assert "gone: its process has exited" in text
    assert "concurrency_cap:" not in text


def test_a6_one_that_did_not_take_its_slot_is_told(cli: Cli):
    first = cli.occupy(OPUS)
    wait(cli, "tttttttttt", ELSEWHERE)
    cli.gate.one(cmd.Release(first))
    later = cli.gate.now() + 11_000
    gate = DirectGate(open_log(f"sqlite://{cli.folder}/s", clock=lambda: later))
    gate.decide([])
    gate.close()
    (ticket,) = cli.json("queue")["tickets"]
    assert (ticket["id"], ticket["reason"]["code"]) == ("tttttttttt", "passed_over")
    assert "passed over" in cli.ok("queue")


def test_q1_a_hostile_command_cannot_move_the_cursor(cli: Cli):
    cli.occupy(OPUS)
    wait(cli, "tttttttttt", ELSEWHERE, command="evil \x1b[2J\r\nPOS  fake")
    text = cli.ok("queue")
    assert "\x1b" not in text
    assert "\r" not in text
    assert sum("tttttttttt" in line for line in text.splitlines()) == 1
    assert "evil  [2J  POS  fake" in text


def test_a5_many_reasons_are_not_all_spelled_out(cli: Cli):
    for number in range(8):
        cli.gate.one(cmd.SetRule(Rule("requests", f"p{number}", cap=1)))
        cli.occupy(f"p{number}/m", kind="requests")
        cli.stand(f"p{number}/m", kind="requests")
    assert "and 3 more reasons: fleetgate queue --json" in cli.ok("queue")


@pytest.mark.parametrize("argv", [("--jsn",), ("extra",)])
def test_q1_bad_options_are_usage_errors(cli: Cli, argv: tuple[str, ...]):
    assert "more:  fleetgate queue --help" in cli.refused("queue", *argv)
