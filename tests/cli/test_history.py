"""`fleetgate history` (rules O7, A7, T1)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.access.keys import AccessKey
from fleetgate.core.entities import BudgetRule, Reason, Rule, Spec, Ticket
from fleetgate.core.usage import ESTIMATE, RECORD, Reading, Usage, UsageRow
from fleetgate.log.sqlite.log import SqliteLog
from fleetgate.present.event_text import sentence
from fleetgate.present.json.events import TYPES, event_json
from fleetgate.present.log_time import LogTimes
from tests.cli.command_line import Cli, opened

OPUS = "anthropic@work/claude-opus-4-6"
ME = "box|boot|1|42|7"
SPEC = Spec(models=(OPUS,), host="box", project="website")
TICKET = Ticket("abcdefghij", SPEC, ME, 1, 1, 1000, 2000, 9000, command="aider", wake="/run/x.wake")
REASON = Reason("concurrency_cap", "4 of 4 slots of p are taken; raise it", "p", ["p"], None, 4, 4, OPUS)

USED = Usage(3, 1000, 38_000, 2000, 3200, 310_000, RECORD)

# One of each type, and what its sentence must say.
EXAMPLES: list[tuple[ev.Event, str]] = [
    (ev.Queued(TICKET, REASON), f"abcdefghij is waiting for {OPUS}: 4 of 4 slots of p are taken [aider]"),
    (
        ev.Deferred("i", SPEC, ME, REASON, "x" * 99),
        f"i was refused: 4 of 4 slots of p are taken [{'x' * 59}…]",
    ),
    (ev.Granted("i", OPUS, 1, ticket=TICKET), f"i got {OPUS} [aider]"),
    (ev.Granted("i", "", 1, waited_ms=61_000), "i got a slot after 1m in the queue"),
    (ev.Released("i", "ok", OPUS, 0, 252_000, usage=USED), "for 4m; used 41k in, 3.2k out, $0.31"),
    (ev.Released("i", "ok", OPUS, 0, 252_000, usage=Usage(), total=USED), "used 41k in, 3.2k out, $0.31"),
    (
        ev.Reclaimed("i", "lost", OPUS, 1000, usage=Usage(1, 500, output=20, source=ESTIMATE)),
        "held anthropic@work/claude-opus-4-6 for 1s; used ~500 in, ~20 out",
    ),
    (
        ev.KeySet(AccessKey("ci", "secret-digest", "agent", "web", "batch", 0), "ann@box"),
        "access key ci was created by ann@box: agent for web, batch, priority up to 0",
    ),
    (ev.KeySet(AccessKey("ci", "d", "viewer"), "ann@box", rotated=True), "access key ci was replaced by ann@box"),
    (ev.KeyRemoved("ci", "ann@box"), "access key ci was removed by ann@box"),
    (ev.PlanObserved("anthropic", "5h", 6_300, 9, 9, 9), "anthropic: 63 % of its 5h window are used"),
    (ev.PlanRunway("anthropic", "5h", "dry", 6_300, 90_000, 30_000), "window runs dry 1m before its reset, 63 %"),
    (ev.PlanRunway("anthropic", "5h", "safe", 6_300, 90_000), "lasts until its reset again"),
    (ev.Settled("i", USED), "i has used 41k in, 3.2k out, $0.31, and is still running"),
    (
        ev.HourClosed(498_000, (UsageRow("web", OPUS, "box", "", "agents", USED),) * 2),
        "an hour is over: 6 calls, 82k in, 6.4k out, $0.62",
    ),
    (
        ev.BudgetSet(BudgetRule("project:web", "usd", 20_000_000, "day", when_empty="stop", estimate="max")),
        "budget set at run time: project:web $20.00 per day (when it is empty: stop, estimate max)",
    ),
    (
        ev.BudgetSet(BudgetRule("openai", "output", 80_000, "1m", 60_000, 500_000)),
        "budget set at run time: openai 80k output tokens per 1m (up to 500k output tokens saved up)",
    ),
    (ev.BudgetRemoved("project:web", "usd", "day"), "budget project:web usd/day was removed"),
    (ev.BudgetUnset("project:web", "usd", "day"), "budget project:web usd/day: the config file decides again"),
    (ev.BudgetReset("project:web usd/day"), "budget project:web usd/day was reset"),
    (ev.BudgetAdded("project:web usd/day", 5_000_000, 9000), "budget project:web usd/day has $5.00 more"),
    (
        ev.BudgetReached("project:web usd/day", 100, 20_500_000, 20_000_000, 9000, "stop"),
        "budget project:web usd/day is 100% used: $20.50 of $20.00; new requests wait, and running agents are stopped",
    ),
    (
        ev.BudgetReached("openai tokens/5h", 80, 1_600_000, 2_000_000, 9000, "stop"),
        "budget openai tokens/5h is 80% used: 1.6M tokens of 2M tokens",
    ),
    (
        ev.RatesObserved(OPUS, (Reading("input", 400_000, 12_000), Reading("calls", 50, 49)), "input"),
        f"{OPUS}: its provider reports 12k input tokens of 400k input tokens, 49 calls of 50 calls left; a call was",
    ),
    (
        ev.PlanObserved("anthropic", "5h", 6_340, 9000, 18_000_000, 10),
        "anthropic: 63 % of its 5h window are used",
    ),
    (
        ev.PlanRunway("anthropic", "5h", "dry", 6_300, 3_600_000, 600_000),
        "anthropic: its 5h window runs dry 50m before its reset, 63 % are used",
    ),
    (
        ev.PlanRunway("anthropic", "5h", "safe", 6_300, 9000),
        "anthropic: its 5h window lasts until its reset again",
    ),
    (ev.Preempted("j", "t"), "job j gives way to t, and returns to the queue"),
    (ev.Claimed("i", ME), "i is running as process 42 on box"),
    (ev.Claimed("i"), "i took its slot"),
    (
        ev.Granted("i", OPUS, 0, adopted="cut_off"),
        "i is already running and is counted from now on (its host was cut off",
    ),
    (
        ev.Recovering(1, "the log has lost commits"),
        "no agents are admitted for a few seconds: the log has lost commits",
    ),
    (ev.Recovering(1), "the store may have lost commits"),
    (ev.Draining("box", "me"), "no new agents start on box (by me)"),
    (ev.DrainEnded("box"), "box accepts new agents again"),
    (ev.Renewed("i", 301_000), "i was renewed by its client"),
    (ev.Renewed("i", 301_000, ME, "/w"), "i was renewed by its client, through process 42 on box"),
    (ev.Returned("i"), "i did not take its slot"),
    (ev.Asked("i"), "i is waiting in the queue again"),
    (ev.Offered("i", ME, "box"), "worker process 42 on box is ready to run i"),
    (ev.Withdrawn("i"), "no worker is ready to run i"),
    (ev.Held("i", "aider"), "i is held until it is approved [aider]"),
    (ev.Approved("i", "root"), "i was approved by root"),
    (ev.Approved("i"), "i was approved"),
    (ev.JobEnded("i", "failed", 3, "exit 1", "nightly", 1), "job i (nightly) failed after 3 attempts: exit 1"),
    (ev.JobEnded("i", "lost", 1), "job i is lost"),
    (ev.Released("i", "ok", OPUS, 1, 90_000, exit_code=0), f"i ended: ok, exit 0; held {OPUS} for 1m"),
    (
        ev.Released("i", "local_error", "", 1, 1, signal=9, evidence="oom"),
        "i ended: local_error, signal 9, oom; held a slot",
    ),
    (ev.Reclaimed("i", "lost", OPUS, 5000), f"i was taken back, its process is gone; held {OPUS} for 5s"),
    (
        ev.Reclaimed("i", "lost", OPUS, 5000, silent="far"),
        f"i was taken back, its host far was silent for too long (it may still be running there); held {OPUS} for 5s",
    ),
    (ev.Dropped("i", "silent"), "i left the queue: its host was silent for too long"),
    (ev.Reclaimed("i", "forced", OPUS, 5000, "root"), "i was taken back, by force (root)"),
    (ev.Reclaimed("i", "overstayed", OPUS, 5000), "it held its slot longer than its pool allows"),
    (ev.Reclaimed("i", "unrenewed", OPUS, 5000), "i was taken back, its client did not renew it; held"),
    (ev.StopRequested("i", "root"), "i is being stopped, requested by root"),
    (ev.Reclaimed("i", "lost", OPUS, 5000, "root"), "i was taken back, its process is gone, stopped by root; held"),
    (ev.Cancelled("i", "root", command="aider"), "i left the queue, cancelled by root [aider]"),
    (ev.Expired("i", 86_400_000), "i left the queue: expired after 1d"),
    (ev.Dropped("i"), "i left the queue: its process is gone"),
    (ev.Dropped("i", "unrenewed"), "i left the queue: its client is gone"),
    (ev.Bumped("i", -1, 0), "i was moved to the front"),
    (ev.Bumped("i", 1, 5), "i has priority 5 now"),
    (ev.Reserved("i", ("agents p", "agents host:box")), "free slots of p, host:box are kept for i"),
    (
        ev.RuleSet(Rule("requests", "umans", 4, False, 350, "step", 60_000, "um", usage_gate=True)),
        "umans (requests) cap 4, cooldown 350ms, on_429 step, maximum hold 1m, name um, usage gate on",
    ),
    (ev.RuleSet(Rule("requests", "umans", usage_gate=False)), "umans (requests) usage gate off"),
    (ev.RuleSet(Rule("agents", "host", auto=True)), "host (agents) cap auto"),
    (ev.RuleSet(Rule("agents", "host", unlimited=True)), "host (agents) no cap"),
    (ev.CapRemoved("requests", "umans"), "umans (requests) no longer has a cap"),
    (ev.CapReset("requests", "umans"), "umans (requests) follows the config file again"),
    (ev.SelectorSeen("agents", "umans"), "umans (agents) is counted from now on"),
    (ev.FileLoaded("/c.toml", "d", 5, (Rule("agents", "host", 3),)), "/c.toml is in force now, with 1 cap"),
    (ev.Observed("box", ((OPUS, 2), ("", 1)), 5), f"2 {OPUS}, 1 without a model; room for 5 agents"),
    (ev.Observed("box"), "on box, started outside Fleetgate: none"),
    (ev.Paused("requests", "umans", 31_000, "rate_limited"), "umans (requests) is paused for 30s after a rate limit"),
    (ev.Paused("requests", "umans", 1 << 53), "umans (requests) is paused until it is resumed"),
    (ev.Resumed("requests", "umans"), "umans (requests) is open again"),
    (ev.Reduced("requests", "umans", 3, 4), "umans (requests) is auto-reduced to 3 (cap 4)"),
    (ev.Accepted("i", "requests", "umans", 3), "umans (requests): 3 concurrent calls confirmed (i)"),
    (
        ev.Refused("requests", "umans", "i", "drop", 8, 4, 8),
        "umans (requests): refused with 8 concurrent calls, which had worked: the provider's limit has dropped",
    ),
    (ev.Refused("requests", "umans", "i", "again", 8, 7, 8), "8 concurrent calls, one too many again, near the limit"),
    (ev.Refused("requests", "umans", "i", "omen", 8, 7, 8), "8 concurrent calls, verdict omen; the limit is 7 (cap 8)"),
    (ev.UsageAsked("requests", "umans", ME), "process 42 on box asks the provider of umans (requests)"),
    (ev.UsageAnswered("requests", "umans", 4, 3), "of umans (requests) counts 3 in flight; the limit is 4"),
    (ev.UsageAnswered("requests", "umans", 4, error="status 404"), "umans (requests) has no answer: status 404"),
    (
        ev.BackedOff(OPUS, "model", "overloaded", 1000, 301_000, "HTTP 529"),
        f"{OPUS} is backed off for 5m, overloaded: HTTP 529",
    ),
    (ev.BackoffEnded(OPUS, "probe"), f"{OPUS} may be used again (probe)"),
    (ev.Chosen("pulse", OPUS), f"{OPUS} was chosen for pulse"),
    (ev.Bypassed(ME, (OPUS,), "aider"), "process 42 on box ran without a slot (FLEETGATE_BYPASS) [aider]"),
]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def told(cli: Cli, *argv: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cli.ok("history", "--json", *argv).splitlines()]


def one_run(cli: Cli) -> str:
    ident = cli.occupy(OPUS)
    cli.gate.one(cmd.Release(ident, exit_code=0))
    return ident


# What is told.


def test_o7_amounts_of_money_are_dollars_and_hours_are_times(cli: Cli):
    def told(event: ev.Event) -> dict[str, Any]:
        return event_json(7, 1000, event, LogTimes(cli.gate))

    reached = told(ev.BudgetReached("project:web usd/day", 100, 20_500_000, 20_000_000, 9000, "stop"))
    assert (reached["used"], reached["amount"]) == (20.5, 20.0)
    assert reached["resets_at"].endswith("Z")
    assert told(ev.BudgetReached("x tokens/5h", 50, 7, 14, 0, "hold"))["used"] == 7
    assert told(ev.BudgetSet(BudgetRule("project", "usd", 20_000_000, "day")))["rule"]["amount"] == 20.0
    assert told(ev.Released("i", "ok", OPUS, 0, 1, usage=USED))["usage"]["cost_usd"] == 0.31
    closed = told(ev.HourClosed(498_000, (UsageRow("web", OPUS, "box", "", "agents", USED),)))
    assert closed["hour"].endswith("Z")
    assert closed["rows"][0]["usage"]["tokens"] == 44_200


def test_o7_every_event_type_has_an_example_here():
    assert {type(event) for event, _ in EXAMPLES} == set(get_args(ev.Event))


@pytest.mark.parametrize(("event", "says"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_o7_every_event_is_a_sentence_and_an_object(cli: Cli, event: ev.Event, says: str):
    assert says in sentence(event, 1000)
    document = event_json(7, 1000, event, LogTimes(cli.gate))
    assert list(document)[:3] == ["seq", "at", "type"]
    assert TYPES[str(document["type"])] is type(event)
    assert not [word for word in ("wake", "secret-digest") if word in json.dumps(document)]


def test_o7_a_finished_run_has_all_its_facts(cli: Cli):
    ident = one_run(cli)
    event = told(cli)[-1]
    keys = {
        "role",
        "session",
        "model",
        "provider",
        "account",
        "outcome",
        "exit_code",
        "activity",
        "waited_ms",
        "held_ms",
    }
    assert set(event) >= keys
    assert (event["type"], event["id"], event["outcome"], event["exit_code"]) == ("released", ident, "ok", 0)
    assert (event["provider"], event["account"], event["model"]) == ("anthropic", "work", OPUS)
    assert event["role"] is event["session"] is event["activity"] is None


def test_o7_times_are_utc_and_the_same_each_time(cli: Cli):
    one_run(cli)
    first, again = told(cli), told(cli)
    assert first == again
    assert all(event["at"].endswith("Z") for event in first)
    assert [event["seq"] for event in first] == list(range(1, len(first) + 1))


def test_o7_a_queued_event_has_the_id_of_its_ticket(cli: Cli):
    cli.gate.one(cmd.SetRule(Rule("agents", "host", 1)))
    cli.occupy(OPUS)
    ident = cli.stand(OPUS)
    event = told(cli)[-1]
    assert (event["type"], event["id"], event["ticket"]["id"]) == ("queued", ident, ident)
    assert event["ticket"]["expires_at"].endswith("Z")
    assert event["ticket"]["holder"] == {"host": cli.gate.host, "pid": os.getpid()}
    assert (event["reason"]["code"], event["reason"]["in_flight"], event["reason"]["limit"]) == (
        "concurrency_cap",
        1,
        1,
    )


def test_a7_a_deferral_is_an_event_with_count_limit_and_model(cli: Cli):
    cli.gate.one(cmd.SetRule(Rule("agents", "host", 1)))
    cli.occupy(OPUS)
    cli.gate.one(cmd.Acquire("aaaaaaaaaa", Spec(models=(OPUS,), host=cli.gate.host), cli.gate.me, wait=False))
    event = told(cli, "--type", "deferred")[0]
    assert (event["reason"]["in_flight"], event["reason"]["limit"], event["reason"]["model"]) == (1, 1, OPUS)


# Which of it.


def test_o7_people_see_the_last_fifty_and_programs_all(cli: Cli):
    for _ in range(30):
        one_run(cli)
    lines = cli.ok("history").splitlines()
    assert len(lines) == 50
    assert "released" in lines[-1].split()
    assert len(told(cli)) == 61
    assert len(cli.ok("history", "--since", "0").splitlines()) == 61


def test_o7_n_takes_the_last_and_since_what_came_after(cli: Cli):
    one_run(cli)
    one_run(cli)
    assert [event["seq"] for event in told(cli, "-n", "2")] == [4, 5]
    assert [event["seq"] for event in told(cli, "--since", "3")] == [4, 5]
    assert [event["seq"] for event in told(cli, "--since", "1", "-n", "1")] == [5]
    assert [event["seq"] for event in told(cli, "--type", "granted", "-n", "1")] == [4]
    assert told(cli, "-n", "0") == told(cli, "--since", "5") == []


def test_o7_types_can_be_chosen(cli: Cli):
    one_run(cli)
    assert {event["type"] for event in told(cli, "--type", "granted, released")} == {"granted", "released"}
    assert [event["type"] for event in told(cli, "--type", "granted", "--type", "released")] == ["granted", "released"]


def test_g3_questions_to_providers_do_not_hide_the_rest_from_people(cli: Cli):
    one_run(cli)
    cli.ok("cap", "set", "umans", "4", "--kind", "requests")
    before = len(told(cli))
    replica, log = cli.gate.replica, cli.gate.log
    replica.catch_up()
    log.lock()
    log.begin()
    asked: list[ev.Event] = [ev.UsageAsked("requests", "umans", ME), ev.UsageAnswered("requests", "umans", 4, 3)]
    log.append(replica.position, log.now(), asked * 200, None, [])
    log.unlock()
    assert len(told(cli)) == before + 400
    assert len(cli.ok("history").splitlines()) == before
    assert len(cli.ok("history", "-n", "2").splitlines()) == 2
    assert "asks the provider" not in cli.ok("history", "-n", "2")
    assert cli.ok("history", "--type", "usage_answered", "-n", "2").count("counts 3 in flight") == 2


def test_t1_a_log_that_ends_before_since_is_told_on_stderr(cli: Cli):
    said = cli("history", "--json", "--since", "500")
    assert (said.code, said.out) == (0, "")
    assert "the log ends at 1, before --since 500: was it restored from a backup?" in said.err


def test_t1_events_that_are_no_longer_kept_are_told_on_stderr(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    one_run(cli)
    history = SqliteLog.history
    monkeypatch.setattr(SqliteLog, "history", lambda self, since=0: history(self, max(since, 1)))
    said = cli("history", "--json", "--since", "0")
    assert "events 1 to 1 are no longer kept" in said.err
    assert len(said.out.splitlines()) == 2


def test_o7_an_empty_log_says_what_to_do(cli: Cli):
    cli.env("FLEETGATE_HOME", str(cli.folder / "empty"))
    said = cli("history")
    assert (said.code, said.out) == (0, "")
    assert "no events yet (to run something: fleetgate run" in said.err


def test_o7_when_nothing_is_found_it_says_where_the_log_ends(cli: Cli):
    assert "no such events; the log ends at 1\n" in cli("history", "--type", "bypassed").err
    assert "no events since 1; the log ends at 1\n" in cli("history", "--since", "1").err


def test_o7_it_works_with_a_broken_config_file(cli: Cli):
    one_run(cli)
    cli.config.write_text("nonsense")
    assert told(cli)[-1]["type"] == "released"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--type", "nonsense"), f"--type 'nonsense': valid are {', '.join(TYPES)}"),
        (("--type", "granted,"), "--type '': valid are queued"),
        (("--since", "tomorrow"), "--since 'tomorrow': valid is RFC 3339"),
        (("--since", "-1"), "--since '-1': valid is"),
        (("--since", "1.5"), "--since '1.5': valid is"),
        (("--since", "9" * 40), "valid is a whole number"),
        (("--since", "\u0661"), "valid is a whole number"),
        (("-n", "ten"), "-n 'ten': valid is a whole number, 0 or more"),
        (("-n",), "requires an argument"),
        (("extra",), "unexpected extra argument"),
    ],
)
def test_q1_bad_values_are_usage_errors(cli: Cli, argv: tuple[str, ...], says: str):
    assert says in cli.refused("history", *argv)


# Following, as a process of its own.


@contextmanager
def following(cli: Cli, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """`fleetgate history -f`, which has told all that was there when its first line has been read."""
    command = [sys.executable, "-m", "fleetgate", "history", "-f", *argv]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def next_event(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    event: dict[str, Any] = json.loads(process.stdout.readline())
    return event


def test_o7_following_tells_what_happens_from_now_on(cli: Cli):
    one_run(cli)
    with following(cli, "--json", "-n", "1") as process:
        assert next_event(process)["type"] == "released"
        ident = one_run(cli)
        assert [(next_event(process)["type"]) for _ in range(2)] == ["granted", "released"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", ""), ident


def test_o7_following_keeps_to_the_types_and_to_since(cli: Cli):
    one_run(cli)
    with following(cli, "--json", "--type", "released", "--since", "2") as process:
        assert next_event(process)["seq"] == 3
        one_run(cli)
        assert next_event(process)["seq"] == 5


def test_o7_following_ends_by_itself_when_nobody_reads_any_more(cli: Cli):
    one_run(cli)
    with following(cli, "--json") as process:
        next_event(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_o7_following_goes_on_when_the_log_is_replaced(cli: Cli):
    one_run(cli)
    cli.close()
    home, backup = cli.folder / "s", cli.folder / "backup"
    shutil.copytree(home, backup)
    for _ in range(3):
        one_run(cli)
    with following(cli, "--json", "-n", "1") as process:
        assert next_event(process)["seq"] == 9
        cli.close()
        home.rename(cli.folder / "old")
        backup.rename(home)
        assert process.stderr is not None
        assert "the log was replaced" in process.stderr.readline()
        cli.gate.decide([cmd.Bypass(cli.gate.me)])
        told = [next_event(process) for _ in range(2)]
        assert [(event["seq"], event["type"]) for event in told] == [(4, "recovering"), (5, "bypassed")]


def test_o7_a_reader_that_leaves_is_not_worth_a_word(cli: Cli):
    for _ in range(600):
        cli.gate.decide([cmd.Bypass(cli.gate.me, (OPUS,), "x" * 150)])
    script = f"{sys.executable} -m fleetgate history --json | head -n 1; echo ${{PIPESTATUS[@]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 0"
    assert done.stderr == ""


def test_o7_the_sentences_begin_in_one_column_whatever_the_types(cli: Cli):
    lease = cli.occupy()
    cli.gate.replica.decide([cmd.Stop(lease, "ann@box")])
    lines = cli.ok("history", "--type", "granted,stop_requested").splitlines()
    assert [line.split()[3] for line in lines] == ["granted", "stop_requested"]
    assert {line.index(lease) for line in lines} == {39}
