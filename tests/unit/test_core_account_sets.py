"""Account sets in the engine: which account a request enters with, and where conversations stay (rules Z1 to Z5)."""

from __future__ import annotations

import msgspec
import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.accounts.homes import KEPT_MS, MOST_HOMES, Homes
from fleetgate.core.accounts.ramp import QUIET_MS, STEP_MS, Ramp
from fleetgate.core.accounts.switch_reasons import reason_of_switch
from fleetgate.core.engine import Engine
from fleetgate.core.entities import AccountSet, BudgetRule, PlanRule, Rule, Spec, Ticket
from fleetgate.core.errors import BadName, BadRequest, FleetgateError
from fleetgate.core.invariants import check_invariants, check_settled
from fleetgate.core.plans.reading import HOUR_MS, PlanReading
from fleetgate.core.state.snapshot_format import Snapshot
from fleetgate.core.state.state import State
from fleetgate.core.usage import Usage
from fleetgate.core.views.pool_and_lease_views import capacity, ticket_view

T0 = 1_800_000_000_000
ME = "h1|b0|4026|100|5000"
SONNET = "anthropic/claude-sonnet-4-6"
SET = AccountSet("anthropic", ("work", "spare"), ("api",), patience_ms=10_000)


def cap(account: str, slots: int) -> Rule:
    return Rule("requests", f"anthropic@{account}", cap=slots, cooldown_ms=0, on_429="pause")


CAPS = (cap("work", 2), cap("spare", 2), cap("api", 4))


class Gate:
    """An engine with a clock; every step is checked, and replayed into a second state."""

    def __init__(
        self, *sets: AccountSet, caps: tuple[Rule, ...] = CAPS, budgets: tuple[BudgetRule, ...] = (), plan: bool = False
    ) -> None:
        self.engine, self.twin, self.now, self.count, self.files = Engine(me=ME), State(), T0, 0, 0
        self.plans = (PlanRule("anthropic", reserve=0, pace=False),) if plan else ()
        self.caps, self.budgets = caps, budgets
        self.load(*(sets or (SET,)))

    def load(self, *sets: AccountSet) -> None:
        self.files += 1
        digest = str(self.files)
        self(
            cmd.LoadFile("f", digest, self.files, self.caps, budgets=self.budgets, plans=self.plans, account_sets=sets)
        )

    @property
    def state(self) -> State:
        return self.engine.state

    def __call__(self, command: cmd.Command) -> list[ev.Event]:
        events = self.engine.handle(cmd.Tick(), self.now)
        before = self.state.export(self.now)
        try:
            events = events + self.engine.handle(command, self.now)
        except FleetgateError:
            assert self.state.export(self.now) == before
            raise
        check_invariants(self.state)
        check_settled(self.state, self.now)
        for event in events:
            self.twin.apply(event, self.now)
        exported = self.state.export(self.now)
        assert self.twin.export(self.now) == exported
        again = msgspec.json.decode(msgspec.json.encode(exported), type=Snapshot)
        assert State.restore(again).export(self.now) == exported
        return events

    def pass_ms(self, ms: int) -> list[ev.Event]:
        """Let time pass; everything due on the way is done when it is due."""
        end, events = self.now + ms, []
        while (due := self.engine.next_deadline()) is not None and due <= end:
            self.now = max(due, self.now)
            events += self(cmd.Tick())
        self.now = end
        return events + self(cmd.Tick())

    def ask(self, talk: str = "", *models: str, kind: str = "requests", any_of: bool = False, **more: object) -> str:
        """A request, of a conversation if it names one. Its id."""
        self.count += 1
        ident = f"r{self.count}"
        spec = Spec(models or (SONNET,), kind, any_candidate=any_of)
        self(cmd.Acquire(ident, spec, ME, conversation=talk, **more))  # type: ignore[arg-type]
        return ident

    def account(self, ident: str) -> str:
        """The account that it runs with; nothing while it waits."""
        lease = self.state.leases.get(ident)
        return "" if lease is None else lease.model.partition("/")[0].removeprefix("anthropic@")

    def asks(self, talk: str = "", *models: str, **more: object) -> str:
        """A request, and the account that it runs with."""
        return self.account(self.ask(talk, *models, **more))  # type: ignore[arg-type]

    def talk(self, name: str) -> str:
        """A short request of a conversation: its account."""
        ident = self.ask(name)
        account = self.account(ident)
        self(cmd.Release(ident))
        return account

    def end(self, *idents: str, **more: object) -> None:
        for ident in idents:
            self(cmd.Release(ident, **more))  # type: ignore[arg-type]

    def waiting(self, ident: str) -> tuple[str, str]:
        """Code and text of the reason for which it waits."""
        view = ticket_view(self.state, ident, self.now)
        assert view is not None
        return view.reason.code, view.reason.text


def why(events: list[ev.Event]) -> list[str]:
    return [event.why for event in events if isinstance(event, ev.Granted)]


# --- the choice ----------------------------------------------------------------------------------------------------


def test_z1_a_request_without_an_account_may_use_any_of_the_set() -> None:
    gate = Gate()
    assert [gate.asks() for _ in range(9)] == ["work", "spare", "work", "spare", "api", "api", "api", "api", ""]


def test_z1_a_request_that_names_an_account_uses_that_one() -> None:
    gate = Gate()
    named = "anthropic@spare/claude-sonnet-4-6"
    assert [gate.asks("", named) for _ in range(3)] == ["spare", "spare", ""]
    assert gate.asks() == "work"


