"""Plan windows in the engine: what is known of them, and whom they hold back (rules W1, W2)."""

from __future__ import annotations

import msgspec
import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import CLASSES, BudgetRule, PlanRule, Rule, Spec
from fleetgate.core.errors import BadName, BadRequest
from fleetgate.core.invariants import check_invariants, check_settled
from fleetgate.core.plans.burn import Burn
from fleetgate.core.plans.plans import MOST_ACCOUNTS, MOST_WINDOWS
from fleetgate.core.plans.reading import DAY_MS, FULL, HOUR_MS, PlanReading
from fleetgate.core.plans.runway import DRY, SAFE, TIGHT, runway
from fleetgate.core.plans.window import PlanWindow
from fleetgate.core.state.snapshot_format import Snapshot
from fleetgate.core.state.state import State
from fleetgate.core.usage import Usage
from fleetgate.core.views.plan_views import plan_views
from fleetgate.core.views.pool_and_lease_views import capacity, ticket_view
from fleetgate.core.views.wait_reasons import opens_at

T0 = 1_800_000_000_000
ME = "h1|b0|4026|100|5000"
SONNET, OPUS = "anthropic/claude-sonnet-4-6", "anthropic/claude-opus-4-6"
MINUTE_MS = 60_000
PLAN = PlanRule("anthropic", reserve=2_000, pace=True, drain_ms=30 * MINUTE_MS, band_ms=HOUR_MS)


class Bench:
    """An engine with a plan, and a window of five hours that began at T0."""

    def __init__(self, *plans: PlanRule) -> None:
        self.engine = Engine(me=ME)
        self.now = T0
        self.number = 0
        self.do(cmd.LoadFile("f", "1", 1, (Rule("agents", "host", cap=99),), plans=plans or (PLAN,)))

    @property
    def state(self) -> State:
        return self.engine.state

    @property
    def window(self) -> PlanWindow:
        found = self.state.plans.named("anthropic", "5h")
        assert found is not None
        return found

    def do(self, command: cmd.Command) -> list[ev.Event]:
        events = self.engine.handle(cmd.Tick(), self.now) if not isinstance(command, cmd.Tick) else []
        events += self.engine.handle(command, self.now)
        check_invariants(self.state)
        check_settled(self.state, self.now)
        return events

    def at(self, hours: float) -> Bench:
        """Go to that many hours after the beginning of the window; everything due on the way is done."""
        end = T0 + int(hours * HOUR_MS)
        while (due := self.engine.next_deadline()) is not None and due <= end:
            self.now = max(due, self.now)
            self.do(cmd.Tick())
        self.now = max(end, self.now)
        self.do(cmd.Tick())
        return self

    def seen(self, percent: float, **other: object) -> list[ev.Event]:
        """The provider says how much is used."""
        reading = PlanReading("5h", round(percent * 100), T0 + 5 * HOUR_MS - self.now, 5 * HOUR_MS)
        return self.do(cmd.ObservePlan("anthropic", (msgspec.structs.replace(reading, **other),)))

    def asks(self, work_class: str, model: str = SONNET, **other: object) -> str:
        self.number += 1
        ident = f"{work_class}{self.number}"
        spec = Spec((model,), host="h1", work_class=work_class)
        self.do(cmd.Acquire(ident, spec, ME, **other))  # type: ignore[arg-type]
        return ident

    def enters(self, work_class: str, model: str = SONNET) -> bool:
        """Whether a request like this enters at once; it leaves again."""
        ident = self.asks(work_class, model)
        entered = ident in self.state.leases
        self.do(cmd.Release(ident) if entered else cmd.Cancel(ident))
        return entered

    def open(self) -> tuple[bool, bool, bool]:
        interactive, normal, batch = (self.enters(each) for each in CLASSES)
        return interactive, normal, batch


def test_w1_a_window_is_known_once_it_was_seen_and_is_empty_after_its_reset():
    bench = Bench().at(1)
    bench.seen(63)
    assert bench.window.used(bench.now) == 6_300
    assert bench.window.used(T0 + 5 * HOUR_MS) == 0
    bench.at(5.5)
    assert bench.open() == (True, True, True)


def test_w1_a_reading_is_recorded_only_if_it_changes_a_decision_or_the_percentage():
    bench = Bench().at(2)
    assert len(bench.seen(10)) == 1
    assert not bench.seen(10)
    assert not bench.seen(10.4)
    assert [type(event) for event in bench.seen(11.2)] == [ev.PlanObserved]
    bench.seen(39.5)
    assert not bench.seen(39.9)
    assert bench.seen(40)  # batch work stops
    bench.seen(79.5)
    assert not bench.seen(79.9)
    assert bench.seen(80)  # normal work stops
    bench.seen(97.5)
    assert not bench.seen(97.9)
    assert bench.seen(98)  # calls of runs stop
    bench.seen(99.9)
    assert bench.seen(100)  # it is used up


