"""`fleetgate budget`: set, list, extend, reset and remove rates and budgets (rules V1, V7)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import BudgetRule, Spec
from fleetgate.core.usage import RESPONSE, Usage
from fleetgate.gate.slots.slot_gate import unapplied_caps, unapplied_text
from tests.cli.command_line import Cli, opened

DAY = "project:web usd/day"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def budgets(cli: Cli) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in cli.json("budget", "ls")["budgets"]}


def spend(cli: Cli, project: str, cost: int, model: str = "acme/coder") -> None:
    """A call that cost this many millionths of a dollar."""
    gate = cli.gate
    spec = Spec((model,), "requests", 1, gate.host, project)
    ident = f"call{len(project)}{cost}"
    assert gate.one(cmd.Acquire(ident, spec, gate.me, False))
    gate.one(cmd.Release(ident, usage=Usage(1, 10, output=5, cost=cost, source=RESPONSE)))


def test_V7_a_budget_is_set_and_says_what_was_before(cli: Cli):
    assert cli.ok("budget", "set", "project", "usd", "20", "--per", "day") == "project: $20.00 per day\n"
    cli.configure('[budgets]\nproject = { usd = 20, per = "day" }\n')
    assert cli.ok(
        "budget", "set", "project", "usd", "5.5", "--per", "day", "--when-empty", "stop", "--estimate", "max"
    ) == ("project: $5.50 per day (when empty: stop, estimate: max), was $20.00 per day (run time)\n")
    told = cli.ok("budget", "set", "anthropic/claude-opus-*", "input", "400_000", "--per", "60s", "--burst", "100k")
    assert told == "anthropic/claude-opus-*: 400,000 input tokens per 1m (burst 100,000)\n"
    made = cli.json("budget", "set", "openai", "calls", "50", "--per", "1m")
    assert [each["name"] for each in made["budgets"]] == ["openai calls/1m"]


def test_V7_the_list_shows_what_is_used_and_left_and_when_it_resets(cli: Cli):
    cli.configure(
        'time_zone = "UTC"\n[budgets]\nproject = { usd = 20, per = "day" }\nacme = { calls = 3, per = "5h" }\n'
    )
    assert cli.ok("budget", "ls").endswith("nothing was used yet of: project usd/day\n")
    spend(cli, "web", 16_000_000)
    told = budgets(cli)[DAY]
    assert (told["used"], told["free"], told["amount"], told["source"]) == (16, 4, 20, "file")
    assert told["resets_at"].endswith("T00:00:00Z") or told["resets_at"].endswith("T00:00:00.000Z")
    out = cli.ok("budget", "ls")
    assert "RESETS" in out
    (line,) = [line for line in out.splitlines() if line.startswith(DAY)]
    assert line.split()[2:5] == ["$16.00", "$4.00", "$20.00"]
    (calls,) = [line for line in out.splitlines() if line.startswith("acme calls/5h")]
    assert "in 4h 59m" in calls or "in 5h" in calls
    assert cli.ok("budget", "ls", "web").count("\n") == 2
    assert cli.ok("budget", "ls", "nothing") == "no budget whose name contains nothing\n"


def test_V7_more_can_be_allowed_for_a_while_and_counted_from_zero_again(cli: Cli):
    cli.ok("budget", "set", "project:web", "usd", "20", "--per", "day")
    spend(cli, "web", 21_000_000)
    assert budgets(cli)[DAY]["free"] == -1
    assert cli.ok("budget", "add", DAY, "5", "--until", "2h") == f"{DAY}: $5.00 more; $4.00 of $25.00 left\n"
    assert cli.ok("budget", "add", "project:web", "0.5").endswith("$4.50 of $25.50 left\n")
    assert cli.ok("budget", "reset", "web") == f"{DAY}: reset; $25.50 of $25.50 left\n"
    assert cli.json("budget", "reset", DAY)["budget"]["used"] == 0


def test_V7_a_removed_budget_of_the_file_stays_removed_and_can_be_set_again(cli: Cli):
    cli.configure('[budgets]\nproject = { usd = 20, per = "day" }\n')
    assert cli.ok("budget", "rm", "project usd/day") == (
        "project: no budget in usd per day, was $20.00 per day\n"
        "this hides $20.00 per day from the file; `fleetgate budget unset 'project usd/day'` brings it back\n"
    )
    assert cli.ok("budget", "ls").startswith("no budgets; set one, for example: ")
    cli.ok("budget", "set", "project", "usd", "20.00", "--per", "day")
    assert json.loads(cli("budget", "rm", "project", "--json").out)["unit"] == "usd"


def test_V7_what_was_set_at_run_time_is_dropped_for_the_value_of_the_file(cli: Cli):
    cli.configure('[budgets]\nproject = { usd = 20, per = "day" }\n')
    for change in (("rm", "project usd/day"), ("set", "project", "usd", "5", "--per", "day")):
        cli.ok("budget", *change)
        assert cli.ok("budget", "unset", "project usd/day") == "project: $20.00 per day, from the file\n"
        spend(cli, "web", 16_000_000 + len(change))
        assert (budgets(cli)[DAY]["base"], budgets(cli)[DAY]["source"]) == (20, "file")
    assert "no budget of project in usd per day was set at run time" in cli("budget", "unset", "project usd/day").err

    # Where the file has none, it is gone; a budget of one project means the rule that made it.
    cli.ok("budget", "set", "host", "calls", "9", "--per", "5h")
    assert cli.json("budget", "unset", "host")["source"] is None
    cli.ok("budget", "set", "project", "usd", "5", "--per", "day")
    assert cli.json("budget", "unset", DAY)["amount"] == 20
    cli.ok("budget", "set", "acme", "calls", "9", "--per", "5h")
    cli.ok("budget", "set", "acme", "usd", "9", "--per", "day")
    assert "name one: 'acme calls/5h', 'acme usd/day'" in cli("budget", "unset", "acme").err


def test_V7_what_was_added_is_shown_apart_from_the_budget(cli: Cli):
    cli.ok("budget", "set", "project:web", "usd", "20", "--per", "day")
    cli.ok("budget", "add", DAY, "5")
    shown = budgets(cli)[DAY]
    assert (shown["base"], shown["added"], shown["amount"]) == (20, 5, 25)
    assert "$20.00 + $5.00" in cli.ok("budget", "ls")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (("set", "project", "dollars", "3", "--per", "day"), "did you mean usd?"),
        (("set", "project", "usd", "3", "--per", "daily"), "per: found 'daily'; did you mean \"day\"?"),
        (("set", "project", "usd", "lots", "--per", "day"), "usd: not a sum of money: 'lots'"),
        (("set", "project", "calls", "1.5", "--per", "1m"), "calls: not a number: '1.5'"),
        (("set", "project", "calls", "0", "--per", "1m"), "valid is a whole number from 1"),
        (("set", "key:c/i", "usd", "3", "--per", "day"), "one key is key:NAME"),
        (("set", "opus", "usd", "3", "--per", "day"), "did you mean anthropic/claude-opus-*"),
        (("set", "project", "usd", "3", "--per", "day", "--burst", "3"), "burst is only for rates"),
        (("set", "openai", "calls", "3", "--per", "1m", "--when-empty", "stop"), "only for periods longer than 1h"),
        (("set", "project", "usd", "3"), "--per"),
        (("reset", "project:wbe usd/day"), "did you mean 'project:web usd/day'?"),
        (("add", "nothing", "3"), "no budget 'nothing'; budgets: 'openai calls/1m', 'project:web usd/day'"),
        (("add", DAY, "--", "-3"), "not a sum of money"),
        (("add", DAY, "3", "--until", "soon"), "valid is a time such as 18:00"),
        (("add", DAY, "3", "--until", "2001-01-01"), "a moment that is over"),
        (("add", "openai", "3", "--until", "18:00"), "is a rate"),
        (("rm", "nothing"), "no budget 'nothing'"),
    ],
)
def test_Q1_a_mistake_is_explained_and_changes_nothing(cli: Cli, typed: tuple[str, ...], words: str):
    cli.ok("budget", "set", "project:web", "usd", "20", "--per", "day")
    cli.ok("budget", "set", "openai", "calls", "50", "--per", "1m")
    before = budgets(cli)
    said = cli("budget", *typed)
    assert said.code == 64
    assert words in said.err
    assert budgets(cli) == before


def test_V7_history_tells_changes_of_budgets_in_sentences(cli: Cli):
    cli.ok("budget", "set", "project:web", "usd", "20", "--per", "day")
    spend(cli, "web", 16_000_000)
    cli.ok("budget", "add", DAY, "5")
    cli.ok("budget", "reset", DAY)
    cli.ok("budget", "rm", DAY)
    out = cli.ok("history")
    for words in (
        "budget set at run time: project:web $20.00 per day",
        f"budget {DAY} is 80% used: $16.00 of $20.00",
        f"budget {DAY} has $5.00 more",
        f"{DAY} was reset: nothing of it is used",
        f"budget {DAY} was removed",
    ):
        assert words in out


def test_C2_config_apply_says_which_budgets_changed(cli: Cli):
    cli.configure('[budgets]\nproject = { usd = 20, per = "day" }\n')
    other = cli.folder / "other.toml"
    other.write_text('[budgets]\nproject = { usd = 5, per = "day" }\nopenai = { calls = 3, per = "1m" }\n')
    assert cli.ok("config", "apply", "other.toml").splitlines()[1:] == [
        "  openai (budget): none -> 3 calls per 1m",
        "  project (budget): $20.00 per day -> $5.00 per day",
    ]


def test_budgets_of_a_file_that_a_shared_gate_does_not_have_are_named(cli: Cli):
    rules = (BudgetRule("project", "usd", 5, "day"), BudgetRule("openai", "calls", 3, "1m", 60_000))
    state = cli.gate.read()
    assert unapplied_caps(state, (), rules) == ["project usd/day", "openai calls/1m"]
    assert "the caps and budgets on project usd/day" in unapplied_text("f.toml", ["project usd/day"])
    cli.ok("budget", "set", "project", "usd", "7", "--per", "day")
    assert unapplied_caps(cli.gate.read(), (), rules) == ["openai calls/1m"]


def test_names_of_budgets_are_completed(cli: Cli):
    from fleetgate.cli.completion_values import complete_budget, complete_budget_selector

    cli.ok("budget", "set", "project:web", "usd", "20", "--per", "day")
    nothing: Any = None
    assert [item.value for item in complete_budget(nothing, nothing, "project:")] == [DAY]
    assert "project" in [item.value for item in complete_budget_selector(nothing, nothing, "pro")]