def test_z1_the_account_without_a_name_can_be_a_member() -> None:
    gate = Gate(AccountSet("anthropic", ("default", "work")), caps=(Rule("requests", "anthropic", cap=1),))
    models = [gate.state.leases[gate.ask()].model for _ in range(2)]
    assert models == [SONNET, "anthropic@work/claude-sonnet-4-6"]


def test_z1_a_request_may_be_limited_to_some_accounts_of_the_set() -> None:
    gate = Gate()
    for accounts, used in ((("api", "spare"), "spare"), (("default",), "anthropic"), (("other",), "other")):
        gate(cmd.Acquire(used, Spec((SONNET, "openai/gpt-5"), "requests", accounts=accounts), ME, conversation="a"))
        assert gate.account(used) == used
    with pytest.raises(BadName):
        gate(cmd.Acquire("x", Spec((SONNET,), "requests", accounts=("no space",)), ME))


def test_z1_other_providers_are_left_alone() -> None:
    gate = Gate()
    assert gate.state.leases[gate.ask("", "openai/gpt-5")].model == "openai/gpt-5"


def test_z2_the_account_with_the_largest_free_part_is_used() -> None:
    gate = Gate(AccountSet("anthropic", ("work", "api")))
    assert [gate.asks() for _ in range(6)] == ["work", "api", "api", "work", "api", "api"]


def test_z2_choose_first_fills_one_account_after_the_other() -> None:
    gate = Gate(AccountSet("anthropic", ("work", "spare"), choose="first"))
    assert [gate.asks() for _ in range(4)] == ["work", "work", "spare", "spare"]


def test_z2_what_a_plan_window_has_left_counts() -> None:
    gate = Gate()
    gate(cmd.ObservePlan("anthropic@work", (PlanReading("5h", 9_000, HOUR_MS, 5 * HOUR_MS),)))
    gate(cmd.ObservePlan("anthropic@spare", (PlanReading("5h", 2_000, HOUR_MS, 5 * HOUR_MS),)))
    assert [gate.asks() for _ in range(3)] == ["spare", "spare", "work"]


def test_z2_what_a_budget_has_left_counts() -> None:
    budget = BudgetRule("anthropic", "usd", 1_000_000, "day")
    gate = Gate(budgets=(budget,))
    ident = gate.ask()
    assert gate.account(ident) == "work"
    gate.end(ident, usage=Usage(calls=1, cost=600_000))
    assert [gate.asks() for _ in range(2)] == ["spare", "spare"]


def test_z2_a_paused_account_has_nothing_left() -> None:
    gate = Gate()
    gate(cmd.Pause("requests", "anthropic@work", 60_000))
    assert [gate.asks() for _ in range(3)] == ["spare", "spare", "api"]


def test_z2_without_caps_accounts_share_the_conversations() -> None:
    gate = Gate(AccountSet("anthropic", ("work", "spare")), caps=())
    assert [gate.talk(f"t{number}") for number in range(4)] == ["work", "spare", "work", "spare"]


def test_z4_the_last_accounts_are_used_only_when_none_of_the_others_has_room() -> None:
    gate = Gate(caps=(cap("work", 1), cap("spare", 1), cap("api", 8)))
    first, second = gate.ask(), gate.ask()
    spilled = gate.ask()
    assert [gate.account(each) for each in (first, second, spilled)] == ["work", "spare", "api"]
    gate.end(first)
    assert gate.asks() == "work"


def test_z4_the_history_says_why_a_request_was_spilled() -> None:
    gate = Gate(caps=(cap("work", 1), cap("spare", 1), cap("api", 8)))
    assert why(gate(cmd.Acquire("a", Spec((SONNET,), "requests"), ME))) == [""]
    gate.ask()
    assert why(gate(cmd.Acquire("b", Spec((SONNET,), "requests"), ME))) == ["spilled to api: work and spare are full"]
    gate(cmd.BackOff("anthropic@spare", "quota"))
    assert why(gate(cmd.Acquire("c", Spec((SONNET,), "requests"), ME))) == [
        "spilled to api: work is full, spare is backed off (quota)"
    ]


def test_z4_accounts_without_a_credential_are_named_where_a_request_was_spilled_or_waits() -> None:
    gate = Gate(caps=(cap("work", 1), cap("spare", 1), cap("api", 1)))
    only = Spec((SONNET,), "requests", accounts=("api",))
    assert why(gate(cmd.Acquire("a", only, ME))) == [
        "spilled to api: work and spare are without a credential for this request"
    ]
    gate(cmd.Acquire("b", only, ME))
    missing = "work and spare are without a credential for this request"
    assert gate.waiting("b")[1] == f"1 of 1 slots of anthropic@api are taken; {missing}"
    gate(cmd.BackOff("anthropic@api", "quota"))
    view = ticket_view(gate.state, "b", gate.now)
    assert view is not None
    assert view.accounts == ("api",)
    assert view.reason.text.startswith("anthropic@api/claude-sonnet-4-6 is backed off: quota")
    assert view.reason.text.endswith(missing)
    two = Spec((SONNET,), "requests", accounts=("spare", "api"))
    gate(cmd.Acquire("c", two, ME))
    gate(cmd.Acquire("d", two, ME))
    text = (
        "no account has room: spare is full, api is backed off (quota), work is without a credential for this request"
    )
    assert gate.waiting("d")[1] == text


def test_z4_a_conversation_whose_account_has_lost_its_login_moves_and_the_history_says_why() -> None:
    gate = Gate(caps=(cap("work", 1), cap("spare", 1), cap("api", 1)))
    gate(cmd.Acquire("a", Spec((SONNET,), "requests"), ME, conversation="talk"))
    gate.end("a")
    left = Spec((SONNET,), "requests", accounts=("spare", "api"))
    assert why(gate(cmd.Acquire("b", left, ME, conversation="talk"))) == [
        "moved from work to spare: work is without a credential for this request"
    ]