def test_w1_the_newest_reading_wins():
    bench = Bench().at(2)
    bench.seen(50)
    assert not bench.seen(30, age_ms=1)
    assert bench.seen(30)
    assert bench.window.used_then == 3_000


def test_w1_a_reading_of_unknown_age_only_raises():
    bench = Bench().at(2)
    assert bench.seen(50, is_floor=True)
    assert not bench.seen(30, is_floor=True)
    assert bench.seen(60, is_floor=True)
    earlier = PlanReading("5h", 9_900, HOUR_MS, 5 * HOUR_MS, is_floor=True)
    assert not bench.do(cmd.ObservePlan("anthropic", (earlier,)))  # of the window before


def test_w1_a_reading_without_a_reset_is_of_the_window_that_is_known():
    bench = Bench().at(1)
    assert not bench.seen(50, resets_in_ms=0)
    bench.seen(20)
    assert bench.seen(50, resets_in_ms=0)
    assert bench.window.resets_at == T0 + 5 * HOUR_MS


def test_w1_a_reset_that_differs_by_a_little_is_the_same_and_the_first_is_kept():
    bench = Bench().at(1)
    bench.seen(20)
    bench.seen(25, resets_in_ms=4 * HOUR_MS + MINUTE_MS)
    assert bench.window.resets_at == T0 + 5 * HOUR_MS


def test_w1_a_window_of_which_nothing_is_used_is_recorded_once():
    bench = Bench().at(0)
    assert bench.seen(0)
    bench.at(1)
    assert not bench.seen(0, resets_in_ms=5 * HOUR_MS)


def test_w1_what_cannot_be_a_window_is_ignored():
    bench = Bench()
    good = PlanReading("5h", 5_000, HOUR_MS, 5 * HOUR_MS)
    for wrong in (
        {"window": ""},
        {"window": "x" * 40},
        {"window": "5 h"},
        {"window": "fünf"},
        {"used": -1},
        {"used": 10**9},
        {"length_ms": 0},
        {"length_ms": 10**15},
        {"resets_in_ms": -5},
        {"resets_in_ms": 10**12},
        {"age_ms": -1},
        {"age_ms": 2 * HOUR_MS},  # its reset has passed
        {"family": "x" * 200},
    ):
        assert not bench.do(cmd.ObservePlan("anthropic", (msgspec.structs.replace(good, **wrong),)))
    with pytest.raises(BadName):
        bench.do(cmd.ObservePlan("not an account", (good,)))
    with pytest.raises(BadRequest, match="valid is a provider"):
        bench.do(cmd.ObservePlan("anthropic@default", (good,)))


def test_w1_no_more_than_so_many_accounts_and_windows_are_kept():
    bench = Bench()
    for number in range(MOST_ACCOUNTS + 3):
        bench.do(cmd.ObservePlan(f"p{number}", (PlanReading("5h", 1, HOUR_MS, 5 * HOUR_MS),)))
    for number in range(1, MOST_WINDOWS + 3):
        bench.do(cmd.ObservePlan("p1", (PlanReading(f"{number}d", 1, HOUR_MS, DAY_MS),)))
    assert len(bench.state.plans.by_account) == MOST_ACCOUNTS
    assert len(bench.state.plans.by_account["p1"]) == MOST_WINDOWS


def test_w2_without_a_plan_a_window_holds_nothing_back():
    bench = Bench(PlanRule("openai")).at(1)
    bench.seen(99)
    assert bench.open() == (True, True, True)


def test_w2_interactive_work_may_use_all_and_normal_work_all_but_the_reserve():
    bench = Bench().at(4)
    bench.seen(79)
    assert bench.open() == (True, True, False)
    bench.seen(80)
    assert bench.open() == (True, False, False)
    bench.seen(100)
    assert bench.open() == (True, False, False)


def test_w2_batch_work_starts_behind_the_pace_and_stops_when_it_has_caught_up():
    bench = Bench().at(0.5)
    bench.seen(0)
    assert bench.open() == (True, True, False)
    assert bench.at(1.1).open() == (True, True, True)
    bench.seen(20)
    assert bench.open() == (True, True, True)  # 22 % of the time has passed
    bench.seen(22.5)
    assert bench.open() == (True, True, False)
    assert bench.at(1.9).open() == (True, True, False)  # behind, and not by the band
    assert bench.at(2.2).open() == (True, True, True)


def test_w2_before_the_reset_the_rest_is_free_for_all_unless_nothing_is_left():
    bench = Bench().at(4.4)
    bench.seen(95)
    assert bench.open() == (True, False, False)
    assert bench.at(4.51).open() == (True, True, True)
    bench.seen(100)
    assert bench.open() == (True, False, False)
    assert bench.at(5.01).open() == (True, True, True)


def test_w2_without_pace_batch_work_is_held_back_by_the_reserve_only():
    bench = Bench(PlanRule("anthropic", reserve=1_000, pace=False)).at(1)
    bench.seen(89)
    assert bench.open() == (True, True, True)
    bench.seen(90)
    assert bench.open() == (True, False, False)


