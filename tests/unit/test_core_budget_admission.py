"""Rates and budgets in the engine: reserved when a request enters, settled when it ends (rules V1 to V8)."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.budgets.calendar import Zone
from fleetgate.core.budgets.estimates import Estimates
from fleetgate.core.entities import BudgetRule, Reason, Spec
from fleetgate.core.errors import BadName, BadRequest, NotFound
from fleetgate.core.queue.positions import QueueView
from fleetgate.core.state.state import State
from fleetgate.core.usage import ESTIMATE, RECORD, RESPONSE, Reading, Size, Usage
from fleetgate.core.views.budget_views import BudgetView, budget_views, budgets_stopping
from tests.property.harness import CODER, HOUR, MINUTE, OPUS, SECOND, SONNET, START, Bench, through_json

DOLLAR = 1_000_000
PRICES = (3_000_000, 300_000, 3_750_000, 15_000_000)  # of Sonnet: 3, 0.30, 3.75 and 15 dollars per million tokens


def minute(selector: str, unit: str, amount: int, **more: object) -> BudgetRule:
    return BudgetRule(selector, unit, amount, "1m", MINUTE, **more)  # type: ignore[arg-type]


def day(selector: str, unit: str, amount: int, **more: object) -> BudgetRule:
    return BudgetRule(selector, unit, amount, "day", **more)  # type: ignore[arg-type]


def bench_with(*rules: BudgetRule, **caps: dict[str, int]) -> Bench:
    bench = Bench(**caps, me="me")  # type: ignore[arg-type]
    for rule in rules:
        bench.do(cmd.SetBudget(rule))
    return bench


def used(tokens: int = 0, *, output: int = 0, cost: int | None = None, calls: int = 1) -> Usage:
    return Usage(calls, tokens, 0, 0, output, cost, RESPONSE)


def call(bench: Bench, ident: str, estimate: Usage | None = None, model: str = SONNET, **said: object) -> str:
    return bench.call(ident, model, estimate=estimate, holder="me", **said)


def view(bench: Bench, name: str) -> BudgetView:
    return next(each for each in budget_views(bench.state, bench.now) if each.name == name)


def numbers(bench: Bench, name: str) -> tuple[int, int, int]:
    seen = view(bench, name)
    return seen.used, seen.reserved, seen.free


def reason(bench: Bench, ident: str) -> Reason:
    (row,) = [row for row in QueueView(bench.state, bench.now).page() if row.ticket.id == ident]
    return row.reason


# Reserving and settling.


def test_v2_an_estimate_is_reserved_on_admission_and_settled_at_the_end() -> None:
    bench = bench_with(day("project", "tokens", 1_000))
    assert call(bench, "a", used(300)) == "granted"
    assert numbers(bench, "project:default tokens/day") == (0, 300, 700)
    bench.do(cmd.Release("a", usage=used(120)))
    assert numbers(bench, "project:default tokens/day") == (120, 0, 880)


def test_v2_calls_at_the_same_time_cannot_all_spend_the_same_remainder() -> None:
    bench = bench_with(day("project", "usd", DOLLAR, estimate="max"))
    fates = [call(bench, f"c{number}", used(cost=50_000)) for number in range(40)]
    assert fates.count("granted") == 20
    assert fates.count("waits") == 20
    for number in range(20):
        bench.do(cmd.Release(f"c{number}", usage=used(cost=50_000)))
    assert numbers(bench, "project:default usd/day") == (DOLLAR, 0, 0)
    assert len(bench.state.tickets) == 20


def test_v3_a_lease_that_is_taken_back_or_says_nothing_keeps_what_was_reserved_and_it_is_marked() -> None:
    bench = bench_with(day("project", "tokens", 10_000))
    call(bench, "a", used(300))
    call(bench, "b", used(200))
    (reclaimed,) = bench.do(cmd.Reclaim("a", "me"))
    assert isinstance(reclaimed, ev.Reclaimed)
    assert reclaimed.usage == Usage(1, 300, source=ESTIMATE)
    (released,) = bench.do(cmd.Release("b"))
    assert isinstance(released, ev.Released)
    assert released.usage == Usage(1, 200, source=ESTIMATE)
    assert numbers(bench, "project:default tokens/day") == (500, 0, 9_500)
    assert [row.usage.source for row in bench.state.usage.rows()] == [ESTIMATE]


def test_v3_a_call_that_was_refused_returns_its_reservation() -> None:
    bench = bench_with(day("project", "tokens", 1_000))
    call(bench, "a", used(300))
    bench.do(cmd.Release("a", "rate_limited"))
    call(bench, "b", used(300))
    bench.do(cmd.Release("b", "server_error", usage=Usage(source=RESPONSE)))
    assert numbers(bench, "project:default tokens/day") == (0, 0, 1_000)
    assert bench.state.usage.rows() == []


def test_v3_a_grant_that_is_not_claimed_returns_its_reservation() -> None:
    bench = bench_with(minute("anthropic", "calls", 1))
    call(bench, "a", used(1))
    assert bench.call("b", SONNET, estimate=used(1), holder="other") == "waits"
    bench.do(cmd.Release("a", usage=used(1)))
    bench.wait(MINUTE)
    assert bench.fate("b") == "offered"
    assert view(bench, "anthropic calls/1m").free == 0
    bench.wait(10 * SECOND)
    assert bench.fate("b") == "away"
    assert view(bench, "anthropic calls/1m").free == 1


def test_usage_that_cannot_be_is_taken_for_unknown_at_the_end_and_refused_before() -> None:
    bench = bench_with(day("project", "tokens", 1_000))
    call(bench, "a", used(300))
    with pytest.raises(BadRequest, match="0 to"):
        bench.do(cmd.Settle("a", Usage(1, -5)))
    with pytest.raises(NotFound, match="no lease"):
        bench.do(cmd.Settle("gone", Usage(1)))
    (released,) = bench.do(cmd.Release("a", usage=Usage(1, -5)))
    assert isinstance(released, ev.Released)
    assert released.usage == Usage(1, 300, source=ESTIMATE)


def test_a_lease_can_settle_while_it_goes_on_and_the_rest_is_given_back() -> None:
    bench = bench_with(day("project", "tokens", 1_000), minute("anthropic", "tokens", 600))
    call(bench, "a", used(300))
    bench.do(cmd.Settle("a", used(100)))
    assert numbers(bench, "project:default tokens/day") == (100, 200, 700)
    assert numbers(bench, "anthropic tokens/1m") == (100, 200, 300)
    bench.do(cmd.Settle("a", used(250)))
    assert numbers(bench, "project:default tokens/day") == (350, 0, 650)
    (released,) = bench.do(cmd.Release("a"))
    assert isinstance(released, ev.Released)
    assert (released.usage, released.total) == (None, Usage(2, 350, source=RESPONSE))
    assert numbers(bench, "project:default tokens/day") == (350, 0, 650)


def test_what_a_lease_used_beyond_the_end_of_its_window_counts_in_the_next_one() -> None:
    bench = bench_with(BudgetRule("project", "tokens", 1_000, "5h", 5 * HOUR))
    call(bench, "a", used(300))
    call(bench, "b", used(10))
    call(bench, "c", used(10))
    bench.wait(5 * HOUR)
    bench.do(cmd.Settle("a", used(40)))
    bench.do(cmd.Release("a", usage=used(60)))
    bench.do(cmd.Release("b"))
    assert numbers(bench, "project:default tokens/5h") == (100, 0, 900)
    bench.wait(5 * HOUR)
    bench.do(cmd.Release("c", usage=used(7)))
    assert numbers(bench, "project:default tokens/5h") == (7, 0, 993)


# Runs and their calls.


def test_v2_the_calls_of_a_run_draw_on_its_reservation_and_count_once() -> None:
    bench = bench_with(day("project", "usd", 1_000))
    bench.agent("run", SONNET, estimate=used(cost=600), holder="me")
    assert numbers(bench, "project:default usd/day") == (0, 600, 400)
    assert call(bench, "c1", used(cost=500), run="run") == "granted"
    assert numbers(bench, "project:default usd/day") == (0, 600, 400), "it is the run's"
    assert call(bench, "c2", used(cost=300), run="run") == "granted"
    assert numbers(bench, "project:default usd/day") == (0, 800, 200)
    bench.do(cmd.Release("c1", usage=used(cost=450)))
    assert numbers(bench, "project:default usd/day") == (450, 350, 200)
    bench.do(cmd.Release("c2", usage=used(cost=350)))
    assert numbers(bench, "project:default usd/day") == (800, 50, 150)
    spent = bench.state.leases["run"].spent
    assert spent is not None
    assert (spent.calls, spent.cost) == (2, 800)
    (released,) = bench.do(cmd.Release("run", usage=Usage(2, cost=799, source=RECORD)))
    assert isinstance(released, ev.Released)
    assert released.usage is None
    assert released.total == spent
    assert numbers(bench, "project:default usd/day") == (800, 0, 200), "the record repeats what the proxy saw"


def test_v2_a_call_that_its_run_covers_enters_although_the_budget_is_empty() -> None:
    bench = bench_with(day("project", "usd", 1_000))
    bench.agent("run", SONNET, estimate=used(cost=1_000), holder="me")
    assert call(bench, "other", used(cost=1)) == "waits"
    assert call(bench, "mine", used(cost=900), run="run", project="default") == "granted", "it takes nothing of others"
    assert call(bench, "more", used(cost=101), run="run") == "waits", "it would take what its run does not hold"
    assert call(bench, "rest", used(cost=100), run="run") == "waits", "it is behind another call of its run"
    bench.do(cmd.Cancel("more"))
    assert bench.fate("rest") == "granted"


def test_v7_a_run_that_has_used_up_its_part_holds_back_no_call_of_another_run() -> None:
    bench = bench_with(day("project", "usd", 1_000))
    bench.agent("one", SONNET, estimate=used(cost=500), holder="me")
    bench.agent("two", SONNET, estimate=used(cost=500), holder="me")
    bench.do(cmd.Settle("one", used(cost=500)))
    assert call(bench, "of one", used(cost=10), run="one") == "waits"
    assert call(bench, "of two", used(cost=10), run="two") == "granted"


def test_v7_what_a_call_did_not_use_lets_a_waiting_call_of_its_run_in() -> None:
    bench = bench_with(day("project", "usd", 1_000))
    bench.agent("run", SONNET, estimate=used(cost=1_000), holder="me")
    assert call(bench, "other", used(cost=1)) == "waits"
    assert call(bench, "first", used(cost=900), run="run") == "granted"
    assert call(bench, "second", used(cost=200), run="run") == "waits"
    bench.do(cmd.Release("first", usage=used(cost=300)))
    assert (bench.fate("second"), bench.fate("other")) == ("granted", "waits")


def test_v4_a_call_that_waits_enters_when_its_run_has_returned_from_the_queue_and_covers_it() -> None:
    bench = bench_with(day("project", "usd", DOLLAR))
    assert call(bench, "other", used(cost=900_000)) == "granted"
    assert call(bench, "large", used(cost=990_000)) == "waits"
    assert call(bench, "of the run", used(cost=1_000), run="run") == "waits"
    assert bench.agent("run", SONNET, holder="me", estimate=used(cost=500_000), priority=1) == "waits"
    bench.do(cmd.Release("other", usage=used(cost=0, calls=0)))
    assert list(bench.state.leases) == ["run", "of the run"]


def test_v2_a_run_reserves_the_median_of_what_runs_of_its_project_and_model_used() -> None:
    bench = bench_with(day("project", "usd", DOLLAR))
    for number, cost in enumerate((500, 100, 300)):
        bench.agent(f"r{number}", SONNET, holder="me")
        assert view(bench, "project:default usd/day").reserved in (0, 500)
        bench.do(cmd.Release(f"r{number}", usage=Usage(1, 9, cost=cost, source=RECORD)))
    bench.agent("next", SONNET, holder="me")
    assert view(bench, "project:default usd/day").reserved == 300
    bench.do(cmd.Release("next"))
    bench.agent("another", OPUS, holder="me")
    assert view(bench, "project:default usd/day").reserved == 0
    bench.do(cmd.Release("another", usage=Usage(1, 9, source=RECORD)))
    bench.agent("free", OPUS, holder="me")
    assert bench.state.leases["free"].ticket.estimate == Usage(1, 9, source=ESTIMATE), "its cost is not known"


def test_rates_count_calls_and_no_runs() -> None:
    bench = bench_with(minute("anthropic", "tokens", 100))
    bench.agent("run", SONNET, estimate=used(500), holder="me")
    assert view(bench, "anthropic tokens/1m").free == 100


def test_u2_a_run_whose_calls_were_not_seen_counts_what_its_record_says() -> None:
    bench = Bench(me="me")
    bench.agent("run", SONNET, holder="me")
    bench.do(cmd.Release("run", usage=Usage(5, 10, 20, 30, 40, 50, RECORD)))
    (row,) = bench.state.usage.rows()
    assert (row.project, row.model, row.host, row.kind, row.usage) == (
        "default",
        SONNET,
        "h1",
        "agents",
        Usage(5, 10, 20, 30, 40, 50, RECORD),
    )


def test_u5_the_host_of_a_call_is_that_of_its_run() -> None:
    bench = Bench(me="me")
    bench.agent("run", SONNET, holder="me", host="h7")
    call(bench, "c", run="run", host="")
    bench.do(cmd.Release("c", usage=used(4)))
    assert [row.host for row in bench.state.usage.rows()] == ["h7"]


# Order.


def test_v4_a_smaller_request_does_not_overtake_in_a_rate_not_even_from_another_queue() -> None:
    bench = bench_with(minute("anthropic", "tokens", 600))
    assert call(bench, "first", used(500)) == "granted"
    assert call(bench, "large", used(400)) == "waits"
    assert call(bench, "small", used(50)) == "waits"
    assert call(bench, "other", used(50), OPUS) == "waits", "the same rate, another queue"
    assert reason(bench, "other").text.startswith("another request waits longer for anthropic tokens/1m")
    bench.wait(30 * SECOND)
    assert [bench.fate(ident) for ident in ("large", "small", "other")] == ["granted", "waits", "waits"]
    bench.wait(10 * SECOND)
    assert [bench.fate(ident) for ident in ("small", "other")] == ["granted", "granted"]


def test_v4_who_waits_behind_a_request_enters_when_that_one_leaves_the_queue() -> None:
    bench = bench_with(minute("anthropic", "tokens", 600))
    call(bench, "first", used(500))
    call(bench, "large", used(600))
    assert call(bench, "other", used(50), OPUS) == "waits"
    bench.do(cmd.Cancel("large"))
    assert bench.fate("other") == "granted"


def test_v4_a_project_that_has_had_less_of_a_rate_goes_first() -> None:
    bench = bench_with(minute("anthropic", "tokens", 600))
    call(bench, "first", used(600), project="a")
    call(bench, "more", used(300), project="a")
    call(bench, "theirs", used(300), project="b")
    bench.wait(30 * SECOND)
    assert [bench.fate(ident) for ident in ("more", "theirs")] == ["waits", "granted"]


def test_v4_a_request_larger_than_the_whole_rate_enters_alone_when_it_is_full() -> None:
    bench = bench_with(minute("anthropic", "tokens", 600))
    call(bench, "first", used(60))
    assert call(bench, "huge", used(5_000)) == "waits"
    bench.wait(6 * SECOND)
    assert bench.fate("huge") == "granted"
    assert call(bench, "next", used(1)) == "waits"
    bench.do(cmd.Release("huge", usage=used(700)))
    bench.wait(11 * SECOND)
    assert bench.fate("next") == "granted"


def test_v4_what_a_head_cannot_use_of_a_window_is_left_to_other_projects() -> None:
    bench = bench_with(day("anthropic", "tokens", 1_000))
    call(bench, "first", used(600), project="a")
    assert call(bench, "large", used(500), project="a") == "waits"
    assert call(bench, "behind", used(5), OPUS, project="a") == "waits", "the same project: it does not overtake"
    assert call(bench, "theirs", used(300), project="b") == "granted"
    assert call(bench, "too-much", used(300), project="c") == "waits"
    bench.do(cmd.Release("first", usage=used(400)))
    assert [bench.fate(ident) for ident in ("large", "behind", "too-much")] == ["waits", "waits", "granted"]
    bench.wait(24 * HOUR)
    assert [bench.fate(ident) for ident in ("large", "behind")] == ["granted", "granted"]


def test_v1_pools_and_budgets_are_decided_together() -> None:
    bench = bench_with(minute("anthropic", "tokens", 600), requests={"anthropic": 1})
    call(bench, "first", used(500))
    assert call(bench, "second", used(200)) == "waits"
    assert reason(bench, "second").code == "concurrency_cap"
    bench.do(cmd.Release("first", usage=used(500)))
    bench.wait(350)
    assert bench.fate("second") == "waits"
    assert reason(bench, "second").code == "budget"
    assert bench.state.named("requests", "anthropic").used == 0  # type: ignore[union-attr]
    bench.wait(10 * SECOND)
    assert bench.fate("second") == "granted"


def test_a_request_that_does_not_wait_is_deferred_with_the_budget_and_the_time() -> None:
    bench = bench_with(minute("anthropic", "input", 600))
    call(bench, "a", used(600))
    (deferred,) = bench.do(cmd.Acquire("b", bench.spec(SONNET, kind="requests"), "me", False, estimate=used(60)))
    assert isinstance(deferred, ev.Deferred)
    said = deferred.reason
    assert (said.code, said.budget, said.left, said.until) == ("budget", "anthropic input/1m", 0, START + 6_000)
    assert said.text == "anthropic input/1m has 0 input left, and this request needs 60"


def test_v5_a_position_counts_those_who_wait_for_the_same_budget_and_the_time_is_known() -> None:
    bench = bench_with(minute("anthropic", "tokens", 600), day("project:p", "usd", 10))
    call(bench, "first", used(600))
    for number in range(3):
        call(bench, f"w{number}", used(60))
    call(bench, "spender", used(cost=10), CODER, project="p")
    call(bench, "poor", used(cost=5), CODER, project="p")
    rows = {row.ticket.id: row for row in QueueView(bench.state, bench.now).page()}
    assert [(rows[f"w{n}"].position, rows[f"w{n}"].of, rows[f"w{n}"].pool) for n in range(3)] == [
        (n + 1, 3, "anthropic tokens/1m") for n in range(3)
    ]
    assert [rows[f"w{n}"].estimate_ms for n in range(3)] == [(6_000, 6_000), (12_000, 12_000), (18_000, 18_000)]
    until = rows["poor"].reason.until
    assert until is not None
    assert rows["poor"].estimate_ms == (until - bench.now, until - bench.now)
    assert rows["poor"].reason.text == "project:p usd/day has $0.00 left, and this request needs $0.00"
    near = QueueView(bench.state, bench.now, bench.spec(SONNET, kind="requests"))
    assert len(near.page()) == 3


def test_whether_a_request_would_enter_now_takes_budgets_into_account() -> None:
    bench = bench_with(minute("anthropic", "calls", 1))
    spec = bench.spec(SONNET, kind="requests")
    assert bench.engine.fits(spec, bench.now)
    call(bench, "a", used(1))
    assert not bench.engine.fits(spec, bench.now)


def test_when_a_window_opens_for_several_projects_the_one_that_had_less_goes_first() -> None:
    bench = bench_with(BudgetRule("anthropic", "tokens", 1_000, "5h", 5 * HOUR))
    call(bench, "first", used(1_000), project="a")
    for project in ("a", "b", "c"):
        call(bench, f"w-{project}", used(100), project=project)
    budget = bench.state.budgets["budget anthropic tokens/5h"]
    assert budget.first_admissible_of("b", bench.now) is None, "nothing is left"
    bench.now += 5 * HOUR
    queue = budget.first_admissible_of("b", bench.now)
    assert queue is not None
    assert queue.project == "b"
    events = bench.do(cmd.Tick())
    granted = [event.id for event in events if isinstance(event, ev.Granted)]
    assert granted == ["w-b", "w-c", "w-a"]
    assert budget.first_admissible_of("b", bench.now) is None


def test_a_request_that_its_rate_lets_in_may_then_have_to_wait_for_a_slot() -> None:
    bench = bench_with(minute("anthropic/claude-sonnet-*", "tokens", 600), requests={"anthropic": 1})
    call(bench, "first", used(600))
    bench.do(cmd.Release("first", usage=used(600)))
    bench.wait(350)
    call(bench, "second", used(60))
    assert reason(bench, "second").code == "budget"
    assert call(bench, "opus", used(60), OPUS) == "granted"
    assert call(bench, "third", used(1), project="other") == "waits"
    bench.wait(10 * SECOND)
    assert reason(bench, "second").code == "concurrency_cap"


def test_a_deadline_of_a_budget_that_was_removed_means_nothing() -> None:
    bench = bench_with(minute("anthropic", "tokens", 600), minute("anthropic", "calls", 100))
    call(bench, "first", used(600))
    assert call(bench, "second", used(60)) == "waits"
    assert reason(bench, "second").budget == "anthropic tokens/1m", "the other one has room"
    due = bench.engine.next_deadline()
    bench.engine.handle(cmd.RemoveBudget("anthropic", "tokens", "1m"), bench.now)
    assert bench.fate("second") == "granted"
    assert due == bench.now + 6 * SECOND
    assert bench.engine.handle(cmd.Tick(), due) == []


# What happens when a budget is empty.


def test_v7_warn_lets_requests_in_and_reports_what_was_reached() -> None:
    bench = bench_with(day("project", "tokens", 100, when_empty="warn"))
    assert call(bench, "a", used(500)) == "granted"
    events = bench.do(cmd.Release("a", usage=used(500)))
    reached = events[-1]
    assert isinstance(reached, ev.BudgetReached)
    assert (reached.percent, reached.used) == (100, 500)
    assert call(bench, "b", used(500)) == "granted"


def test_v7_a_window_reports_50_80_and_100_percent_once_each_and_again_in_the_next_window() -> None:
    bench = bench_with(BudgetRule("project", "calls", 10, "5h", 5 * HOUR))

    def reached() -> list[int]:
        return [event.percent for event, _ in bench.log if isinstance(event, ev.BudgetReached)]

    for number in range(10):
        call(bench, f"a{number}", used(1))
        bench.do(cmd.Release(f"a{number}", usage=used(1)))
    assert reached() == [50, 80, 100]
    bench.wait(5 * HOUR)
    call(bench, "b", used(1, calls=6))
    bench.do(cmd.Release("b", usage=used(1, calls=6)))
    assert reached() == [50, 80, 100, 50]


def test_v7_fallback_uses_the_next_candidate_while_the_budget_is_spent() -> None:
    bench = bench_with(day("anthropic", "tokens", 100, when_empty="fallback"), requests={"umans": 1, "anthropic": 1})
    spec = bench.spec(SONNET, CODER, kind="requests")
    bench.ask("a", spec, estimate=used(60), holder="me")
    bench.ask("b", spec, estimate=used(60), holder="me")
    bench.ask("other", bench.spec(CODER, kind="requests"), estimate=used(1), holder="me")
    assert bench.state.leases["a"].model == SONNET
    assert bench.fate("b") == "waits"
    bench.do(cmd.Release("a", usage=used(100)))
    bench.wait(350)
    assert bench.fate("b") == "waits", "the next candidate is taken"
    bench.do(cmd.Release("other", usage=used(1)))
    bench.wait(350)
    assert bench.state.leases["b"].model == CODER
    bench.do(cmd.Release("b", usage=used(1)))
    bench.wait(24 * HOUR)
    bench.ask("c", spec, estimate=used(60), holder="me")
    assert bench.state.leases["c"].model == SONNET


def test_v7_fallback_moves_a_request_that_waits_for_a_slot_when_the_budget_is_spent_meanwhile() -> None:
    bench = bench_with(day("anthropic", "tokens", 100, when_empty="fallback"), requests={"anthropic": 1})
    call(bench, "a", used(60))
    bench.ask("b", bench.spec(SONNET, CODER, kind="requests"), estimate=used(60), holder="me")
    call(bench, "only-this", used(60))
    assert bench.fate("b") == "waits"
    bench.do(cmd.Settle("a", used(100)))
    assert bench.state.leases["b"].model == CODER


def test_v7_stop_names_the_budget_that_a_running_agent_has_used_up() -> None:
    bench = bench_with(day("project", "usd", 100, when_empty="stop"), minute("umans", "calls", 1, when_empty="stop"))
    call(bench, "rate", used(1), CODER)
    assert budgets_stopping(bench.state, "rate", bench.now) == "", "a rate refills"
    bench.agent("run", SONNET, holder="me")
    assert budgets_stopping(bench.state, "run", bench.now) == ""
    assert budgets_stopping(bench.state, "gone", bench.now) == ""
    call(bench, "c", used(cost=50), run="run")
    events = bench.do(cmd.Release("c", usage=used(cost=120)))
    assert isinstance(events[-1], ev.BudgetReached)
    assert events[-1].when_empty == "stop"
    assert budgets_stopping(bench.state, "run", bench.now) == "project:default usd/day"


# What people do.


def test_v7_a_budget_can_be_reset_added_to_and_removed_at_run_time() -> None:
    bench = bench_with(day("project", "tokens", 100), minute("anthropic", "tokens", 100))
    call(bench, "a", used(60))
    bench.do(cmd.Release("a", usage=used(100)))
    call(bench, "b", used(50))
    assert bench.fate("b") == "waits"
    bench.do(cmd.AddBudget("project:default tokens/day", 80))
    bench.do(cmd.AddBudget("anthropic tokens/1m", 70))
    assert bench.fate("b") == "granted"
    assert numbers(bench, "project:default tokens/day") == (100, 50, 30)
    bench.do(cmd.ResetBudget("project:default tokens/day"))
    bench.do(cmd.ResetBudget("anthropic tokens/1m"))
    assert numbers(bench, "project:default tokens/day") == (0, 50, 130)
    assert numbers(bench, "anthropic tokens/1m") == (0, 50, 50)
    bench.do(cmd.RemoveBudget("project", "tokens", "day"))
    assert [each.name for each in budget_views(bench.state, bench.now)] == ["anthropic tokens/1m"]
    with pytest.raises(NotFound, match="there are: anthropic tokens/1m"):
        bench.do(cmd.RemoveBudget("project", "tokens", "day"))
    bench.do(cmd.RemoveBudget("anthropic", "tokens", "1m"))
    with pytest.raises(NotFound, match=r"no budget of anthropic in tokens per 1m$"):
        bench.do(cmd.RemoveBudget("anthropic", "tokens", "1m"))
    with pytest.raises(NotFound, match=r"no budget 'x' \(set one with"):
        bench.do(cmd.ResetBudget("x"))
    bench.do(cmd.Release("b", usage=used(50)))


def test_v7_without_what_was_set_at_run_time_the_file_decides_again() -> None:
    bench = bench_with(day("project", "tokens", 100))
    file = BudgetRule("anthropic", "tokens", 100, "5h", 5 * HOUR)
    bench.do(cmd.LoadFile("c.toml", "d", 1, (), force=True, budgets=(file,)))
    call(bench, "a", used(60))
    bench.do(cmd.SetBudget(BudgetRule("anthropic", "tokens", 10, "5h", 5 * HOUR)))
    assert call(bench, "b", used(20)) == "waits"
    bench.do(cmd.UnsetBudget("anthropic", "tokens", "5h"))
    assert bench.fate("b") == "granted"
    assert numbers(bench, "anthropic tokens/5h") == (0, 80, 20), "what is used stays used"
    bench.do(cmd.UnsetBudget("project", "tokens", "day"))
    assert [each.name for each in budget_views(bench.state, bench.now)] == ["anthropic tokens/5h"]
    with pytest.raises(NotFound, match=r"no budget of project in tokens per day was set at run time$"):
        bench.do(cmd.UnsetBudget("project", "tokens", "day"))


def test_v7_what_was_added_holds_until_then_or_to_the_end_of_the_window() -> None:
    bench = bench_with(day("project", "tokens", 100), BudgetRule("host", "tokens", 100, "5h", 5 * HOUR))
    bench.do(cmd.AddBudget("project:x tokens/day", 5, bench.now + HOUR))
    bench.do(cmd.AddBudget("project:y tokens/day", 5))
    bench.do(cmd.AddBudget("host:h1 tokens/5h", 5))
    with pytest.raises(NotFound, match="there are: host:h1 tokens/5h, project:x"):
        bench.do(cmd.AddBudget("project:z tokens/month", 5))
    amounts = {each.name: each.amount for each in budget_views(bench.state, bench.now)}
    assert amounts == {"project:x tokens/day": 105, "project:y tokens/day": 105, "host:h1 tokens/5h": 105}
    bench.wait(HOUR)
    assert view(bench, "project:x tokens/day").amount == 100
    bench.wait(4 * HOUR)
    assert view(bench, "host:h1 tokens/5h").amount == 100
    bench.wait(24 * HOUR)
    assert view(bench, "project:y tokens/day").amount == 100
    with pytest.raises(BadRequest, match="is over"):
        bench.do(cmd.AddBudget("project:x tokens/day", 5, bench.now))
    with pytest.raises(BadRequest, match="add 0"):
        bench.do(cmd.AddBudget("project:x tokens/day", 0))


def test_v1_a_file_sets_budgets_and_the_zone_and_run_time_goes_before_the_file() -> None:
    bench = Bench(me="me")
    zone = Zone((0,), (2 * HOUR,))
    rules = (day("project", "usd", DOLLAR), day("project:nightly", "usd", 5), minute(SONNET, "calls", 3, burst=1))
    bench.do(cmd.LoadFile("f", "x", 99, (), budgets=rules, zone=zone))
    assert {each.name: each.source for each in budget_views(bench.state, bench.now)} == {
        f"{SONNET} calls/1m": "file",
        "project:nightly usd/day": "file",
    }
    call(bench, "a", used(cost=9), project="nightly")
    call(bench, "b", used(cost=9), project="web")
    names = {each.name: (each.amount, each.resets_at) for each in budget_views(bench.state, bench.now)}
    midnight = (bench.now + 2 * HOUR) // (24 * HOUR) * 24 * HOUR + 22 * HOUR
    assert names["project:nightly usd/day"] == (5, midnight)
    assert bench.fate("b") == "waits", "one call fits the burst"
    bench.do(cmd.SetBudget(minute(SONNET, "calls", 50)))
    assert bench.fate("b") == "granted"
    seen = view(bench, f"{SONNET} calls/1m")
    assert (seen.amount, seen.burst, seen.source, seen.used + seen.reserved) == (50, 50, "run time", 2)
    bench.do(cmd.LoadFile("f", "y", 100, (), budgets=(day("project", "usd", 7),)))
    assert view(bench, "project:web usd/day").amount == 7
    with pytest.raises(BadRequest, match="unit"):
        bench.do(cmd.LoadFile("f", "z", 101, (), budgets=(day("project", "euro", 7),)))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (day("project", "euro", 5), "valid are calls, input, output, tokens, usd"),
        (day("project", "usd", 0), "amount 0"),
        (BudgetRule("project", "usd", 5, "year"), "day, week, month"),
        (BudgetRule("project", "usd", 5, "day", 5_000), "a duration of 1s"),
        (BudgetRule("project", "usd", 5, "1ms", 1), "a duration of 1s"),
        (BudgetRule("project", "usd", 5, "5h", 5 * HOUR, burst=3), "only a rate"),
        (day("project", "usd", 5, when_empty="panic"), "hold, stop, fallback, warn"),
        (day("project", "usd", 5, estimate="min"), "expected, max"),
    ],
)
def test_q1_a_budget_that_cannot_be_is_refused_with_what_is_valid(rule: BudgetRule, said: str) -> None:
    bench = Bench()
    with pytest.raises(BadRequest, match=said):
        bench.do(cmd.SetBudget(rule))


@pytest.mark.parametrize("selector", ["project:", "project:a\nb", "key:me/x y", "@"])
def test_q1_a_selector_that_cannot_be_is_refused(selector: str) -> None:
    with pytest.raises(BadName):
        Bench().do(cmd.SetBudget(day(selector, "usd", 5)))


def test_budgets_of_hosts_accounts_and_globs_have_an_instance_each() -> None:
    bench = bench_with(day("host", "calls", 9), day("anthropic@work", "calls", 5), day("anthropic", "calls", 7))
    bench.do(cmd.SetBudget(day("*", "calls", 11)))
    call(bench, "a", used(1))
    call(bench, "b", used(1), "anthropic@work/claude-opus-4-6")
    bench.do(cmd.Acquire("c", Spec(kind="requests"), "me", estimate=used(1)))
    amounts = {each.name: (each.amount, each.reserved) for each in budget_views(bench.state, bench.now)}
    assert amounts == {
        "*:anthropic calls/day": (11, 1),
        "*:anthropic@work calls/day": (11, 1),
        "anthropic calls/day": (7, 1),
        "anthropic@work calls/day": (5, 1),
        "host:h1 calls/day": (9, 2),
    }
    assert repr(bench.state.budgets["budget anthropic calls/day"]) == "<Budget anthropic calls/day: 1 reserved by 1>"


# Estimates.


def test_v2_a_call_is_estimated_by_its_size_and_by_what_calls_before_it_used() -> None:
    bench = Bench(me="me")
    size = Size(8_000, 2_000, *PRICES)
    call(bench, "a", size=size)
    assert bench.state.leases["a"].ticket.estimate == Usage(1, 2_000, 0, 0, 1_024, 21_360, ESTIMATE)
    bench.do(cmd.Release("a", usage=Usage(1, 100, 3_900, 0, 70, 5, RESPONSE)))
    for number in range(40):
        call(bench, f"b{number}", size=size)
        bench.do(cmd.Release(f"b{number}", usage=Usage(1, 100, 3_900, 0, 60 + number, 5, RESPONSE)))
    call(bench, "c", size=size)
    learned = bench.state.leases["c"].ticket.estimate
    assert learned is not None
    assert learned.output == 97
    assert 100 <= learned.input <= 130
    assert 3_800 <= learned.cache_read <= 3_900
    call(bench, "d", size=Size(8_000, 30))
    assert bench.state.leases["d"].ticket.estimate == Usage(1, learned.input, learned.cache_read, 0, 30, None, ESTIMATE)
    for number in range(600):
        call(bench, f"e{number}", size=size)
        bench.do(cmd.Release(f"e{number}", usage=Usage(1, 1_000, 0, 0, 5, 5, RESPONSE)))
    call(bench, "f", size=size)
    forgotten = bench.state.leases["f"].ticket.estimate
    assert forgotten is not None
    assert 900 <= forgotten.input <= 1_000, "old calls weigh less and less"


def test_v2_max_reserves_a_token_for_each_byte_and_all_the_output_that_the_request_allows() -> None:
    bench = bench_with(day("project", "usd", 10 * DOLLAR, estimate="max"), day("project", "output", 10**6))
    call(bench, "a", size=Size(1_000, 2_000, *PRICES))
    assert view(bench, "project:default usd/day").reserved == 3_750 + 30_000
    assert view(bench, "project:default output/day").reserved == 1_024
    call(bench, "b", size=Size(1_000, 0, *PRICES))
    assert view(bench, "project:default usd/day").reserved == 3_750 + 30_000 + 3_750 + 32_768 * 15
    call(bench, "hostile", size=Size(-5, 10**30))
    most = bench.state.leases["hostile"].ticket.most
    assert most == Usage(1, 0, 0, 0, 1 << 40, None, ESTIMATE)


def test_only_so_many_models_and_projects_are_remembered() -> None:
    known = Estimates()
    for number in range(520):
        known.learn_call(f"umans/m{number}", "default", 100, used(1))
        known.learn_run(f"umans/m{number}", "default", used(9))
    assert [len(known.ratios), len(known.outputs), len(known.runs)] == [512, 512, 512]
    assert "umans/m0" not in known.ratios
    assert "umans/m519" in known.ratios
    assert known.of_run("umans/m0", "default") is None


# Rates that providers report.


def observed(bench: Bench, ident: str, *readings: Reading) -> list[ev.Event]:
    return bench.do(cmd.ObserveRates(ident, readings))


def test_v6_the_rates_of_a_response_hold_without_configuration() -> None:
    bench = Bench(me="me")
    call(bench, "a", used(100))
    (event,) = observed(bench, "a", Reading("input", 1_000, 100, 54_000), Reading("calls", 50, 49))
    assert isinstance(event, ev.RatesObserved)
    assert len(event.readings) == 2
    seen = view(bench, f"{SONNET} input/provider")
    assert (seen.amount, seen.per_ms, seen.free, seen.source, seen.provider_amount) == (
        1_000,
        MINUTE,
        100,
        "provider",
        1_000,
    )
    assert call(bench, "b", used(300)) == "waits"
    bench.wait(12 * SECOND)
    assert bench.fate("b") == "granted"
    assert call(bench, "opus", used(900), OPUS) == "granted", "another model has rates of its own"


def test_v6_a_reading_is_recorded_only_where_it_changes_decisions() -> None:
    bench = Bench(me="me")
    call(bench, "a", used(100))
    observed(bench, "a", Reading("input", 1_000, 900, per_ms=MINUTE))
    bench.do(cmd.Release("a", usage=used(100)))
    call(bench, "b", used(100))
    assert observed(bench, "b", Reading("input", 1_000, 800, per_ms=MINUTE)) == [], "as expected"
    assert observed(bench, "b", Reading("input", 1_000, 700, per_ms=MINUTE)) == [], "plenty is left"
    (event,) = observed(bench, "b", Reading("input", 1_000, 200, per_ms=MINUTE))
    assert isinstance(event, ev.RatesObserved)
    assert view(bench, f"{SONNET} input/provider").free == 200
    assert observed(bench, "b", Reading("input", 2_000, 1_200, per_ms=MINUTE)) != [], "another limit"
    assert view(bench, f"{SONNET} input/provider").amount == 2_000
    assert observed(bench, "gone", Reading("input", 1_000, 5)) == []
    bench.do(cmd.Acquire("unnamed", Spec(kind="requests"), "me"))
    assert observed(bench, "unnamed", Reading("input", 1_000, 5)) == []


@pytest.mark.parametrize(
    "reading",
    [
        Reading("usd", 5, 5),
        Reading("euro", 5, 5),
        Reading("input", 0, 0),
        Reading("input", 10**16, 0),
        Reading("input", 5, -(10**16)),
        Reading("input", 5, 5, -1),
        Reading("input", 5, 5, 0, -1),
        Reading("input", 5, 5, 0, 0, 10**14),
    ],
)
def test_q1_a_reading_that_cannot_be_is_ignored(reading: Reading) -> None:
    bench = Bench(me="me")
    call(bench, "a", used(1))
    assert observed(bench, "a", reading) == []


def test_v6_what_was_sent_since_the_call_counts_although_the_provider_may_not_have_seen_it() -> None:
    bench = Bench(me="me")
    call(bench, "a", used(100))
    observed(bench, "a", Reading("input", 1_000, 900, per_ms=MINUTE))
    call(bench, "b", used(300))
    call(bench, "c", used(300))
    assert observed(bench, "a", Reading("input", 1_000, 500, per_ms=MINUTE)) == [], "our own count may be true"
    assert view(bench, f"{SONNET} input/provider").free == 300
    observed(bench, "c", Reading("input", 1_000, 100, per_ms=MINUTE))
    assert view(bench, f"{SONNET} input/provider").free == 100


@pytest.mark.parametrize(
    ("readings", "per_ms"),
    [
        ([Reading("calls", 100, 50, 30_000)], MINUTE),
        ([Reading("calls", 100, 50, 500)], SECOND),
        ([Reading("calls", 14_400, 0, 86_000_000)], 24 * HOUR),
        ([Reading("calls", 100, 50, 5 * MINUTE)], 10 * MINUTE),
        ([Reading("calls", 100, 99, 5)], MINUTE),
        ([Reading("calls", 100, 50, 500), Reading("calls", 90, 89, 3)], SECOND),
        ([Reading("calls", 100, 50, 500), Reading("calls", 90, 45, 700)], SECOND),
        ([Reading("calls", 100, 50, 500), Reading("calls", 90, 45, 30_000)], MINUTE),
    ],
)
def test_v6_the_period_of_a_limit_follows_from_how_long_it_takes_to_refill(
    readings: list[Reading], per_ms: int
) -> None:
    bench = Bench(me="me")
    call(bench, "a", used(1))
    for reading in readings:
        observed(bench, "a", reading)
    assert view(bench, f"{SONNET} calls/provider").per_ms == per_ms


def test_v6_the_smaller_of_a_configured_and_a_reported_rate_decides_and_both_are_shown() -> None:
    bench = bench_with(minute("anthropic/claude-sonnet-*", "input", 500), minute("umans", "input", 500))
    call(bench, "a", used(100))
    observed(bench, "a", Reading("input", 2_000, 1_900, per_ms=2 * MINUTE))
    assert view(bench, "anthropic/claude-sonnet-* input/1m").provider_amount == 1_000
    assert view(bench, "umans input/1m").provider_amount is None
    assert call(bench, "b", used(450)) == "waits"
    assert reason(bench, "b").budget == "anthropic/claude-sonnet-* input/1m"


def test_v6_output_is_reserved_as_the_provider_reserves_it() -> None:
    bench = Bench(me="me")
    call(bench, "a", size=Size(400, 800))
    observed(bench, "a", Reading("output", 2_000, 1_200, per_ms=MINUTE), Reading("input", 2_000, 1_900, per_ms=MINUTE))
    call(bench, "b", size=Size(400, 800))
    assert view(bench, f"{SONNET} output/provider").reserved == 800, "all that the request allows"
    assert view(bench, f"{SONNET} input/provider").reserved == 100
    (event,) = observed(bench, "b", Reading("output", 2_000, 1_990, per_ms=MINUTE))
    assert isinstance(event, ev.RatesObserved)
    assert event.readings[0].expected
    call(bench, "c", size=Size(400, 1_900))
    assert view(bench, f"{SONNET} output/provider").reserved == 800 + 1_024, "it reserves less than we thought"
    call(bench, "small", size=Size(400, 10))
    assert observed(bench, "small", Reading("output", 2_000, 1_990, per_ms=MINUTE)) != [], "more is left"
    call(bench, "another", size=Size(400, 10), model=OPUS)
    observed(bench, "another", Reading("output", 2_000, 1_990, per_ms=MINUTE))
    call(bench, "last", size=Size(400, 10), model=OPUS)
    assert observed(bench, "last", Reading("output", 2_000, 1_999, per_ms=MINUTE)) == [], "it allows too little to tell"


def test_v8_a_refusal_that_names_a_rate_empties_that_rate_and_pauses_nothing_else() -> None:
    bench = bench_with(requests={"anthropic": 5})
    call(bench, "a", used(100))
    observed(bench, "a", Reading("input", 6_000, 5_900, per_ms=MINUTE), Reading("calls", 60, 59, per_ms=MINUTE))
    call(bench, "b", used(100))
    events = bench.do(cmd.Release("b", "rate_limited", 10_000, refused_rate="input"))
    assert [type(event) for event in events] == [ev.RatesObserved, ev.Released]
    assert view(bench, f"{SONNET} input/provider").free == 100 - 1_000
    assert call(bench, "again", used(100)) == "waits"
    assert reason(bench, "again").until == bench.now + 10_000
    assert call(bench, "opus", used(1), OPUS) == "granted", "no pool is paused"
    bench.wait(10_000)
    assert bench.fate("again") == "granted"
    bench.do(cmd.Release("again", "rate_limited", refused_rate="input"))
    assert view(bench, f"{SONNET} input/provider").free == 0, "without a time: it refills"


def test_v8_a_refusal_with_the_numbers_of_its_rate_makes_that_rate_known() -> None:
    bench = bench_with(requests={"anthropic": 5})
    call(bench, "a", used(500))
    readings = (Reading("tokens", 6_000, 200, per_ms=MINUTE), Reading("calls", 60, 59, per_ms=MINUTE))
    bench.do(cmd.Release("a", "rate_limited", refused_rate="tokens", readings=readings))
    assert view(bench, f"{SONNET} tokens/provider").free == 200
    assert view(bench, f"{SONNET} calls/provider").free == 59
    bench.do(cmd.Acquire("plain", bench.spec(OPUS, kind="requests"), "me"))
    bench.do(cmd.Release("plain", "rate_limited", refused_rate="tokens", readings=readings[:1]))
    assert view(bench, f"{OPUS} tokens/provider").free == 0, "it was refused although this much was left"


def test_v8_a_refusal_by_a_rate_that_is_not_known_is_handled_like_any_other() -> None:
    bench = bench_with(requests={"anthropic": 5})
    call(bench, "a", used(500))
    events = bench.do(cmd.Release("a", "rate_limited", refused_rate="tokens"))
    assert any(isinstance(event, ev.Paused) for event in events)


def test_v6_readings_can_come_with_the_release() -> None:
    bench = Bench(me="me")
    call(bench, "a", used(100))
    bench.do(cmd.Release("a", usage=used(100), readings=(Reading("input", 1_000, 100, per_ms=MINUTE, age_ms=6_000),)))
    assert view(bench, f"{SONNET} input/provider").free == 200, "it has refilled since"


def test_only_so_many_models_have_rates_of_a_provider() -> None:
    bench = Bench(me="me")
    call(bench, "a")
    observed(bench, "a", Reading("calls", 10, 5))
    call(bench, "one-more", model=OPUS)
    for number in range(255):
        bench.state.budget_rules.provider[f"umans/m{number}"] = {}
    assert bench.engine.handle(cmd.ObserveRates("one-more", (Reading("calls", 10, 5),)), bench.now) == []
    assert bench.engine.handle(cmd.ObserveRates("a", (Reading("input", 10, 5),)), bench.now) != [], "a known model"


# Sums of the hour.


def test_u5_usage_is_summed_by_the_hour_and_closed_hours_leave_the_state() -> None:
    bench = Bench(me="me")
    for number in range(3):
        call(bench, f"a{number}")
        bench.do(cmd.Release(f"a{number}", usage=used(10, output=2, cost=5)))
    call(bench, "b")
    bench.do(cmd.Release("b", usage=used(10)))
    rows = bench.state.usage.rows()
    assert [row.usage for row in rows] == [used(10), Usage(3, 30, 0, 0, 6, 15, RESPONSE)], "known and unknown costs"
    hour = bench.state.usage.hour
    events = bench.wait(HOUR)
    assert [event for event in events if isinstance(event, ev.HourClosed)] == [ev.HourClosed(hour, tuple(rows))]
    assert bench.state.usage.rows() == []
    assert bench.wait(HOUR) == []


def test_a_snapshot_has_budgets_estimates_and_sums() -> None:
    bench = bench_with(
        day("project", "tokens", 1_000), minute("anthropic", "calls", 2), BudgetRule("host", "usd", 9, "5h", 5 * HOUR)
    )
    bench.do(cmd.RemoveBudget("host", "usd", "5h"))
    bench.do(cmd.AddBudget("project:default tokens/day", 7))
    call(bench, "a", size=Size(400, 30))
    call(bench, "b", used(10))
    call(bench, "c", used(10))
    bench.do(cmd.Release("b", usage=used(500)))
    observed(bench, "a", Reading("output", 2_000, 1_200, per_ms=MINUTE))
    exported = bench.state.export(bench.now)
    restored = State.restore(through_json(exported))
    assert restored.export(bench.now) == exported
    assert budget_views(restored, bench.now) == budget_views(bench.state, bench.now)
    bench.wait(48 * HOUR)
    later = bench.state.export(bench.now)
    assert State.restore(through_json(later)).export(bench.now) == later