def test_a6_a_request_that_waits_for_a_pool_that_all_accounts_share_says_so() -> None:
    gate = Gate(caps=(*CAPS, Rule("requests", "project", cap=1, cooldown_ms=0, on_429="fixed")))
    assert gate.account(gate.ask("talk"))
    first, second, of_talk = gate.ask(), gate.ask(), gate.ask("talk")
    for ident in (first, second, of_talk):
        code, text = gate.waiting(ident)
        assert (code, text.partition(";")[0]) == ("concurrency_cap", "1 of 1 slots of project:default are taken")
    view = ticket_view(gate.state, first, gate.now)
    assert view is not None
    assert (view.reason.pool, view.reason.pools) == ("project:default", ["project:default"])


def test_z4_every_kind_of_closed_account_has_a_word() -> None:
    gate = Gate(
        AccountSet("anthropic", ("work", "spare", "third"), ("api",)),
        plan=True,
        budgets=(BudgetRule("anthropic@third", "usd", 1_000_000, "day"),),
    )
    gate(cmd.Pause("requests", "anthropic@work", 60_000))
    gate(cmd.ObservePlan("anthropic@spare", (PlanReading("5h", 10_000, HOUR_MS, 5 * HOUR_MS),)))
    ident = gate.ask()
    assert gate.account(ident) == "third"
    gate.end(ident, usage=Usage(calls=1, cost=1_000_000))
    assert why(gate(cmd.Acquire("b", Spec((SONNET,), "requests"), ME))) == [
        "spilled to api: work is paused, spare is held back by its 5h window, third is out of budget"
    ]


# --- conversations -------------------------------------------------------------------------------------------------


def test_z3_a_conversation_stays_with_its_account() -> None:
    gate = Gate()
    homes = {name: gate.talk(name) for name in ("a", "b", "c", "d")}
    assert sorted(homes.values()) == ["spare", "spare", "work", "work"]
    for _ in range(3):
        assert {name: gate.talk(name) for name in reversed(homes)} == homes


def test_z3_a_conversation_waits_for_its_account_and_then_moves() -> None:
    gate = Gate()
    assert gate.talk("a") == "work"
    held = [gate.ask("", "anthropic@work/claude-sonnet-4-6") for _ in range(2)]
    ident = gate.ask("a")
    assert gate.account(ident) == ""
    assert gate.waiting(ident) == (
        "concurrency_cap",
        "2 of 2 slots of anthropic@work are taken; its conversation stays with work for now",
    )
    gate.pass_ms(9_999)
    assert gate.account(ident) == ""
    assert why(gate.pass_ms(1)) == ["moved from work to spare: work is full"]
    assert gate.account(ident) == "spare"
    gate.end(ident, *held)
    assert gate.talk("a") == "spare"


def test_z3_a_conversation_enters_as_soon_as_its_account_has_room() -> None:
    gate = Gate()
    assert gate.talk("a") == "work"
    held = [gate.ask("", "anthropic@work/claude-sonnet-4-6") for _ in range(2)]
    waiting = [gate.ask("a") for _ in range(3)]
    gate.pass_ms(5_000)
    gate.end(*held)
    assert [gate.account(each) for each in waiting] == ["work", "work", ""]
    gate.end(waiting[0])
    assert gate.account(waiting[2]) == "work"


def test_z3_the_next_in_line_leaves_when_its_own_time_is_up() -> None:
    gate = Gate()
    gate.talk("a")
    held = [gate.ask("", "anthropic@work/claude-sonnet-4-6") for _ in range(2)]
    first = gate.ask("a")
    gate.pass_ms(4_000)
    second = gate.ask("a")
    gate.pass_ms(1_000)
    gate.end(held[0])
    assert [gate.account(each) for each in (first, second)] == ["work", ""]
    gate.pass_ms(8_999)
    assert gate.account(second) == ""
    gate.pass_ms(1)
    assert gate.account(second) == "spare"


def test_z3_those_who_wait_for_a_full_account_are_not_in_the_way_of_others() -> None:
    gate = Gate()
    assert (gate.talk("a"), gate.talk("b")) == ("work", "spare")
    for _ in range(2):
        gate.ask("", "anthropic@work/claude-sonnet-4-6")
    assert gate.asks("a") == ""
    assert gate.asks("b") == "spare"


def test_z3_a_conversation_moves_at_once_when_its_account_stays_closed_for_longer() -> None:
    gate = Gate()
    assert gate.talk("a") == "work"
    gate(cmd.BackOff("anthropic@work", "quota"))
    assert gate.talk("a") == "spare"


@pytest.mark.parametrize("closed", ["pause", "window", "budget"])
def test_z3_whatever_closes_the_account_for_longer_makes_it_move(closed: str) -> None:
    gate = Gate(plan=True, budgets=(BudgetRule("anthropic@work", "usd", 1_000_000, "day"),))
    ident = gate.ask("a")
    gate.end(ident, usage=Usage(calls=1, cost=1_000_000 if closed == "budget" else 1))
    if closed == "pause":
        gate(cmd.Pause("requests", "anthropic@work", 10_001))
    if closed == "window":
        gate(cmd.ObservePlan("anthropic@work", (PlanReading("5h", 10_000, HOUR_MS, 5 * HOUR_MS),)))
    assert gate.talk("a") == "spare"