def test_w2_the_rule_of_an_account_goes_before_that_of_its_provider():
    bench = Bench(PLAN, PlanRule("anthropic@work", reserve=0, pace=False)).at(1)
    bench.do(cmd.ObservePlan("anthropic@work", (PlanReading("5h", 9_000, HOUR_MS, 5 * HOUR_MS),)))
    bench.do(cmd.ObservePlan("anthropic@spare", (PlanReading("5h", 9_000, HOUR_MS, 5 * HOUR_MS),)))
    assert bench.enters("batch", "anthropic@work/claude-sonnet-4-6")
    assert not bench.enters("normal", "anthropic@spare/claude-sonnet-4-6")


def test_w2_a_window_of_a_family_holds_back_that_family():
    bench = Bench().at(1)
    bench.do(cmd.ObservePlan("anthropic", (PlanReading("7d_opus", 9_900, DAY_MS, 7 * DAY_MS, "claude-opus-*"),)))
    assert not bench.enters("normal", OPUS)
    assert bench.enters("normal", SONNET)
    assert bench.enters("normal", "openai/gpt-5")


def test_w2_what_waits_enters_at_the_moment_that_was_promised():
    bench = Bench().at(1.1)
    bench.seen(50)
    batch, normal = bench.asks("batch"), bench.asks("normal")
    assert (batch in bench.state.leases, normal in bench.state.leases) == (False, True)
    view = ticket_view(bench.state, batch, bench.now)
    assert view is not None
    reason = view.reason
    assert (reason.code, reason.window, reason.used, reason.resets_at) == (
        "plan_window",
        "anthropic 5h",
        5_000,
        T0 + 5 * HOUR_MS,
    )
    assert reason.until == T0 + 3 * HOUR_MS + HOUR_MS // 2 + 1
    assert (view.pool, view.position, view.of) == ("anthropic 5h", 1, 1)
    assert view.estimate_ms == (reason.until - bench.now, reason.until - bench.now)
    queue = bench.state.queue(Spec((SONNET,), host="h1", work_class="batch"))
    assert opens_at(bench.state, queue, bench.now) == reason.until
    assert opens_at(bench.state, queue, bench.now, run=True) == bench.now
    bench.at((reason.until - 1 - T0) / HOUR_MS)
    assert batch in bench.state.tickets
    bench.at((reason.until - T0) / HOUR_MS)
    assert batch in bench.state.leases


def test_w2_the_reason_says_what_the_window_is_kept_for():
    bench = Bench().at(2)
    texts = []
    for percent in (50, 85, 100):
        bench.seen(percent)
        view = ticket_view(bench.state, bench.asks("batch"), bench.now)
        assert view is not None
        texts.append(view.reason.text)
    assert "50 % used after 40 % of its time" in texts[0]
    assert "kept for interactive work" in texts[1]
    assert "used up" in texts[2]


def test_w2_several_windows_hold_back_until_the_last_of_them_opens():
    bench = Bench().at(1.1)
    bench.seen(50)
    week = PlanReading("7d", 9_000, 3 * DAY_MS, 7 * DAY_MS)
    bench.do(cmd.ObservePlan("anthropic", (week,)))
    view = ticket_view(bench.state, bench.asks("batch"), bench.now)
    assert view is not None
    assert view.reason.window == "anthropic 7d"
    assert view.reason.until == bench.now + 3 * DAY_MS - 7 * DAY_MS // 10 + HOUR_MS + 1, "its pace, and the band"


def test_w2_calls_of_a_run_go_on():
    bench = Bench().at(2)
    bench.seen(90)
    assert not bench.enters("batch")
    spec = Spec((SONNET,), "requests", host="h1", work_class="batch")
    bench.do(cmd.Acquire("call", spec, ME, run="run1"))
    assert "call" in bench.state.leases
    bench.seen(98.5)  # the last part is for interactive work
    bench.do(cmd.Acquire("late", spec, ME, run="run1"))
    assert "late" in bench.state.tickets
    view = ticket_view(bench.state, "late", bench.now)
    assert view is not None
    assert (view.reason.code, view.reason.until) == ("plan_window", T0 + 5 * HOUR_MS)
    assert opens_at(bench.state, bench.state.queue(spec), bench.now, run=True) == T0 + 5 * HOUR_MS


