"""Weights and caps of projects, and fair shares by tokens (rule W6)."""

from __future__ import annotations

import msgspec
import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.errors import BadName, BadRequest
from fleetgate.core.invariants import check_invariants, check_settled
from fleetgate.core.pools.fair_share import HALF_LIFE_MS, FairShare
from fleetgate.core.state.snapshot_format import Snapshot
from fleetgate.core.state.state import State
from fleetgate.core.usage import ESTIMATE, RESPONSE, Usage
from fleetgate.core.views.pool_and_lease_views import ticket_views

T0 = 1_800_000_000_000
ME = "h1|b0|4026|100|5000"
CODER = "umans/coder"


class Bench:
    """Projects that always have calls waiting for a pool of one slot."""

    def __init__(self, *weights: tuple[str, int], rules: tuple[Rule, ...] = ()) -> None:
        self.engine = Engine(me=ME)
        self.now = T0
        self.number = 0
        caps = rules or (Rule("requests", "umans", cap=1, cooldown_ms=0, on_429="fixed"),)
        self.do(cmd.LoadFile("f", "1", 1, caps, weights=weights))

    @property
    def state(self) -> State:
        return self.engine.state

    def do(self, command: cmd.Command) -> None:
        self.engine.handle(cmd.Tick(), self.now)
        self.engine.handle(command, self.now)
        check_invariants(self.state)
        check_settled(self.state, self.now)

    def ask(self, project: str, kind: str = "requests") -> str:
        self.number += 1
        ident = f"{project}-{self.number}"
        models = (CODER,) if kind == "requests" else ()
        self.do(cmd.Acquire(ident, Spec(models, kind, host="h1", project=project), ME))
        return ident

    def served(self, projects: tuple[str, ...], rounds: int, uses: dict[str, Usage] | None = None) -> dict[str, int]:
        """How many calls of each project ran, each for a second, while all of them always wait."""
        counts = dict.fromkeys(projects, 0)
        for project in projects * 2:
            self.ask(project)
        for _ in range(rounds):
            (lease,) = self.state.leases.values()
            project = lease.ticket.spec.project
            self.now += 1_000
            counts[project] += 1
            self.ask(project)
            self.do(cmd.Release(lease.id, usage=(uses or {}).get(project)))
        return counts


def test_w6_a_project_with_a_weight_of_three_gets_three_times_as_much():
    counts = Bench(("web", 3)).served(("web", "api"), 400)
    assert abs(counts["web"] - 300) <= 3


def test_w6_without_weights_projects_are_equal():
    counts = Bench().served(("web", "api"), 200)
    assert abs(counts["web"] - 100) <= 2


def test_w6_positions_follow_the_weights():
    bench = Bench(("web", 3))
    bench.served(("web", "api"), 40)
    for _ in range(4):
        bench.ask("web"), bench.ask("api")
    order = [view.ticket.spec.project for view in ticket_views(bench.state, bench.now)]
    assert order[:4].count("web") == 3


def test_w6_where_tokens_are_known_they_are_shared_and_not_the_time():
    heavy, light = Usage(1, 3_000, 0, 0, 500, None, RESPONSE), Usage(1, 500, 0, 0, 250, None, RESPONSE)
    counts = Bench().served(("heavy", "light"), 400, {"heavy": heavy, "light": light})
    assert 3.5 < counts["light"] / counts["heavy"] < 4.5  # 4,000 to 1,000, where output counts double


def test_w6_estimates_and_runs_are_shared_by_time():
    guess = Usage(1, 900_000, 0, 0, 0, None, ESTIMATE)
    counts = Bench().served(("one", "other"), 200, {"one": guess})
    assert abs(counts["one"] - 100) <= 2


def test_w6_what_calls_take_for_their_tokens_is_half_forgotten_after_a_minute():
    shares = FairShare()
    assert shares.cost_of(1_000, 2_000, T0) == 2_000
    assert shares.cost_of(1_000, 4_000, T0) == 3_000
    assert (shares.tokens, shares.token_ms) == (2_000, 6_000)
    assert shares.cost_of(1_000, 1_000, T0 + HALF_LIFE_MS) == 2_000
    assert (shares.tokens, shares.token_ms) == (2_000, 4_000)
    shares.cost_of(100, 100, T0 + HALF_LIFE_MS * 3 // 2)
    assert (shares.tokens, shares.token_ms) == (1_600, 3_100)
    shares.cost_of(1, 1, T0 + 1_000 * HALF_LIFE_MS)
    assert (shares.tokens, shares.token_ms) == (1, 1)


def test_w6_a_project_can_have_a_cap_of_its_own():
    rules = (Rule("agents", "project", cap=1), Rule("agents", "project:web", cap=2), Rule("agents", "host", cap=9))
    bench = Bench(rules=rules)
    web = [bench.ask("web", "agents") for _ in range(3)]
    api = [bench.ask("api", "agents") for _ in range(2)]
    running = bench.state.leases
    assert [ident in running for ident in web] == [True, True, False]
    assert [ident in running for ident in api] == [True, False]
    assert set(bench.state.pools) == {"agents project:web", "agents project:api", "agents host:h1"}
    bench.do(cmd.SetRule(Rule("agents", "project:web", cap=3)))
    assert web[2] in running
    with pytest.raises(BadName, match="not a project"):
        bench.do(cmd.SetRule(Rule("agents", "project:", cap=3)))


@pytest.mark.parametrize("weight", [0, -1, 1_001])
def test_w6_a_weight_that_cannot_be_is_refused(weight: int):
    with pytest.raises(BadRequest, match="weight"):
        Bench(("web", weight))


def test_w6_a_snapshot_has_the_weights_and_what_was_learned_of_tokens():
    bench = Bench(("web", 3))
    bench.served(("web", "api"), 9, {"web": Usage(1, 100, 0, 0, 50, None, RESPONSE)})
    text = msgspec.json.encode(bench.state.export(bench.now))
    state = State.restore(msgspec.json.decode(text, type=Snapshot))
    assert msgspec.json.encode(state.export(bench.now)) == text
    assert state.rules.weights == {"web": 3}
    assert state.pools["requests umans"].shares.tokens


def test_w6_an_unclaimed_grant_costs_nothing():
    bench = Bench(("web", 2))
    bench.do(cmd.Acquire("first", Spec((CODER,), "requests", project="web"), ME))
    for number in range(2):
        spec = Spec((CODER,), "requests", project="web")
        bench.do(cmd.Acquire(f"later{number}", spec, f"h1|b0|4026|{number}|5000"))
    bench.now += 1_000
    bench.do(cmd.Release("first"))
    shares = bench.state.pools["requests umans"].shares
    charged = shares.of("web").start + shares.of("web").debit
    shares.refund("web", 10_000)
    assert shares.of("web").start + shares.of("web").debit == charged - 5_000