def test_z3_a_conversation_waits_for_a_short_backoff_of_its_account() -> None:
    gate = Gate()
    assert gate.talk("a") == "work"
    gate(cmd.BackOff("anthropic@work", "rate_limited", 5_000))
    ident = gate.ask("a")
    assert gate.account(ident) == ""
    code, text = gate.waiting(ident)
    assert code == "backoff"
    assert text.endswith("its conversation stays with work for now")
    assert gate.asks("b") == "spare"
    gate.pass_ms(5_000)
    assert gate.account(ident) == "work"


def test_z3_a_conversation_waits_for_a_rate_of_its_account_unless_it_takes_too_long() -> None:
    gate = Gate(budgets=(BudgetRule("anthropic@work", "calls", 1, "8s", per_ms=8_000),))
    call = Usage(calls=1)
    gate.end(gate.ask("a", estimate=call), usage=call)
    first = gate.ask("a", estimate=call)
    second = gate.ask("a", estimate=call)
    assert (gate.account(first), gate.account(second)) == ("", "")
    gate.pass_ms(8_000)
    assert (gate.account(first), gate.account(second)) == ("work", "")
    gate.pass_ms(2_000)
    assert gate.account(second) == "spare"


def test_z3_those_who_wait_move_at_once_when_their_account_closes() -> None:
    gate = Gate(plan=True, caps=(cap("work", 1), cap("spare", 2)))
    assert gate.talk("a") == "work"
    gate.ask("", "anthropic@work/claude-sonnet-4-6")
    first = gate.ask("a")
    assert gate.account(first) == ""
    gate(cmd.Pause("requests", "anthropic@work", 60_000))
    assert gate.account(first) == "spare"
    gate(cmd.ObservePlan("anthropic@spare", (PlanReading("5h", 1_000, HOUR_MS, 5 * HOUR_MS),)))
    held = gate.ask("", "anthropic@spare/claude-sonnet-4-6")
    second = gate.ask("a")
    assert (gate.account(held), gate.account(second)) == ("spare", "")
    gate(cmd.ObservePlan("anthropic@spare", (PlanReading("5h", 10_000, HOUR_MS, 5 * HOUR_MS),)))
    assert gate.account(second) == "api"


def test_z3_a_spilled_conversation_returns_when_there_is_room() -> None:
    gate = Gate(caps=(cap("work", 1), cap("spare", 1), cap("api", 1)))
    held = [gate.ask(), gate.ask()]
    assert gate.talk("a") == "api"
    assert gate.talk("a") == "api"
    gate.end(held[1])
    events = gate(cmd.Acquire("x", Spec((SONNET,), "requests"), ME, conversation="a"))
    assert why(events) == ["returned from api to spare"]


def test_z3_a_spilled_conversation_waits_for_the_account_that_it_was_spilled_to() -> None:
    """It would push out the conversations that are at home in the others."""
    gate = Gate(caps=(cap("work", 1), cap("spare", 1), cap("api", 1)))
    held = [gate.ask(), gate.ask()]
    assert gate.talk("a") == "api"
    api = gate.ask()
    ident = gate.ask("a")
    gate.end(held[0])
    assert gate.account(ident) == ""
    gate.end(api)
    assert gate.account(ident) == "api"


def test_z3_a_resumed_session_is_a_conversation() -> None:
    gate = Gate(caps=())
    first = gate.ask(kind="agents", session="nightly")
    account = gate.account(first)
    gate.end(first)
    gate.talk("other")
    assert gate.asks(kind="agents", session="nightly") == account


def test_z3_a_call_of_a_run_uses_the_account_of_the_run() -> None:
    gate = Gate()
    run = gate.ask(kind="agents")
    assert gate.account(run) == "work"
    gate.talk("one")
    assert [gate.asks(run=run) for _ in range(2)] == ["work", "work"]
    assert gate.asks("subagent", run=run) == ""
    assert gate.asks(run="gone") == "spare"


def test_z3_without_stickiness_a_conversation_has_no_home() -> None:
    gate = Gate(msgspec.structs.replace(SET, sticky="none"))
    assert gate.talk("a") == "work"
    gate.ask()
    assert gate.talk("a") == "spare"
    assert gate.state.accounts.homes.export() == []


def test_z3_a_conversation_that_was_quiet_for_long_has_no_home() -> None:
    gate = Gate()
    assert gate.talk("a") == "work"
    assert gate.talk("b") == "spare"
    gate.pass_ms(KEPT_MS)
    gate.ask("", "anthropic@work/claude-sonnet-4-6")
    assert gate.talk("a") == "spare"
    assert [home[:2] for home in gate.state.accounts.homes.export()] == [("a", "anthropic@spare")]


def test_z3_the_number_of_homes_is_bounded() -> None:
    homes = Homes()
    for number in range(MOST_HOMES + 10):
        homes.use(f"t{number}", "anthropic@work", T0 + number)
    assert len(homes.export()) == homes.numbers["anthropic@work"] == MOST_HOMES
    assert not homes.find("t9", T0)
    assert homes.find("t10", T0) == "anthropic@work"
    homes.use("t10", "anthropic@spare", T0)
    assert homes.numbers == {"anthropic@work": MOST_HOMES - 1, "anthropic@spare": 1}


def test_z3_the_name_of_a_conversation_is_bounded() -> None:
    with pytest.raises(BadRequest, match="at most 200"):
        Gate().ask("x" * 201)


def test_z3_homes_survive_that_queues_are_dropped() -> None:
    gate = Gate()
    assert gate.talk("a") == "work"
    gate.state.drop_empty_queues()
    assert gate.talk("a") == "work"


# --- the ramp ------------------------------------------------------------------------------------------------------


