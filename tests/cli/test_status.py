"""`fleetgate status` (rules O1, P1, P3, P5, A13, C2)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.limits.adaptive_tuning import USUAL_LAG_MS
from fleetgate.log.sqlite.log import SqliteLog
from tests.cli.command_line import Cli, opened

KEYS = {
    "pool", "kind", "selector", "account", "host", "cap", "limit", "in_flight", "cooling", "foreign", "queued",
    "paused_until", "cooldown_ms", "on_429", "auto_reduced", "auto_reduced_from", "notice", "upstream",
}  # fmt: skip
OPUS = "anthropic/claude-opus-4-6"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def pools(cli: Cli) -> dict[str, dict[str, object]]:
    return {pool["pool"]: pool for pool in cli.json("status")["pools"]}


def cap(cli: Cli, selector: str, number: int, kind: str = "requests", **options: object) -> None:
    cli.gate.one(cmd.SetRule(Rule(kind, selector, cap=number, **options)))  # type: ignore[arg-type]


def rate_limit(cli: Cli, pool: str, seconds: int) -> None:
    cli.gate.one(cmd.Report(kind="requests", target=pool, retry_after_ms=seconds * 1000))


def test_o1_status_json_has_every_key(cli: Cli):
    cap(cli, "umans", 4)
    document = cli.json("status")
    assert document["backoffs"] == []
    assert document["pools"]
    for pool in document["pools"]:
        assert set(pool) >= KEYS


def test_o1_what_does_not_apply_is_null(cli: Cli):
    cap(cli, "umans", 4)
    found = pools(cli)
    host, umans = found[f"host:{cli.gate.host}"], found["umans"]
    assert (host["account"], host["host"]) == (None, cli.gate.host)
    assert (umans["account"], umans["host"]) == ("umans", None)
    for key in ("paused_until", "auto_reduced_from", "notice", "upstream"):
        assert umans[key] is None
    assert (umans["cap"], umans["limit"], umans["in_flight"], umans["cooldown_ms"]) == (4, 4, 0, USUAL_LAG_MS)
    assert (umans["on_429"], umans["auto_reduced"]) == ("adapt", False)


def test_o1_a_busy_pool_shows_slots_line_and_cooling(cli: Cli):
    cap(cli, "umans", 2, cooldown_ms=60_000, on_429="step")
    done = cli.occupy("umans/coder", kind="requests")
    cli.occupy("umans/coder", kind="requests")
    cli.gate.one(cmd.Release(done))
    cli.stand("umans/coder", kind="requests")
    umans = pools(cli)["umans"]
    assert (umans["in_flight"], umans["cooling"], umans["queued"]) == (1, 1, 1)
    text = cli.ok("status")
    assert "1 running, 1 waiting: see fleetgate queue" in text
    assert [line.split() for line in text.splitlines() if line.startswith("umans")] == [
        ["umans", "requests", "1/2", "1", "1", "cooling"]
    ]


def test_a13_agents_started_elsewhere_are_shown_as_foreign(cli: Cli):
    cli.gate.one(cmd.SetRule(Rule("agents", "anthropic", cap=3)))
    cli.gate.one(cmd.Observe("elsewhere", ((OPUS, 2),)))
    assert pools(cli)["anthropic"]["foreign"] == 2
    (line,) = [line for line in cli.ok("status").splitlines() if line.startswith("anthropic")]
    assert line.split() == ["anthropic", "agents", "2/3", "-", "2", "foreign"]


def test_p1_a_pause_tells_when_it_ends(cli: Cli):
    cap(cli, "umans", 4, on_429="pause")
    rate_limit(cli, "umans", 3600)
    umans = pools(cli)["umans"]
    assert umans["paused"] is True
    assert str(umans["paused_until"]).endswith("Z")
    assert umans["pause_cause"] == "rate_limited"
    assert "paused after a rate limit, resumes in 59m" in cli.ok("status")


def test_p1_a_pause_without_end_is_a_pause_all_the_same(cli: Cli):
    cap(cli, "umans", 4)
    cli.gate.one(cmd.Pause("requests", "umans"))
    umans = pools(cli)["umans"]
    assert (umans["paused"], umans["paused_until"]) == (True, None)
    text = cli.ok("status")
    assert "paused until it is resumed" in text
    assert "  fleetgate resume 'umans' --kind requests\n" in text
    cli.ok("resume", "umans", "--kind", "requests")
    assert pools(cli)["umans"]["paused"] is False


def test_p3_a_reduced_pool_says_how_to_restore_it(cli: Cli):
    cap(cli, "umans", 4, on_429="step")
    rate_limit(cli, "umans", 28)
    umans = pools(cli)["umans"]
    assert (umans["limit"], umans["cap"], umans["auto_reduced"], umans["auto_reduced_from"]) == (3, 4, True, 4)
    assert umans["notice"] == (
        "auto-reduced to 3 after a rate limit (cap 4): restore with `fleetgate cap set 'umans' 4 --kind requests`"
    )
    assert "  fleetgate cap set 'umans' 4 --kind requests\n" in cli.ok("status")


def test_p3_the_command_of_the_notice_restores(cli: Cli):
    cap(cli, "umans", 4, on_429="step")
    rate_limit(cli, "umans", 1)
    cli.ok("cap", "set", "umans", "4", "--kind", "requests")
    umans = pools(cli)["umans"]
    assert (umans["limit"], umans["auto_reduced"], umans["notice"]) == (4, False, None)


def test_o1_an_idle_gate_says_so(cli: Cli):
    assert cli.ok("status").startswith("nothing is running, nothing waiting\n")


def test_o1_without_caps_it_says_how_to_set_one(cli: Cli):
    cli.gate.one(cmd.RemoveCap("agents", "host"))
    assert "no caps are set, so every agent starts at once. To set one: fleetgate cap set host 3" in cli.ok("status")
    assert cli.json("status")["pools"] == []


def test_n3_a_cap_for_each_account_is_told_before_anybody_uses_it(cli: Cli):
    cap(cli, "*/claude-opus-*", 6, kind="agents")
    assert "Also capped, not used yet: */claude-opus-* (6 agents per account)" in cli.ok("status")
    cli.occupy(OPUS)
    assert "not used yet" not in cli.ok("status")


def test_c2_looking_brings_a_new_config_file_into_force(cli: Cli):
    cli.config.write_text("[requests]\numans = 7\n")
    assert pools(cli)["umans"]["cap"] == 7


def test_q2_it_answers_while_somebody_holds_the_lock(cli: Cli):
    cli.config.write_text("[requests]\numans = 7\n")
    other = SqliteLog(str(cli.folder / "s"))
    other.lock()
    try:
        said = cli("status", "--json")
    finally:
        other.close()
    assert said.code == 0
    assert "umans" not in {pool["pool"] for pool in said.json["pools"]}
    assert "is not in force yet: another process holds" in said.err
    assert pools(cli)["umans"]["cap"] == 7


def test_a7_a_deadline_that_nobody_acted_on_is_acted_on_by_who_looks(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    cap(cli, "umans", 1, cooldown_ms=0)
    cli.occupy("umans/coder", kind="requests")
    spec = Spec(models=("umans/coder",), kind="requests")
    cli.gate.one(cmd.Acquire("waitslong2", spec, "elsewhere|b|1|2|3", expires_ms=1))
    monkeypatch.setattr("fleetgate.cli.read_only_gate._OVERDUE_MS", 0)
    while cli.gate.now() <= (cli.gate.replica.due or 0):
        pass
    assert cli.json("status")["waiting"] == 0


def test_c6_a_bad_config_file_does_not_stop_it_and_is_mentioned(cli: Cli):
    cli.config.write_text("[agents]\nhots = 3\nhost = 'x'\n")
    said = cli("status")
    assert said.code == 0
    assert "nothing is running" in said.out
    assert "the config file is not valid" in said.err


@pytest.mark.parametrize("argv", [("--jsn",), ("extra",), ("--json=yes",)])
def test_q1_bad_options_are_usage_errors(cli: Cli, argv: tuple[str, ...]):
    assert argv[0].partition("=")[0] in cli.refused("status", *argv)


def test_o_gives_the_sequence_number_from_which_history_goes_on(cli: Cli):
    cap(cli, "umans", 4)
    assert cli.json("status")["seq"] == cli.length()