def test_w2_a_call_of_a_run_waits_behind_no_equal_request_that_a_window_holds_back():
    bench = Bench().at(2)
    bench.do(cmd.SetRule(Rule("requests", "anthropic", cap=1, cooldown_ms=0, on_429="pause")))
    bench.seen(90)
    spec = Spec((SONNET,), "requests", host="h1", work_class="batch")
    bench.do(cmd.Acquire("outside", spec, ME))
    bench.do(cmd.Acquire("one", spec, ME, run="run1"))
    bench.do(cmd.Acquire("two", spec, ME, run="run1"))
    bench.do(cmd.Acquire("three", spec, ME, run="run2"))
    assert list(bench.state.leases) == ["one"]
    for ident in ("two", "three"):
        view = ticket_view(bench.state, ident, bench.now)
        assert view is not None
        assert view.reason.code == "concurrency_cap", "it waits for a slot, not for the window"
    assert plan_views(bench.state, bench.now)[0].waiting == 1
    bench.do(cmd.Release("one"))
    assert list(bench.state.leases) == ["two"], "the oldest call goes first, of whatever run"
    restored = State.restore(msgspec.json.decode(msgspec.json.encode(bench.state.export()), type=Snapshot))
    assert restored.export() == bench.state.export()
    bench.do(cmd.Release("two"))
    assert list(bench.state.leases) == ["three"]
    assert list(bench.state.tickets) == ["outside"]


def test_w2_a_call_that_waits_already_goes_on_past_a_window_that_is_seen_for_the_first_time():
    bench = Bench().at(2)
    bench.do(cmd.SetRule(Rule("requests", "anthropic", cap=1, cooldown_ms=0, on_429="pause")))
    spec = Spec((SONNET,), "requests", host="h1", work_class="batch")
    bench.do(cmd.Acquire("running", spec, ME))
    bench.do(cmd.Acquire("outside", spec, ME))
    bench.do(cmd.Acquire("call", spec, ME, run="run1"))
    bench.seen(90)
    bench.do(cmd.Release("running"))
    assert list(bench.state.leases) == ["call"]


def test_w2_without_plans_and_budgets_calls_of_runs_share_a_queue_with_others():
    bench = Bench()
    bench.do(cmd.LoadFile("f", "2", 2, ()))
    spec = Spec((SONNET,), "requests", host="h1")
    bench.do(cmd.Acquire("call", spec, ME, run="run1"))
    bench.do(cmd.SetBudget(BudgetRule("anthropic", "calls", 9, "1m", MINUTE_MS)))
    bench.do(cmd.Acquire("another", spec, ME, run="run1"))
    assert [lease.ticket.spec for lease in bench.state.leases.values()] == [spec, spec]
    assert list(bench.state.queues) == [spec]


def test_w2_the_last_part_of_a_window_is_for_interactive_work_to_the_very_end():
    bench = Bench().at(4.6)
    bench.seen(97)
    assert bench.open() == (True, True, True)
    bench.seen(98)
    assert bench.open() == (True, False, False)
    free = Bench(PlanRule("anthropic", reserve=0)).at(4.6)
    free.seen(99)
    assert free.open() == (True, True, True)


def test_w2_with_any_candidate_a_request_uses_another_account():
    bench = Bench().at(2)
    bench.seen(90)
    spec = Spec((SONNET, "openai/gpt-5"), host="h1", work_class="batch", any_candidate=True)
    bench.do(cmd.Acquire("one", spec, ME))
    assert bench.state.leases["one"].model == "openai/gpt-5"


def test_w2_the_oldest_of_what_may_start_enters_first_whatever_its_class():
    bench = Bench().at(2)
    bench.do(cmd.SetRule(Rule("agents", "anthropic", cap=1)))
    bench.seen(90)
    waiting = [bench.asks(each) for each in ("batch", "normal", "batch")]
    bench.at(4.6)
    for ident in waiting:
        assert ident in bench.state.leases
        bench.do(cmd.Release(ident))