def test_z5_conversations_move_one_by_one_and_then_faster() -> None:
    gate = Gate(AccountSet("anthropic", ("work", "spare"), choose="first"), caps=())
    names = [f"t{number}" for number in range(20)]
    for name in names:
        assert gate.talk(name) == "work"
    gate(cmd.BackOff("anthropic@work", "quota"))
    idents = [gate.ask(name) for name in names]
    moved = [sum(gate.account(each) == "spare" for each in idents)]
    for _ in range(5):
        gate.pass_ms(STEP_MS)
        moved.append(sum(gate.account(each) == "spare" for each in idents))
    assert moved == [1, 2, 4, 8, 16, 20]
    assert gate.state.accounts.ramps["anthropic@spare"].moved == 20


def test_z5_a_new_conversation_need_not_wait_for_the_ramp() -> None:
    gate = Gate(AccountSet("anthropic", ("work", "spare"), choose="first"), caps=())
    assert [gate.talk("a"), gate.talk("b")] == ["work", "work"]
    gate(cmd.BackOff("anthropic@work", "quota"))
    assert gate.asks("a") == "spare"
    waiting = gate.ask("b")
    assert gate.account(waiting) == ""
    text = "no account has room: spare is taking in others first, work is backed off (quota)"
    assert gate.waiting(waiting) == ("moving", text)
    assert gate.asks("new") == "spare"


def test_z5_after_a_quiet_while_the_ramp_begins_again() -> None:
    ramp = Ramp("anthropic@work")
    assert ramp.opens_at(T0) == 0
    ramp.move(T0)
    assert ramp.opens_at(T0) == T0 + STEP_MS
    ramp.move(T0 + STEP_MS)
    assert ramp.opens_at(T0 + STEP_MS) == T0 + 2 * STEP_MS
    ramp.move(T0 + STEP_MS + QUIET_MS)
    assert (ramp.moved, ramp.began_at) == (1, T0 + STEP_MS + QUIET_MS)


def test_z5_projects_share_the_ramp_fairly() -> None:
    gate = Gate(AccountSet("anthropic", ("work", "spare"), choose="first"), caps=())
    for name in ("a", "b", "c"):
        assert gate.talk(name) == "work"
    gate(cmd.BackOff("anthropic@work", "quota"))
    first = gate.ask("a")
    others = []
    for name, project in (("b", "web"), ("c", "docs")):
        spec = Spec((SONNET,), "requests", project=project)
        gate(cmd.Acquire(name, spec, ME, conversation=name))
        others.append(name)
    assert [gate.account(each) for each in (first, *others)] == ["spare", "", ""]
    gate.pass_ms(STEP_MS)
    assert [gate.account(each) for each in others] == ["spare", ""]
    gate.pass_ms(STEP_MS)
    assert [gate.account(each) for each in others] == ["spare", "spare"]


def test_z5_two_projects_that_wait_for_one_ramp_are_told_apart() -> None:
    gate = Gate(AccountSet("anthropic", ("work", "spare"), choose="first"), caps=())
    for name in ("a", "b", "c"):
        gate.talk(name)
    gate(cmd.BackOff("anthropic@work", "quota"))
    ramp = gate.state.accounts.ramps["anthropic@spare"]
    assert ramp.changes_at(gate.now) > gate.now + QUIET_MS
    gate.ask("a")
    assert ramp.first_admissible_of("default", gate.now) is None
    for name, project in (("b", "web"), ("c", "docs")):
        gate(cmd.Acquire(name, Spec((SONNET,), "requests", project=project), ME, conversation=name))
    assert ramp.changes_at(gate.now) == gate.now + STEP_MS
    assert ramp.first_admissible_of("docs", gate.now) is None
    found = ramp.first_admissible_of("docs", gate.now + STEP_MS)
    assert found is not None
    assert found.project == "docs"
    gate.end("r4", "r1")
    gate(cmd.Cancel("b"))
    gate(cmd.Cancel("c"))
    assert ramp.first_admissible(gate.now) is None


def test_z5_an_account_that_takes_in_others_first_is_named() -> None:
    gate = Gate(AccountSet("anthropic", ("work", "spare"), ("api",), choose="first"), caps=())
    assert [gate.talk("a"), gate.talk("b")] == ["work", "work"]
    gate(cmd.BackOff("anthropic@work", "quota"))
    assert gate.asks("a") == "spare"
    events = gate(cmd.Acquire("x", Spec((SONNET,), "requests"), ME, conversation="b"))
    assert why(events) == ["moved from work to api: work is backed off (quota), spare is taking in others first"]


def test_z4_a_request_that_takes_the_last_account_although_others_have_room_says_no_more() -> None:
    gate = Gate()
    queue = gate.state.queue(Spec((SONNET,), "requests"))
    ticket = Ticket("x", queue.spec, ME, T0, 1, T0, T0, T0 + 1)
    assert reason_of_switch(gate.state, ticket, queue.candidates[2], gate.now) == "spilled to api"


# --- together with the rest of the engine --------------------------------------------------------------------------


def test_a_waiting_request_takes_the_first_account_that_has_room() -> None:
    gate = Gate()
    held = [gate.ask() for _ in range(8)]
    ident = gate.ask()
    assert gate.waiting(ident) == ("concurrency_cap", "no account has room: work, spare and api are full")
    view = ticket_view(gate.state, ident, gate.now)
    assert view is not None
    assert (view.position, view.of) == (1, 1)
    assert view.reason.pools == ["anthropic@work", "anthropic@spare", "anthropic@api"]
    gate.end(held[1])
    assert gate.account(ident) == "spare"


