"""`fleetgate simulate` and `fleetgate explain`, as a person and a program use them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from tests.cli.command_line import Cli, opened

FLEET = """
id = "mine"
about = "a small fleet"
cap = 3
minutes = 3
[provider]
limit = [[0, 2]]
[[project]]
agents = 8
"""


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(FLEET)
    return str(path)


def test_simulate_prints_a_comparison_of_policies(cli: Cli, mine: str) -> None:
    text = cli.ok("simulate", mine, "--policy", "step,adapt", "--seeds", "2", "--jobs", "1")
    assert text.startswith("utilisation % / number of 429s, mean of 2 seeds from 1 on\n")
    head, row = text.splitlines()[1:3]
    assert head.split() == ["step", "adapt"]
    assert row.startswith("mine")


@pytest.mark.parametrize("compiled", [True, False])
def test_simulate_tells_its_speed_where_it_took_a_while(
    cli: Cli, mine: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ("simulate", mine, "--policy", "adapt", "--jobs", "1")
    moments = iter((10.0, 11.9, 20.0, 24.0))
    monkeypatch.setattr("fleetgate.cli.commands.simulate.perf_counter", lambda: next(moments))
    monkeypatch.setattr("fleetgate.cli.commands.simulate.COMPILED", compiled)
    assert cli(*ask).err == ""
    said = cli(*ask).err
    assert re.fullmatch(
        r"fleetgate: [0-9,]+ requests simulated in 4\.0s, [0-9,]+ per second(; a compiled core .*)?\n", said
    )
    assert ("compiled core" in said) is not compiled


def test_simulate_tells_programs_the_same_and_one_seed_gives_one_result(cli: Cli, mine: str) -> None:
    ask = ("simulate", mine, "--policy", "adapt", "--cap", "2", "--jobs", "1")
    told = cli.json(*ask)
    (result,) = told["results"]
    assert (result["scenario"], result["policy"], result["refusals"]) == ("mine", "adapt", 0)
    assert cli.json(*ask) == told


def test_simulate_draws_a_picture(cli: Cli, mine: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.svg"
    cli.ok("simulate", mine, "--policy", "adapt,oracle", "--plot", str(path), "--jobs", "1")
    assert path.read_text().count("<g ") == 2


def test_simulate_plays_random_scenarios_and_compares_them_with_the_oracle(cli: Cli) -> None:
    ask = ("simulate", "--random", "2", "--seed", "15", "--class", "small", "--policy", "adapt", "--jobs", "1")
    text = cli.ok(*ask)
    assert text.startswith("2 random scenarios from seed 15 on: % of the oracle's utilisation (worst)")
    assert re.search(r"^all +2 +[0-9.]+ \([0-9]+\) / [0-9.]+$", text, re.MULTILINE)
    told = cli.json(*ask)
    assert [each["policy"] for each in told["scenarios"]] == ["adapt", "adapt"]
    assert told["classes"][0]["name"] == "all"


def test_simulate_draws_policies_against_each_other(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "policies.svg"
    ask = ("simulate", "--random", "2", "--seed", "15", "--class", "small", "--policy", "adapt,step", "--jobs", "1")
    assert f"drawn to {path}" in cli(*ask, "--plot", str(path)).err
    picture = path.read_text()
    assert "all scenarios (2)" in picture
    assert "prefers-color-scheme:dark" in picture
    for policy in ("adapt", "step"):
        assert f"<title>{policy}: " in picture


def test_simulate_lists_what_there_is(cli: Cli) -> None:
    assert "limit 8, 4 from minute 40 to 80" in cli.ok("simulate", "--list")
    assert {"A1", "I1"} <= set(cli.json("simulate", "--list")["scenarios"])


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "which scenario?"),
        (("Z9",), "no scenario 'Z9'"),
        (("A1", "--policy", "magic"), "no policy 'magic'"),
        (("A1", "--seeds", "0"), "--seeds"),
        (("A1", "--plot", "/nowhere/x.svg", "--policy", "adapt"), "cannot write /nowhere/x.svg"),
        (("--random", "1", "--plot", "/nowhere/x.svg"), "cannot write /nowhere/x.svg"),
        (("A1", "--random", "1"), "--random goes with no SCENARIO"),
        (("A1", "--policy", ","), "--policy: which one? There are none, fixed"),
        (("A1", "--policy", "step", "--refusals", "cheap"), "of the policies step none learns a limit"),
        (("A1", "--since", "7d"), "--since needs --from-history"),
        (("--random", "1", "--pool", "umans"), "--random goes with no --pool: it draws its own scenarios"),
        (("--random", "1", "--cap", "3"), "--random goes with no --cap"),
        (("--random", "1", "--seeds", "3"), "--random goes with no --seeds"),
        (("A1", "--seed", "3"), "--seed needs --random"),
        (("A1", "--class", "small"), "--class needs --random"),
        (("A1", "--refusals", "free"), "--refusals: found 'free'; valid is"),
    ],
)
def test_q1_nonsense_is_answered_with_what_is_valid(cli: Cli, argv: tuple[str, ...], says: str) -> None:
    assert says in cli.refused("simulate", *argv)


def test_explain_tells_what_is_believed(cli: Cli) -> None:
    cli.gate.one(cmd.SetRule(Rule("requests", "umans", cap=4)))
    ident = cli.occupy("umans/coder", kind="requests")
    text = cli.ok("explain", "umans")
    assert text.startswith("umans (requests): 1 in flight, 0 cooling, limit 4, cap 4\n")
    assert f"{ident} is trying 1" in text
    told = cli.json("explain", "umans")
    assert (told["on_429"], told["proven"], told["trying"], told["next_probe_at"]) == ("adapt", 0, ident, None)
    cli.ok("release", ident, "--outcome", "rate_limited")
    assert "not about how many at once" in cli.ok("explain", "umans")


def test_explain_says_in_one_sentence_what_is_believed_and_lists_what_would_change_it(cli: Cli) -> None:
    cli.gate.one(cmd.SetRule(Rule("requests", "umans", cap=4, cooldown_ms=0)))
    assert "Believes 4 of 4; nothing accepted or refused yet.\n" in cli.ok("explain", "umans")
    first = cli.occupy("umans/coder", kind="requests")
    cli.gate.one(cmd.Active(first))
    assert "Believes 4 of 4; 1 accepted 0 s ago.\n" in cli.ok("explain", "umans")
    second = cli.stand("umans/coder", kind="requests")
    while second not in cli.state.leases:
        cli.gate.one(cmd.Tick())
    cli.ok("release", second, "--outcome", "rate_limited")
    text = cli.ok("explain", "umans")
    assert re.search(r"^Believes 1 of 4; 1 accepted [0-9]+ s ago, 2 refused [0-9]+ s ago; tries 2 ", text, re.MULTILINE)
    assert "What would change the limit:\n  Up: a call with 2 in flight is accepted.\n  Down: " in text
    assert len(text.splitlines()) < 20
    told = cli.json("explain", "umans")
    assert (told["believed_low"], told["believed_high"], told["next_level"]) == (1, 1, 2)
    assert told["refused_at"] is not None
    assert told["changes"][-1].startswith("Back to 4")


def test_p4_status_says_that_a_learned_limit_recovers_by_itself(cli: Cli) -> None:
    cli.gate.one(cmd.SetRule(Rule("requests", "umans", cap=4, cooldown_ms=0)))
    first = cli.occupy("umans/coder", kind="requests")
    cli.gate.one(cmd.Active(first))
    second = cli.stand("umans/coder", kind="requests")
    while second not in cli.state.leases:
        cli.gate.one(cmd.Tick())
    assert "limit is now 1 of 4" in cli.ok("release", second, "--outcome", "rate_limited")
    told = next(pool for pool in cli.json("status")["pools"] if pool["pool"] == "umans")
    assert (told["auto_reduced"], told["auto_reduced_from"], told["limit"]) == (True, 4, 1)
    assert "it recovers automatically" in told["notice"]
    assert "it recovers automatically (`fleetgate explain umans`)" in cli.ok("status")


def test_explain_says_which_pools_there_are(cli: Cli) -> None:
    cli.gate.one(cmd.SetRule(Rule("requests", "umans", cap=4)))
    assert "umans" in cli.refused("explain", "nobody", "--kind", "requests")


# The history.


def occupied(cli: Cli) -> None:
    """Two calls at once in a pool of one, which the second one waits for."""
    cli.gate.one(cmd.SetRule(Rule("requests", "umans", cap=1, cooldown_ms=0, on_429="step")))
    first = cli.occupy("umans/coder", kind="requests")
    second = cli.stand("umans/coder", kind="requests")
    cli.ok("release", first)
    cli.ok("release", second)


def test_simulate_replays_the_history_under_another_cap(cli: Cli) -> None:
    occupied(cli)
    text = cli.ok("simulate", "--from-history", "--since", "1h", "--cap", "umans=2")
    assert text.startswith("What if the cap of umans (requests) had been 2 (")
    assert re.search(r"^umans \(requests\) +measured +replayed as it was +what if$", text, re.MULTILINE)
    assert re.search(r"^not started at once +1 +1 +0$", text, re.MULTILINE)
    assert "more than was ever accepted. Whether the provider would have taken them is not known." in text
    assert len(text.splitlines()) < 24, "one screen"
    told = cli.json("simulate", "--from-history", "--cap", "umans=2")
    (pool,) = told["pools"]
    assert (pool["pool"], pool["measured"]["waited"], pool["what_if"]["waited"]) == ("umans", 1, 0)
    assert told["changes"] == [{"kind": "requests", "selector": "umans", "cap": 2, "on_429": None, "refusals": None}]
    assert told["notes"]


def test_simulate_replays_the_history_as_it_was(cli: Cli) -> None:
    occupied(cli)
    text = cli.ok("simulate", "--from-history", "--pool", "umans")
    assert text.startswith("Replayed with nothing changed (")
    assert "what if" not in text
    told = cli.json("simulate", "--from-history", "--policy", "pause")
    assert told["changes"] == [
        {"kind": "requests", "selector": "umans", "cap": None, "on_429": "pause", "refusals": None}
    ]
    assert "Nothing asked for a slot" in cli.ok("simulate", "--from-history", "--cap", "groq=2", "--kind", "requests")


def test_simulate_replays_the_history_with_another_price_of_refusals(cli: Cli) -> None:
    occupied(cli)
    ask = ("simulate", "--from-history", "--policy", "adapt", "--refusals", "cheap")
    assert cli.json(*ask)["changes"] == [
        {"kind": "requests", "selector": "umans", "cap": None, "on_429": "adapt", "refusals": "cheap"}
    ]
    assert "and refusals of umans (requests) had been cheap" in cli.ok(*ask)


def test_simulate_says_that_a_log_is_empty_and_which_kind_a_cap_was_taken_for(cli: Cli) -> None:
    assert "The log has no events of that time.\n" in cli.ok("simulate", "--from-history", "--since", "0s")
    assert cli.json("simulate", "--from-history")["pools"] == []
    occupied(cli)
    said = cli.ok("simulate", "--from-history", "--cap", "umans/coder=2")
    assert "umans/coder was taken as a cap on agents; --kind requests asks for the other kind" in said
    said = cli.ok("simulate", "--from-history", "--cap", "umans/coder=2", "--kind", "requests")
    assert re.search(r"^umans/coder \(requests\) ", said, re.MULTILINE)


def test_simulate_changes_nothing_in_the_gate(cli: Cli) -> None:
    occupied(cli)
    before = cli.state.seq
    cli.ok("simulate", "--from-history", "--cap", "umans=9")
    assert cli.state.seq == before
    assert cli.state.rules.caps["requests", "umans"].cap == 1


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--cap", "6"), "it is POOL=N"),
        (("--cap", "umans=x"), "--cap 'umans=x'"),
        (("--policy", "oracle"), "one of adapt, step, pause, fixed"),
        (("--policy", "step"), "nothing here caps a model"),
        (("--pool", "nosuch"), "nosuch"),
        (("--since", "soon"), "--since"),
        (("--since", "2999-01-01"), "--since '2999-01-01': that is in the future"),
        (("--policy", "step", "--refusals", "cheap"), "--refusals: step learns no limit"),
        (("A1",), "goes with no SCENARIO: your log is the scenario"),
        (("--random", "2"), "goes with no --random: your log is the scenario"),
        (("--seeds", "2"), "goes with no --seeds: your log is the scenario"),
        (("--plot", "x.svg"), "goes with no --plot: your log is the scenario"),
    ],
)
def test_q1_nonsense_about_the_history_is_answered_with_what_is_valid(
    cli: Cli, argv: tuple[str, ...], says: str
) -> None:
    assert says in cli.refused("simulate", "--from-history", *argv)