def test_w2_projects_are_looked_at_in_turn_when_a_window_opens():
    bench = Bench().at(2)
    bench.do(cmd.SetRule(Rule("agents", "anthropic", cap=1)))
    bench.do(cmd.SetRule(Rule("agents", "host", cap=2)))
    bench.seen(90)
    for number, project in enumerate(("web", "api", "web", "api")):
        spec = Spec((SONNET,), host="h1", work_class=("batch", "normal")[number // 2], project=project)
        bench.do(cmd.Acquire(f"{project}{number}", spec, ME))
    bench.at(4.6)
    assert len(bench.state.leases) == 1
    for _ in range(3):
        (ident,) = bench.state.leases
        bench.do(cmd.Release(ident))
    assert len(bench.state.leases) == 1


def test_w2_a_new_rule_applies_at_once():
    bench = Bench().at(2)
    bench.seen(85)
    waiting = bench.asks("normal")
    relaxed = PlanRule("anthropic", reserve=0, pace=False)
    bench.do(cmd.LoadFile("f", "2", 2, (Rule("agents", "host", cap=99),), plans=(relaxed,)))
    assert waiting in bench.state.leases
    bench.do(cmd.LoadFile("f", "3", 3, (Rule("agents", "host", cap=99),), plans=(PLAN,)))
    assert not bench.enters("normal")
    bench.do(cmd.LoadFile("f", "4", 4, (Rule("agents", "host", cap=99),)))
    assert bench.open() == (True, True, True)


@pytest.mark.parametrize(
    "wrong", [PlanRule("not one"), PlanRule("a", reserve=10_001), PlanRule("a", drain_ms=-1), PlanRule("a", band_ms=-1)]
)
def test_w2_a_rule_that_cannot_be_is_refused(wrong: PlanRule):
    bench = Bench()
    with pytest.raises((BadRequest, BadName)):
        bench.do(cmd.LoadFile("f", "9", 9, (), plans=(wrong,)))


def test_w2_a_reservation_ends_when_its_request_waits_for_a_window():
    """Or slots that no request may use would be kept for hours."""
    bench = Bench().at(2)
    bench.do(cmd.SetRule(Rule("agents", "anthropic", cap=2)))
    bench.seen(10)
    first, second = bench.asks("normal"), bench.asks("normal")
    bench.do(cmd.Acquire("big", Spec((SONNET,), slots=2, host="h1", work_class="batch"), ME))
    bench.number += 10
    for _ in range(3):  # small ones overtake it
        bench.now += 31_000
        bench.do(cmd.Release(first))
        first, second = second, bench.asks("normal")
        if bench.state.reserved:
            break
    assert bench.state.reserved, "nothing was kept for it"
    bench.seen(70)  # batch work has to wait
    for ident in list(bench.state.leases):
        bench.do(cmd.Release(ident))
    assert not bench.state.reserved
    assert bench.enters("normal")
    assert "big" in bench.state.tickets


def test_w2_a_reservation_ends_when_its_request_waits_for_the_end_of_a_budget():
    bench = Bench().at(2)
    bench.do(cmd.SetRule(Rule("agents", "anthropic", cap=2)))
    bench.do(cmd.SetBudget(BudgetRule("project:web", "calls", 5, "day")))
    first, second = bench.asks("normal"), bench.asks("normal")
    web = Spec((SONNET,), slots=2, host="h1", project="web")
    bench.do(cmd.Acquire("big", web, ME, estimate=Usage(calls=5)))
    for _ in range(3):
        bench.now += 31_000
        bench.do(cmd.Release(first))
        first, second = second, bench.asks("normal")
        if bench.state.reserved:
            break
    assert bench.state.reserved
    spec = Spec(("openai/gpt-5",), host="h1", project="web")
    bench.do(cmd.Acquire("other", spec, ME, estimate=Usage(calls=1)))
    for ident in list(bench.state.leases):
        if ident != "other":
            bench.do(cmd.Release(ident))
    assert "big" in bench.state.tickets
    assert not bench.state.reserved


def test_w2_a_reservation_stays_when_the_request_before_it_in_a_budget_fits_from_now_on():
    bench = Bench().at(2)
    bench.do(cmd.SetRule(Rule("agents", "anthropic", cap=2, cooldown_ms=0)))
    bench.do(cmd.SetBudget(BudgetRule("project:web", "calls", 10, "day")))
    web = Spec((SONNET,), host="h1", project="web")
    bench.do(cmd.Acquire("running", web, ME, estimate=Usage(8)))
    bench.do(cmd.Acquire("older", web, ME, estimate=Usage(3)))  # waits for the budget
    small = bench.asks("normal")
    bench.do(cmd.Acquire("big", msgspec.structs.replace(web, slots=2), ME, estimate=Usage(2)))
    while not bench.state.reserved:  # small ones overtake it
        bench.now += 31_000
        bench.do(cmd.Release(small))
        small = bench.asks("normal")
    assert list(bench.state.reserved) == ["big"]
    bench.do(cmd.Release(small))
    assert list(bench.state.leases) == ["running"]
    bench.do(cmd.Release("running", usage=Usage(1, source="response")))
    assert list(bench.state.leases) == ["big"], "its slots are free, and the budget has enough"
    bench.do(cmd.Release("big"))
    assert "older" in bench.state.leases


def test_a11_a_window_that_holds_back_makes_the_capacity_red():
    bench = Bench().at(2)
    bench.seen(90)
    found = capacity(bench.state, Spec((SONNET,), host="h1"), bench.now)
    assert found.level == "red"
    assert found.reason is not None
    assert found.reason.code == "plan_window"
    bench.asks("batch")
    people = capacity(bench.state, Spec((SONNET,), host="h1", work_class="interactive"), bench.now)
    assert people.queued == 0  # batch work that is held back is not ahead of them


def test_w3_the_runway_follows_the_burn_of_the_last_hour():
    bench = Bench().at(1)
    bench.seen(10)
    assert runway(bench.window, bench.now).level == SAFE
    bench.at(1.5)
    bench.seen(35)
    found = runway(bench.window, bench.now)
    assert (found.level, found.burn) == (DRY, 5_000)
    assert found.dry_at == bench.now + int(1.3 * HOUR_MS)
    bench.at(2.5)
    bench.seen(48)
    assert runway(bench.window, bench.now).level == SAFE
    bench.at(3.5)
    bench.seen(66)
    assert runway(bench.window, bench.now).level == TIGHT
    bench.at(5.1)
    assert runway(bench.window, bench.now).level == SAFE


def test_w3_of_a_window_that_was_seen_late_the_mean_counts_until_more_is_known():
    bench = Bench().at(2.5)
    bench.seen(40)
    found = runway(bench.window, bench.now)
    assert (found.level, found.burn) == (SAFE, 1_600)
    bench.at(2.8)
    bench.seen(46)
    assert runway(bench.window, bench.now).burn == 2_000  # since it was first seen
    bench.at(3.6)
    assert runway(bench.window, bench.now).burn == 600  # in the last hour
    bench.seen(99)
    assert runway(bench.window, bench.now).level == DRY
    bench.seen(100)
    found = runway(bench.window, bench.now)
    assert (found.level, found.burn, found.dry_at) == (DRY, None, bench.now)


def test_w3_in_its_first_minutes_a_window_has_no_burn():
    bench = Bench().at(0.05)
    bench.seen(20)
    assert runway(bench.window, bench.now).burn is None
    assert runway(bench.window, bench.now).level == SAFE
    bench.seen(95)
    assert runway(bench.window, bench.now).level == TIGHT


def test_w3_a_warning_and_its_end_are_events_once():
    bench = Bench().at(1)
    events = bench.seen(50)
    assert [type(event) for event in events] == [ev.PlanObserved, ev.PlanRunway]
    assert isinstance(events[1], ev.PlanRunway)
    assert (events[1].level, events[1].dry_at) == (DRY, bench.now + HOUR_MS)
    assert not [event for event in bench.seen(52) if isinstance(event, ev.PlanRunway)]
    bench.at(3.2)
    (over,) = [event for event in bench.seen(54) if isinstance(event, ev.PlanRunway)]
    assert over.level == SAFE


def test_a_snapshot_has_all_of_it():
    bench = Bench().at(1)
    bench.seen(50)
    bench.asks("batch")
    text = msgspec.json.encode(bench.state.export(bench.now))
    state = State.restore(msgspec.json.decode(text, type=Snapshot))
    assert msgspec.json.encode(state.export(bench.now)) == text
    other = Engine(state, me=ME)
    assert other.handle(cmd.Tick(), bench.now) == []
    assert other.next_deadline() == bench.engine.next_deadline()
    assert repr(bench.window) == "<PlanWindow anthropic 5h: 50 % until 1800018000000>"
    assert FULL == 10_000


def test_w3_views_have_every_window_with_its_runway_and_what_it_holds_back():
    bench = Bench().at(2)
    bench.seen(90)
    bench.do(cmd.ObservePlan("openai", (PlanReading("7d", 100, DAY_MS, 7 * DAY_MS),)))
    bench.asks("batch")
    bench.asks("normal")
    bench.asks("interactive")
    claude, codex = plan_views(bench.state, bench.now)
    assert (claude.account, claude.window, claude.used, claude.level, claude.waiting) == (
        "anthropic",
        "5h",
        9_000,
        DRY,
        2,
    )
    needed_at = T0 + 5 * HOUR_MS - 5 * HOUR_MS // 8  # from then on, a quarter of what is left is enough for people
    assert claude.normal_opens_at == claude.batch_opens_at == needed_at
    assert (codex.account, codex.reserve, codex.batch_opens_at, codex.waiting) == ("openai", None, None, 0)
    bench.at(5.5)
    assert plan_views(bench.state, bench.now)[0].resets_at is None
    bench.at(11)
    assert [view.account for view in plan_views(bench.state, bench.now)] == ["openai"]


def test_a11_a_window_that_runs_dry_makes_the_capacity_red_although_nothing_is_held_back():
    bench = Bench(PlanRule("openai")).at(1)
    bench.seen(50)
    spec = Spec((SONNET,), host="h1")
    found = capacity(bench.state, spec, bench.now)
    assert found.reason is not None
    assert (found.level, found.reason.text) == ("red", "anthropic 5h is 50 % used, and runs dry before its reset")
    bench.seen(100)
    found = capacity(bench.state, spec, bench.now)
    assert found.reason is not None
    assert found.reason.text == "anthropic 5h is used up"
    assert capacity(bench.state, Spec((), host="h1"), bench.now).level == "green"
    people = msgspec.structs.replace(spec, work_class="interactive")
    assert capacity(bench.state, people, bench.now).level == "green"


def test_w1_a_window_with_another_reset_is_another_window():
    bench = Bench().at(1)
    bench.seen(50)
    assert bench.seen(10, resets_in_ms=5 * HOUR_MS)
    assert (bench.window.used_then, bench.window.resets_at) == (1_000, bench.now + 5 * HOUR_MS)


def test_w2_a_file_that_says_the_same_of_plans_changes_nothing():
    bench = Bench().at(2)
    bench.seen(50)
    before = bench.window.pace_opens_at
    bench.do(cmd.LoadFile("f", "2", 2, (Rule("agents", "host", cap=98),), plans=(PLAN,)))
    assert bench.window.pace_opens_at == before


def test_w2_a_window_and_a_pause_that_end_at_the_same_moment_let_in_the_oldest_of_a_project():
    bench = Bench().at(2)
    bench.do(cmd.SetRule(Rule("agents", "host", cap=1)))
    bench.do(cmd.SetRule(Rule("agents", "openai", cap=5)))
    bench.seen(90)
    bench.do(cmd.Pause("agents", "openai", bench.window.pace_opens_at - bench.now))
    for number, (project, work_class, model) in enumerate(
        [
            ("a", "batch", SONNET),
            ("a", "normal", OPUS),
            ("b", "batch", SONNET),
            ("b", "batch", "openai/gpt-5"),
            ("a", "batch", "openai/gpt-5"),
        ]
    ):
        spec = Spec((model,), host="h1", project=project, work_class=work_class)
        bench.do(cmd.Acquire(f"{project}{number}", spec, ME))
    views = plan_views(bench.state, bench.now)
    assert views[0].waiting == 3
    bench.at(4.6)
    entered = []
    while bench.state.leases:
        (ident,) = bench.state.leases
        entered.append(ident)
        bench.do(cmd.Release(ident))
    assert [ident for ident in entered if ident[0] == "a"] == ["a0", "a1", "a4"]
    assert [ident for ident in entered if ident[0] == "b"] == ["b2", "b3"]


def test_a11_of_several_windows_the_one_that_runs_dry_counts():
    bench = Bench(PlanRule("openai")).at(1)
    bench.seen(1)
    bench.do(cmd.ObservePlan("anthropic", (PlanReading("7d", 10_000, DAY_MS, 7 * DAY_MS),)))
    found = capacity(bench.state, Spec((SONNET,), host="h1"), bench.now)
    assert found.reason is not None
    assert found.reason.window == "anthropic 7d"
    assert plan_views(bench.state, bench.now)[0].waiting == 0


def test_w3_a_request_that_waits_for_a_pool_is_not_held_back_by_a_window():
    bench = Bench().at(2)
    bench.do(cmd.SetRule(Rule("agents", "host", cap=1)))
    bench.seen(10)
    bench.asks("normal")
    bench.asks("normal")
    assert plan_views(bench.state, bench.now)[0].waiting == 0


def test_w2_with_one_project_a_window_and_a_pause_may_end_at_the_same_moment():
    bench = Bench().at(2)
    bench.do(cmd.SetRule(Rule("agents", "openai", cap=5)))
    bench.seen(90)
    bench.do(cmd.Pause("agents", "openai", bench.window.pace_opens_at - bench.now))
    waiting = [bench.asks("batch"), bench.asks("batch", "openai/gpt-5")]
    bench.at(4.6)
    assert all(ident in bench.state.leases for ident in waiting)


# What is learned from the readings.


def learned(bench: Bench) -> Bench:
    """A first window: batch work is on after 1 h 06 min and uses 40 % in half an hour; then people use 6 %."""
    bench.at(0.1).seen(1)
    for hours, percent in ((1.15, 1), (1.4, 21), (1.65, 41), (1.8, 43), (2.0, 44), (2.5, 47), (3.0, 50)):
        bench.at(hours).seen(percent)
    return bench


def test_w2_how_fast_batch_work_is_and_what_comes_after_it_follows_from_the_readings():
    bench = learned(Bench())
    burn, length_ms = bench.window.burn, 5 * HOUR_MS
    assert burn.on_rate(length_ms) > 3 * FULL
    assert 2_500 < burn.off_rate(length_ms) < 3_500, "6 % in an hour are 30 % in five"
    assert burn.after_now == 200
    restored = State.restore(msgspec.json.decode(msgspec.json.encode(bench.state.export()), type=Snapshot))
    assert restored.export() == bench.state.export()


def test_w2_what_comes_after_batch_work_was_switched_off_counts_before_it_is_switched_off_again():
    bench = learned(Bench())
    assert bench.at(3.55).open()[2], "more than the band behind"
    bench.at(3.7).seen(75)
    assert not bench.open()[2]
    assert bench.window.burn.after == 200
    bench.at(3.75).seen(79)  # four more, of calls that were under way
    bench.window.burn.switched_off(7_900, bench.now)
    assert 200 < bench.window.burn.after < 400, "the mean of what was seen"


def test_w2_batch_work_that_was_switched_off_stays_off_until_its_last_calls_are_counted():
    """Otherwise each reading would switch it on and off where people need about what is left."""
    bench = learned(Bench()).at(4.7)
    assert bench.open()[2]
    bench.seen(95)
    assert not bench.open()[2], "people need 5.2 % until the reset"
    bench.at(4.84).seen(95.15)
    assert not bench.open()[2], "people need a little less than what is left, but it has been off for 8 minutes only"
    bench.at(4.86).seen(95.3)
    assert bench.open()[2], "9 minutes are half of the time that remained"


def test_w2_a_fast_fleet_waits_after_a_reset_until_the_window_is_known_and_a_slow_one_does_not():
    bench = learned(Bench()).at(5.1)
    batch = bench.asks("batch")
    view = ticket_view(bench.state, batch, bench.now)
    assert view is not None
    assert (view.reason.code, view.reason.until) == ("plan_window", T0 + 6 * HOUR_MS)
    assert "was reset" in view.reason.text
    assert bench.open()[:2] == (True, True)
    assert batch in bench.at(6.01).state.leases
    slow = Bench().at(0.1)
    slow.seen(1)
    for hours in (1.2, 2.0, 3.0, 4.0):
        slow.at(hours).seen(5 * hours)
    assert 0 < slow.window.burn.on_rate(5 * HOUR_MS) < FULL
    assert slow.at(5.1).open()[2]


def test_w2_calls_of_a_run_go_on_after_the_reset_while_new_requests_of_a_fast_fleet_wait():
    bench = learned(Bench()).at(4.5)
    bench.seen(99)  # the last part is for interactive work
    spec = Spec((SONNET,), "requests", host="h1", work_class="batch")
    bench.do(cmd.Acquire("outside", spec, ME))
    bench.do(cmd.Acquire("call", spec, ME, run="run1"))
    assert list(bench.state.tickets) == ["outside", "call"]
    restored = State.restore(msgspec.json.decode(msgspec.json.encode(bench.state.export()), type=Snapshot))
    engine = Engine(restored, me=ME)
    engine.handle(cmd.Tick(), bench.now)
    assert engine.next_deadline() == bench.engine.next_deadline()
    assert list(bench.at(4.99).state.tickets) == ["outside", "call"]
    assert list(bench.at(5).state.leases) == ["call"]
    engine.handle(cmd.Tick(), bench.now)
    assert restored.export(bench.now) == bench.state.export(bench.now)
    bench.do(cmd.Acquire("another", spec, ME, run="run1"))
    assert "another" in bench.state.leases
    assert list(bench.at(5.99).state.tickets) == ["outside"]
    assert not bench.at(6).state.tickets


def test_w2_in_a_queue_that_is_older_than_the_plan_a_call_of_a_run_goes_on_and_the_request_behind_it_waits():
    bench = learned(Bench()).at(4.5)
    bench.do(cmd.LoadFile("f", "2", 2, (Rule("requests", "anthropic", cap=1, cooldown_ms=0),)))
    bench.seen(99)
    spec = Spec((SONNET,), "requests", host="h1", work_class="batch")
    for ident, run in (("first", ""), ("gone", ""), ("call", "run1"), ("outside", "")):
        bench.do(cmd.Acquire(ident, spec, ME, run=run))
    assert list(bench.state.queues) == [spec]
    bench.do(cmd.LoadFile("f", "3", 3, (), plans=(PLAN,)))
    bench.do(cmd.Cancel("gone"))
    bench.do(cmd.Release("first"))
    assert list(bench.at(4.99).state.tickets) == ["call", "outside"]
    assert list(bench.at(5).state.leases) == ["call"]
    assert list(bench.at(5.99).state.tickets) == ["outside"]
    assert not bench.at(6).state.tickets


def test_w2_slow_agents_are_on_from_the_beginning_since_the_window_lasts_anyway():
    bench = Bench().at(0.1)
    bench.seen(1)
    for hours in (1.2, 2.0, 3.0, 4.0):
        bench.at(hours).seen(10 * hours)
    bench.at(5.1)
    reading = PlanReading("5h", 100, 5 * HOUR_MS - 360_000, 5 * HOUR_MS)
    bench.do(cmd.ObservePlan("anthropic", (reading,)))
    assert bench.open()[2]


def test_w2_batch_work_leaves_what_people_use_until_the_reset():
    bench = learned(Bench()).at(4.0)
    bench.seen(80)  # people need three times their 30 %, for a fifth of the window
    assert bench.window.pace_opens_at > bench.now
    bench.at(4.9).seen(81)
    assert bench.open()[2], "they need little now"
    bench.seen(97.2)
    assert bench.window.pace_opens_at == bench.window.resets_at, "what is left is not worth a start"
    careless = learned(Bench(PlanRule("anthropic", reserve=0, band_ms=HOUR_MS))).at(4.75)
    careless.seen(85)
    assert careless.open()[2]


def test_w2_rates_follow_the_fleet_and_are_not_kept_for_ever():
    burn, hour = Burn(), HOUR_MS
    burn.hear(3_000, 3_000, 0, 2 * hour, is_on=True, length_ms=5 * hour)
    assert (burn.on_ms, burn.on_used) == (hour, 1_500)
    burn.hear(3_000, 600, 3 * hour, 9 * hour, is_on=False, length_ms=5 * hour)
    assert (burn.off_ms, burn.off_used) == (3 * hour, 300)
    assert burn.off_rate(5 * hour) == 500
    assert Burn().on_rate(hour) == Burn().off_rate(hour) == 0