def test_those_who_wait_enter_in_order_whichever_account_they_use() -> None:
    gate = Gate(caps=(cap("work", 1), cap("spare", 1), cap("api", 1)))
    assert gate.talk("a") == "work"
    held = [gate.ask("", f"anthropic@{account}/claude-sonnet-4-6") for account in ("work", "spare", "api")]
    first = gate.ask()
    at_home = gate.ask("a")
    third = gate.ask()
    gate.end(held[0])
    assert [gate.account(each) for each in (first, at_home, third)] == ["work", "", ""]
    gate.end(first)
    assert [gate.account(each) for each in (at_home, third)] == ["work", ""]
    gate.end(held[2])
    assert gate.account(third) == "api"


def test_the_next_model_is_used_when_all_accounts_of_the_first_are_closed() -> None:
    gate = Gate()
    models = (SONNET, "openai/gpt-5")
    gate(cmd.BackOff("anthropic@work", "quota"))
    assert gate.asks("", *models) == "spare"
    gate(cmd.BackOff("anthropic@spare", "quota"))
    assert gate.asks("", *models) == "api"
    gate(cmd.BackOff("anthropic@api", "quota"))
    assert gate.asks("", *models) == "openai"


def test_the_next_model_is_used_when_all_accounts_of_the_first_are_paused() -> None:
    gate = Gate()
    for account in ("work", "spare", "api"):
        assert gate.asks("", SONNET, "openai/gpt-5", "openai/gpt-4") == account
        gate(cmd.Pause("requests", f"anthropic@{account}", 60_000))
    assert gate.asks("", SONNET, "openai/gpt-5", "openai/gpt-4") == "openai"


def test_full_accounts_are_passed_over_only_with_any() -> None:
    gate = Gate(caps=(cap("work", 1), cap("spare", 1), cap("api", 1)))
    for _ in range(3):
        gate.ask()
    assert gate.asks("", SONNET, "openai/gpt-5") == ""
    assert gate.asks("", SONNET, "openai/gpt-5", any_of=True) == "openai"


def test_an_account_that_is_named_beside_its_set_is_one_candidate() -> None:
    gate = Gate()
    queue = gate.state.queue(Spec((SONNET, "anthropic@spare/claude-sonnet-4-6"), "requests"))
    assert [candidate.model.partition("/")[0] for candidate in queue.candidates] == [
        "anthropic@work",
        "anthropic@spare",
        "anthropic@api",
    ]


def test_a_backoff_is_tried_out_by_a_request_that_is_not_at_home_elsewhere() -> None:
    gate = Gate()
    assert gate.talk("a") == "work"
    ident = gate.ask("", "anthropic@work/claude-sonnet-4-6")
    gate.end(ident, outcome="quota", scope="account", retry_after_ms=20_000)
    assert gate.talk("a") == "spare"
    gate.pass_ms(20_000)
    assert gate.talk("a") == "spare"
    assert gate.asks() == "work"


def test_while_every_account_is_closed_the_time_of_a_request_stands_still() -> None:
    gate = Gate(AccountSet("anthropic", ("work", "spare")))
    gate(cmd.BackOff("anthropic@work", "rate_limited", 60_000))
    gate(cmd.BackOff("anthropic@spare", "rate_limited", 90_000))
    ident = gate.ask("a")
    assert gate.state.tickets[ident].stalled_at == gate.now
    code, text = gate.waiting(ident)
    assert (code, text.split(" is ")[0]) == ("backoff", "anthropic@work/claude-sonnet-4-6")
    gate.pass_ms(60_000)
    assert gate.account(ident) == "work"


def test_a_set_that_changes_applies_to_those_who_wait_and_run() -> None:
    gate = Gate(AccountSet("anthropic", ("work",)), caps=(cap("work", 1), cap("spare", 1)))
    running, waiting = gate.ask(), gate.ask()
    assert (gate.account(running), gate.account(waiting)) == ("work", "")
    gate.load(AccountSet("anthropic", ("spare",)))
    assert (gate.account(running), gate.account(waiting)) == ("work", "spare")
    gate.load()
    assert gate.asks() == "anthropic"
    gate(cmd.SetRule(cap("work", 3)))
    gate.end(running, waiting)
    assert gate.state.pools["requests anthropic@work"].used == 0


def test_a_set_that_opens_a_way_lets_time_run_again() -> None:
    gate = Gate(AccountSet("anthropic", ("work",)), caps=(cap("work", 1), cap("spare", 1)))
    gate.ask("", "anthropic@spare/claude-sonnet-4-6")
    gate(cmd.BackOff("anthropic@work", "rate_limited", 600_000))
    ident = gate.ask("a", expires_ms=30_000)
    gate.pass_ms(20_000)
    assert gate.state.tickets[ident].stalled_at
    gate.load(AccountSet("anthropic", ("work", "spare")))
    assert not gate.state.tickets[ident].stalled_at
    gate.pass_ms(29_999)
    assert ident in gate.state.tickets
    gate.pass_ms(1)
    assert ident not in gate.state.tickets


def test_a_process_that_runs_on_an_account_that_left_the_set_is_adopted() -> None:
    gate = Gate(AccountSet("anthropic", ("spare",)))
    ticket = Ticket("x", Spec((SONNET,), "agents", host="h1"), ME, T0, 1, T0, T0, T0 + 1_000)
    gate(cmd.Adopt(ticket, "anthropic@work/claude-sonnet-4-6"))
    assert gate.account("x") == "work"
    with pytest.raises(BadRequest, match="valid are anthropic@spare"):
        gate(cmd.Adopt(msgspec.structs.replace(ticket, id="y"), "openai@work/claude-sonnet-4-6"))


