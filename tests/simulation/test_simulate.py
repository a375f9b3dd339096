"""The simulator: the same engine in virtual time, one seed one result, and what it shows of policies and the line."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.limits.adaptive_tuning import DROP
from fleetgate.core.usage import Reading, Usage
from fleetgate.simulate import random_durations
from fleetgate.simulate.plot import svg
from fleetgate.simulate.policies import plan, plans
from fleetgate.simulate.provider import MINUTE, SimulatedProvider
from fleetgate.simulate.result import SimulationResult, mean
from fleetgate.simulate.runs import SimulationRun, every, one
from fleetgate.simulate.scenario import Project, ProviderScenario, RateScenario, Scenario, load, names, read
from fleetgate.simulate.table import aligned, compared, markdown, waits

SEED = 4242


def short(name: str, minutes: float = 20) -> Scenario:
    scenario = load(name)
    scenario.minutes = minutes
    return scenario


def played(name: str, policy: str, minutes: float = 20, seed: int = SEED) -> SimulationResult:
    return one(SimulationRun(short(name, minutes), policy, seed, series=True))


def test_all_scenarios_of_the_design_come_with_it() -> None:
    expected = {"A1", "A2", "A3", "B1", "B2", "C1", "C2", "D1", "E1", "F1", "G1", "H1", "I1", "R1", "S1", "S2"}
    expected |= {"fair", "prio", "K1", "K2", "K3"}
    assert set(names()) == expected
    for name in names():
        assert load(name).id == name


def test_one_seed_gives_one_result_and_another_seed_another() -> None:
    assert played("D1", "adapt", 5) == played("D1", "adapt", 5)
    assert played("D1", "adapt", 5).calls != played("D1", "adapt", 5, SEED + 1).calls


def test_a_run_is_what_it_was_when_this_was_written_on_any_machine() -> None:
    result = played("E1", "adapt", 15)
    assert (result.requests, result.refusals, result.utilisation) == (408, 2, 96.189)


def test_every_policy_meets_the_same_work() -> None:
    durations = [[end - began for began, end in played("A2", policy, 5).calls[:8]] for policy in ("fixed", "oracle")]
    assert sorted(durations[0]) == sorted(durations[1])


def test_runs_at_the_same_time_give_the_same_as_one_after_the_other() -> None:
    runs = [SimulationRun(short("A1", 3), "adapt", seed) for seed in (1, 2, 3)]
    told: list[float] = []
    assert list(every(runs, 1, told.append)) == list(every(runs, 2, told.append))
    assert told[-1] == 1.0


@pytest.mark.parametrize("policy", sorted(plans()))
def test_every_policy_runs(policy: str) -> None:
    result = played("B1", policy, 4)
    assert result.requests > 20
    assert 0 < result.utilisation <= 101


def test_p4_the_price_of_a_refusal_is_that_of_the_run_or_else_of_the_policy() -> None:
    assert [plan(name).rule(4).refusals for name in ("adapt", "adapt-expensive")] == [None, "expensive"]
    assert [plan(name, "cheap").rule(4).refusals for name in ("adapt", "adapt-expensive", "step")] == [
        "cheap",
        "cheap",
        None,
    ]
    for price in ("cheap", "expensive"):
        run = SimulationRun(short("A1", 3), "adapt", 1, refusals=price)
        assert one(run).requests > 0


# What it shows.


def limits_after(result: SimulationResult, at: int) -> set[int]:
    return {limit for changed_at, limit in result.limits if changed_at > at}


def test_p4_adapt_finds_a_limit_below_the_cap_with_one_refusal() -> None:
    result = played("B1", "adapt")
    found_at, *probes = result.refused_at
    assert limits_after(result, found_at) == {8}
    assert found_at < 60_000
    assert len(probes) <= 1
    assert all(at > 5 * 60_000 for at in probes)


@pytest.mark.parametrize(
    ("name", "hidden"), [("S1", 1), ("S1", 2), ("S1", 4), ("S1", 8), ("S2", 1), ("S2", 4), ("S2", 8)]
)
def test_p4_short_calls_find_a_limit_below_the_cap_within_seconds_with_one_refusal_and_then_a_shorter_lag(
    name: str, hidden: int
) -> None:
    scenario = short(name, 2)
    scenario.provider.limit = [(0, hidden)]
    result = one(SimulationRun(scenario, "adapt", SEED, series=True))
    found_at = result.refused_at[0]
    assert found_at < 25_000
    assert next(limit for at, limit in result.limits if at > found_at) == hidden
    part, whole = DROP
    assert all(limit >= hidden * part // whole for limit in limits_after(result, found_at))
    assert result.refusals <= 6  # a lag that was too short, and those sent with that call


def test_p4_short_calls_climb_to_a_cap_that_is_right_without_a_refusal() -> None:
    scenario = short("S1", 3)
    scenario.provider.limit = [(0, 20)]
    result = one(SimulationRun(scenario, "adapt", SEED, series=True))
    assert not [at for at in result.refused_at if at < 60_000]
    assert {limit for _, limit in result.limits} == {20}
    first, second, third = (
        sum(minute <= began // 60_000 < minute + 1 for began, _ in result.calls) for minute in range(3)
    )
    assert second > first
    assert third > 0.9 * second


def test_p4_adapt_refuses_nobody_where_the_cap_is_right() -> None:
    result = played("A2", "adapt")
    assert result.refusals == 0
    assert result.utilisation > played("A2", "oracle").utilisation - 4


def test_p4_adapt_follows_the_limit_down_and_up_again() -> None:
    result = played("C1", "adapt", 100)
    assert result.refusals <= 5
    assert result.limits[-1][1] == 8
    assert min(limit for _, limit in result.limits) == 4
    assert played("C1", "step", 100).limits[-1][1] < 8


@pytest.mark.parametrize("lag_ms", [(0, 0), (200, 500), (800, 1_500)])
@pytest.mark.parametrize(("cap", "fallen"), [(2, 1), (6, 3), (12, 3), (40, 24)])
@pytest.mark.parametrize("median_s", [2, 20])
def test_p4_a_limit_that_fell_comes_back_to_the_cap_within_half_an_hour_of_the_provider(
    cap: int, fallen: int, lag_ms: tuple[int, int], median_s: int
) -> None:
    provider = ProviderScenario(limit=[(0, cap), (10, fallen), (20, cap)], lag_ms=lag_ms)
    project = Project(agents=2 * cap + 2, think_s=1, median_s=median_s)
    result = one(SimulationRun(Scenario("back", "", cap, 50, provider, [project]), "adapt", SEED, series=True))
    # Where calls are short, a limit counts what cools down as well, so it is above what the provider allows at once.
    assert min(limit for at, limit in result.limits if at < 20 * 60_000) <= (fallen + cap) / 2
    assert max(limits_after(result, 20 * 60_000)) == cap
    assert result.refusals <= 30


def test_p4_adapt_learns_a_longer_lag() -> None:
    assert played("D1", "adapt").refusals <= 2


def test_g1_a_gate_sees_neighbours_and_calls_that_are_counted_for_long() -> None:
    assert played("E1", "adapt-gate", 40).refusals <= 1 < played("E1", "adapt", 40).refusals
    gated, lag = played("D1", "adapt-gate", 40), played("D1", "adapt", 40)
    assert gated.refusals <= lag.refusals
    assert gated.utilisation > lag.utilisation


def test_p4_explore_goes_above_a_cap_that_is_too_low() -> None:
    assert played("B2", "adapt").utilisation < 51
    explored = played("B2", "adapt-explore")
    assert explored.utilisation > 75
    reached_at = next(at for at, limit in explored.limits if limit == 8)
    assert explored.refused_at[0] > reached_at
    gaps = [after - before for before, after in pairwise(explored.refused_at)]
    assert gaps == sorted(gaps)  # each is a refused probe, and the next one comes later
    assert explored.refusals <= 4


def test_p1_retry_after_is_kept_to() -> None:
    result = played("R1", "adapt", 60)
    first = result.refused_at[0]
    assert not [began for began, _ in result.calls if first + 200 < began < first + 30_000]


def test_a_penalty_for_each_refusal_is_played() -> None:
    assert played("F1", "fixed").utilisation < 0.75 * played("F1", "adapt").utilisation


# The line (rule A4).


def test_a4_projects_of_100_6_and_6_agents_get_equal_shares_of_a_full_pool() -> None:
    shares = played("fair", "adapt", 60).shares
    assert set(shares) == {"big", "small", "other"}
    assert all(30 <= share <= 37 for share in shares.values())


def test_a4_nobody_is_overtaken_by_more_than_twelve_seconds_for_each_point_of_priority() -> None:
    result = played("prio", "adapt", 60)
    assert 0 < result.overtaken_s <= 120
    assert result.shares["work +0"] > 5


def test_a4_strict_priority_starves_and_ours_does_not() -> None:
    strict, ours = played("prio", "strict", 60), played("prio", "adapt", 60)
    assert strict.shares["work +0"] < 1 < ours.shares["work +0"]
    assert strict.overtaken_s > 1_000


# Rates and budgets (rules V1, V6).


@pytest.mark.parametrize("name", ["K1", "K2"])
def test_v6_rates_that_the_provider_reports_are_used_up_with_hardly_a_refusal(name: str) -> None:
    result = played(name, "adapt", 20)
    assert result.refusals <= 2
    assert result.utilisation > 95


def test_without_its_rates_an_api_key_refuses_often_and_is_used_no_better() -> None:
    ours, unread, unlimited = (played("K2", policy, 20) for policy in ("adapt", "adapt-no-rates", "none"))
    assert ours.tokens_per_min > unread.tokens_per_min
    assert unread.refusals > 5 * ours.refusals
    assert unlimited.refusals > 1000


def test_v1_a_budget_of_a_scenario_holds_its_project_back_and_no_other() -> None:
    result = played("K3", "adapt-no-rates", 20)
    tokens = {name: share / 100 * result.tokens_per_min * 20 for name, share in result.shares.items()}
    assert 900_000 < tokens["nightly"] < 1_100_000  # expected: what calls in flight use beyond their estimates
    assert tokens["web"] > 4 * tokens["nightly"]


def test_v1_dollars_need_prices() -> None:
    scenario = short("K3", 20)
    scenario.budgets = {"project:nightly": {"usd": 1, "per": "day"}}
    scenario.prices = {"sim": {"input": 3, "output": 15}}
    result = one(SimulationRun(scenario, "adapt-no-rates", SEED))
    # A call costs about 2.4 cents: 4,789 tokens of input and 639 of output in the mean.
    tokens = result.shares["nightly"] / 100 * result.tokens_per_min * 20
    assert 40 * 5_428 * 0.6 < tokens < 40 * 5_428 * 1.6


def test_a_scenario_without_tokens_tells_the_engine_nothing_about_them() -> None:
    assert played("A1", "adapt", 3).tokens_per_min == 0
    assert "tokens/min" not in waits([mean([played("A1", "adapt", 3)])])[0]
    assert waits([mean([played("K2", "none", 1)])])[0][-1] == "tokens/min"


# The parts.


def test_draws_are_integers_with_the_mean_that_was_asked_for() -> None:
    assert abs(sum(random_durations.exponential(8_000)) / 4096 - 8_000) < 20
    assert random_durations.lognormal(12_000, 0.8)[2048] == pytest.approx(12_000, rel=0.001)
    assert set(random_durations.mixed(((0.2, 90), (0.8, 3)))) == {90, 3}
    assert random_durations.mixed(((0.2, 90), (0.8, 3))).count(90) == 819
    assert min(random_durations.uniform(30, 81)) == 30
    assert max(random_durations.uniform(30, 81)) == 80
    assert all(type(value) is int for value in random_durations.lognormal(2_000, 0.4))


def test_the_provider_counts_a_call_until_its_lag_is_over_and_others_take_slots() -> None:
    about = ProviderScenario(limit=[(0, 2), (10, 1)], others=[(0, 0), (5, 1)], others_every_min=10)
    upstream = SimulatedProvider(about, 30 * MINUTE)
    assert upstream.changes[:4] == [(0, 2), (5 * MINUTE, 1), (10 * MINUTE, 1), (15 * MINUTE, 0)]
    upstream.starts(1_000, 400)
    upstream.starts(5_000, 400)
    assert (upstream.count(1_000), upstream.told(1_000)) == (2, 2)
    assert not upstream.takes(1_399)
    assert upstream.takes(1_400)
    assert upstream.slot_ms(10 * MINUTE) == 15 * MINUTE
    assert upstream.told(5 * MINUTE) == 1, "it counts everybody"


def test_the_provider_reports_its_rates_and_how_much_of_them_was_used() -> None:
    about = ProviderScenario(rates=[RateScenario(calls=60), RateScenario(output=600, per="10s", burst=100)])
    upstream = SimulatedProvider(about, MINUTE)
    reserved, used = Usage(1, 0, 0, 0, 90), Usage(1, 0, 0, 0, 30)
    assert upstream.rates.shortage(reserved, 0) is None
    upstream.rates.take(reserved, 0)
    shortage = upstream.rates.shortage(reserved, 0)
    assert shortage is not None
    assert (shortage.rate.unit, shortage.wait_ms) == ("output", 1_334)  # 80 more are needed, and 600 come in 10 s
    upstream.rates.settle(reserved, used, 0)
    assert upstream.readings(0) == (
        Reading("calls", 60, 59, 1_000, MINUTE),
        Reading("output", 600, 70, 500, 10_000),
    )
    upstream.served = Usage(6, 0, 0, 0, 1_850)
    assert upstream.rate_used(MINUTE) == pytest.approx(100 * 1_850 / 3_700)


def test_the_table_and_the_picture_show_every_run() -> None:
    results = [played("A1", policy, 3) for policy in ("step", "adapt")]
    means = [mean([result]) for result in results]
    head, rows = compared(means)
    assert (head, rows[0][0]) == (["", "step", "adapt"], "A1")
    assert aligned(head, rows).count("\n") == 1
    assert markdown(*waits(means)).startswith("|  | policy |")
    picture = svg([(load("A1"), result) for result in results])
    assert picture.startswith("<svg")
    assert picture.count("<g ") == 2
    assert "A1, adapt:" in picture


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("cap = 8", "cap = 0"), "cap of 1 or more"),
        (("cap = 8", "cap = 8\nlimits = 3"), "unknown field `limits`"),
        (("[[0, 8]]", "[[1, 8]]"), "begins with minute 0"),
        (("agents = 32", "agents = 32\nmix = [[0.5, 3]]"), "must add up to 1"),
        (("minutes = 120", "minutes = 0"), "up to 1440 minutes"),
        (
            ("[[0, 8]]", "[[0, 8]]\nrates = [{ calls = 1, input = 2 }]"),
            "exactly one of calls, input, output and tokens",
        ),
        (("[[0, 8]]", "[[0, 8]]\nrates = [{ calls = -1 }]"), "1 or more"),
        (("[[0, 8]]", '[[0, 8]]\nrates = [{ calls = 1, per = "soon" }]'), "soon"),
        (("agents = 32", "agents = 32\ninput = { mix = [[0.5, 3]] }"), "must add up to 1"),
        (("agents = 32", "agents = 32\nmax_tokens = -1"), "0 to 10000000 tokens"),
        (("[[project]]", "[budgets]\nsim = { usd = 1 }\n[[project]]"), "budgets.sim"),
        (("[[project]]", "[prices]\nsim = { input = 1 }\n[[project]]"), "prices.sim"),
    ],
)
def test_q1_a_scenario_that_cannot_be_is_refused_with_what_is_valid(change: tuple[str, str], says: str) -> None:
    text = 'id = "x"\nabout = ""\ncap = 8\nminutes = 120\n[provider]\nlimit = [[0, 8]]\n[[project]]\nagents = 32\n'
    read(text, "x.toml")
    with pytest.raises(BadRequest, match=says):
        read(text.replace(*change), "x.toml")


def test_q1_what_is_not_there_is_told_with_what_is() -> None:
    with pytest.raises(NotFound, match="there are A1, A2"):
        load("Z9")
    with pytest.raises(NotFound, match="cannot read"):
        load("nowhere.toml")
    with pytest.raises(NotFound, match="there are none, fixed"):
        plan("magic")


def test_a_run_whose_work_is_done_ends_with_its_last_call() -> None:
    """Timers that mean nothing any more do not make it longer."""
    result = one(SimulationRun(load("G1"), "adapt-explore", 3, series=True))
    assert result.horizon_ms == max(ended for _, ended in result.calls)