def test_a_request_larger_than_every_account_is_refused() -> None:
    gate = Gate()
    with pytest.raises(BadRequest, match="needs 5 slots of anthropic@api"):
        gate(cmd.Acquire("x", Spec((SONNET,), "requests", slots=5), ME))


def test_the_order_of_a_request_for_several_slots_is_kept() -> None:
    gate = Gate(AccountSet("anthropic", ("work", "spare")))
    held = [gate.ask() for _ in range(4)]
    gate(cmd.Acquire("big", Spec((SONNET,), "requests", slots=2), ME))
    gate.end(held[0])
    assert gate.account("big") == ""
    gate.end(held[2])
    assert gate.account("big") == "work"


@pytest.mark.parametrize(
    "bad",
    [
        AccountSet("anthropic", ()),
        AccountSet("anthropic", tuple(f"a{number}" for number in range(33))),
        AccountSet("anthropic", ("work", "work")),
        AccountSet("anthropic", ("work",), ("work",)),
        AccountSet("anthropic", ("no space",)),
        AccountSet("anthropic", ("work",), choose="best"),
        AccountSet("anthropic", ("work",), sticky="ever"),
        AccountSet("anthropic", ("work",), patience_ms=-1),
    ],
)
def test_z1_a_set_that_cannot_be_one_is_refused(bad: AccountSet) -> None:
    gate = Gate()
    with pytest.raises((BadRequest, BadName)):
        gate.load(bad)
    assert gate.state.accounts.rules == {"anthropic": SET}


def test_a_line_whose_home_left_the_set_waits_for_all_accounts() -> None:
    gate = Gate(AccountSet("anthropic", ("work", "spare")), caps=(cap("work", 1), cap("spare", 1), cap("api", 1)))
    assert gate.talk("a") == "work"
    held = [gate.ask("", f"anthropic@{account}/claude-sonnet-4-6") for account in ("work", "spare", "api")]
    waiting = [gate.ask("a") for _ in range(2)]
    gate.load(AccountSet("anthropic", ("spare", "api")))
    gate.end(held[1])
    assert [gate.account(each) for each in waiting] == ["spare", ""]
    gate.pass_ms(STEP_MS)
    gate.end(held[2])
    assert [gate.account(each) for each in waiting] == ["spare", "api"]


def test_a_line_whose_home_left_the_set_of_one_moves_step_by_step() -> None:
    gate = Gate(AccountSet("anthropic", ("work", "spare")), caps=(cap("work", 1),))
    assert gate.talk("a") == "work"
    gate.ask("", "anthropic@work/claude-sonnet-4-6")
    waiting = [gate.ask("a") for _ in range(2)]
    gate.load(AccountSet("anthropic", ("spare",)))
    assert [gate.account(each) for each in waiting] == ["spare", ""]
    assert gate.waiting(waiting[1]) == ("moving", "no account has room: spare is taking in others first")
    gate.pass_ms(STEP_MS)
    assert gate.account(waiting[1]) == "spare"


def test_the_next_of_a_line_may_have_waited_long_enough_to_move() -> None:
    gate = Gate(caps=(cap("work", 1), cap("spare", 1), cap("api", 1)))
    assert gate.talk("a") == "work"
    held = [gate.ask("", f"anthropic@{account}/claude-sonnet-4-6") for account in ("work", "spare", "api")]
    waiting = [gate.ask("a") for _ in range(3)]
    gate.pass_ms(10_000)
    assert [gate.account(each) for each in waiting] == ["", "", ""]
    gate.end(held[0])
    assert [gate.account(each) for each in waiting] == ["work", "", ""]
    gate.end(held[2])
    assert [gate.account(each) for each in waiting] == ["work", "api", ""]


def test_those_at_home_who_are_looked_at_again_wait_no_longer_than_before() -> None:
    gate = Gate()
    assert gate.talk("a") == "work"
    for _ in range(2):
        gate.ask("", "anthropic@work/claude-sonnet-4-6")
    ident = gate.ask("a")
    gate.pass_ms(5_000)
    gate(cmd.ObservePlan("anthropic@work", (PlanReading("5h", 100, HOUR_MS, 5 * HOUR_MS),)))
    gate(cmd.ObservePlan("anthropic@work", (PlanReading("5h", 300, HOUR_MS, 5 * HOUR_MS),)))
    gate.pass_ms(4_999)
    assert gate.account(ident) == ""
    gate.pass_ms(1)
    assert gate.account(ident) == "spare"


def test_an_account_that_only_an_own_limit_counts_is_all_there() -> None:
    gate = Gate(AccountSet("anthropic", ("work", "spare")), caps=())
    spec = Spec((SONNET,), "requests", caps=(("anthropic@work", 5),))
    gate(cmd.Acquire("x", spec, ME))
    assert gate.account("x") == "work"
    assert gate.asks() == "work"


def test_a_request_that_needs_a_host_too_waits_for_it_with_every_account() -> None:
    gate = Gate(AccountSet("anthropic", ("work", "spare")), caps=(Rule("agents", "host", cap=1),))
    spec = Spec((SONNET,), host="h1")
    for ident in ("x", "y", "z"):
        gate(cmd.Acquire(ident, spec, ME))
    assert [gate.account(each) for each in ("x", "y", "z")] == ["work", "", ""]
    gate.end("x")
    assert [gate.account(each) for each in ("y", "z")] == ["work", ""]


def test_a_line_whose_account_opens_but_not_all_of_it_waits_on() -> None:
    caps = (Rule("requests", "anthropic/claude-sonnet-*", cap=2, cooldown_ms=0, on_429="pause"), *CAPS[:2])
    gate = Gate(AccountSet("anthropic", ("work", "spare")), caps=caps)
    held = [gate.ask("", f"anthropic@{account}/claude-haiku-4-5") for account in ("work", "work", "spare", "spare")]
    gate(cmd.Pause("requests", "anthropic@work/claude-sonnet-*", 60_000))
    waiting = gate.ask()
    gate(cmd.Resume("requests", "anthropic@work/claude-sonnet-*"))
    assert gate.account(waiting) == ""
    gate.end(held[0])
    assert gate.account(waiting) == "work"


def test_the_reason_names_every_kind_of_closed_account() -> None:
    gate = Gate(AccountSet("anthropic", ("work", "spare", "api")), plan=True)
    gate(cmd.Pause("requests", "anthropic@work", 60_000))
    gate(cmd.ObservePlan("anthropic@spare", (PlanReading("5h", 10_000, HOUR_MS, 5 * HOUR_MS),)))
    gate(cmd.BackOff("anthropic@api", "quota"))
    ident = gate.ask()
    text = "no account has room: work is paused, spare is held back by its 5h window, api is backed off (quota)"
    assert gate.waiting(ident)[1] == text
    view = ticket_view(gate.state, ident, gate.now)
    assert view is not None
    assert view.reason.until == gate.now + 60_000


def test_a_request_behind_others_says_so() -> None:
    gate = Gate()
    gate(cmd.Acquire("x", Spec((SONNET,), "requests"), "", job=True))
    assert gate.waiting("x")[0] == "no_worker"


def test_the_reason_of_a_line_follows_when_a_full_account_is_paused() -> None:
    gate = Gate()
    for _ in range(8):
        gate.ask()
    first = gate.ask()
    assert gate.waiting(gate.ask())[1] == gate.waiting(first)[1] == "no account has room: work, spare and api are full"
    gate(cmd.Pause("requests", "anthropic@work", 60_000))
    assert gate.waiting(gate.ask())[1] == "no account has room: work is paused, spare and api are full"


def test_z4_a_backoff_of_the_last_account_is_not_tried_out_while_others_have_room() -> None:
    gate = Gate()
    ident = gate.ask("", "anthropic@api/claude-sonnet-4-6")
    gate.end(ident, outcome="quota", scope="account", retry_after_ms=1_000)
    gate.pass_ms(1_000)
    assert gate.asks() == "work"


def test_a_line_with_another_kind_of_obstacle_names_it() -> None:
    call = Usage(calls=1)
    budgets = (BudgetRule("anthropic@work", "calls", 1, "1m", per_ms=60_000),)
    gate = Gate(AccountSet("anthropic", ("work", "spare")), caps=(cap("spare", 1),), budgets=budgets)
    for _ in range(3):
        gate.ask(estimate=call)
    assert gate.waiting(gate.ask(estimate=call))[1] == "no account has room: work is out of budget, spare is full"


def test_a_line_with_a_second_model_names_the_accounts_of_the_first() -> None:
    gate = Gate()
    for _ in range(8):
        gate.ask()
    gate.ask("", SONNET, "openai/gpt-5")
    ident = gate.ask("", SONNET, "openai/gpt-5")
    assert gate.waiting(ident)[1] == "no account has room: work, spare and api are full"


def test_capacity_is_that_of_all_accounts_that_have_room() -> None:
    gate = Gate()
    spec = Spec((SONNET,), "requests")
    found = capacity(gate.state, spec, gate.now)
    assert (found.level, found.free, found.model) == ("green", 8, "anthropic@work/claude-sonnet-4-6")
    for _ in range(4):
        gate.ask()
    found = capacity(gate.state, spec, gate.now)
    assert (found.level, found.free, found.model) == ("green", 4, "anthropic@api/claude-sonnet-4-6")
    for _ in range(4):
        gate.ask()
    found = capacity(gate.state, spec, gate.now)
    assert (found.level, found.free) == ("red", 0)
    assert found.reason is not None
    assert found.reason.text == "no account has room: work, spare and api are full"
    gate.load(AccountSet("anthropic", ("work", "free")))
    assert capacity(gate.state, spec, gate.now).free is None


def test_capacity_counts_no_account_that_a_plan_window_holds_back() -> None:
    gate = Gate(plan=True)
    gate(cmd.ObservePlan("anthropic@work", (PlanReading("5h", 10_000, HOUR_MS, 5 * HOUR_MS),)))
    found = capacity(gate.state, Spec((SONNET,), "requests"), gate.now)
    assert (found.free, found.model) == (6, "anthropic@spare/claude-sonnet-4-6")


def test_capacity_names_the_account_with_free_slots_where_none_admits_at_once_and_counts_who_waits_for_it() -> None:
    adapt = Rule("requests", "anthropic@api", cap=8, cooldown_ms=0)
    gate = Gate(caps=(cap("work", 1), cap("spare", 1), adapt))
    while not gate.state.tickets:
        gate.ask()
    gate.ask()
    found = capacity(gate.state, Spec((SONNET,), "requests"), gate.now)
    assert found.model == "anthropic@api/claude-sonnet-4-6"
    assert (found.queued, found.level) == (2, "red")


def test_an_estimate_is_between_all_accounts_together_and_one() -> None:
    gate = Gate()
    for _ in range(20):
        held = [gate.ask() for _ in range(8)]
        gate.pass_ms(8_000)
        gate.end(*held)
    for _ in range(8):
        gate.ask()
    view = ticket_view(gate.state, gate.ask(), gate.now)
    assert view is not None
    assert view.estimate_ms is not None
    low_ms, high_ms = view.estimate_ms
    assert 800 <= low_ms <= 1_000, "all accounts together: eight slots"
    assert 4_000 <= high_ms <= 5_000, "one account: two slots"
