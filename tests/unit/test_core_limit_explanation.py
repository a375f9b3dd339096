"""P4: what is believed about a limit, and what would change it, whatever the controller keeps to know it."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.events import Granted
from fleetgate.core.pools.pool import Pool
from fleetgate.core.views.limit_belief import LimitBelief, read_belief
from fleetgate.core.views.limit_explanation import explain, refusal_sentence, span

START = 10_000_000


class Calls:
    """Calls that the provider accepts up to its limit and refuses above."""

    def __init__(self, cap: int, allowed: int, on_429: str = "adapt") -> None:
        self.now = START
        self.allowed = allowed
        self.engine = Engine(me="p")
        self.engine.handle(cmd.SetRule(Rule("requests", "umans", cap=cap, on_429=on_429, max_hold_ms=0)), self.now)
        self.running: list[str] = []
        self.refused = 0

    @property
    def pool(self) -> Pool:
        pool = self.engine.state.named("requests", "umans")
        assert pool is not None
        return pool

    def until_refused(self, number: int) -> None:
        """Start so many calls, one after another, each as soon as it may; a refusal ends it."""
        for count in range(number):
            events = self.engine.handle(cmd.Acquire(f"c{count}", Spec(("umans/x",), "requests"), "p"), self.now)
            while not any(type(event) is Granted and event.id == f"c{count}" for event in events):
                due = self.engine.next_deadline()
                assert due is not None
                self.now = max(due, self.now)
                events = self.engine.handle(cmd.Tick(), self.now)
            self.now += 500
            if len(self.running) == self.allowed:
                self.engine.handle(cmd.Release(f"c{count}", "rate_limited"), self.now)
                self.refused = count + 1
                return
            self.engine.handle(cmd.Active(f"c{count}"), self.now)
            self.running.append(f"c{count}")

    def belief(self) -> LimitBelief:
        assert self.pool.limiter.adaptive is not None
        return read_belief(self.pool.limiter.adaptive, self.pool.used, self.now)


def test_p4_before_anything_happened_nothing_is_known_and_only_the_cap_changes_the_limit() -> None:
    calls = Calls(cap=4, allowed=9)
    belief = calls.belief()
    assert (belief.limit, belief.low, belief.high, belief.next_try_at) == (4, 0, None, None)
    said = explain(calls.pool, calls.now)
    assert (said.believed_low, said.believed_high, said.next_level) == (0, None, None)
    assert said.changes[0].startswith("Up: only a higher cap")
    assert said.changes[1] == "Down: the provider refuses a call with 4 or fewer in flight."


def test_p4_a_refusal_bounds_the_belief_from_above_and_an_acceptance_from_below() -> None:
    calls = Calls(cap=16, allowed=3)
    calls.until_refused(16)
    said = explain(calls.pool, calls.now)
    assert calls.refused
    assert said.limit is not None
    assert said.believed_low is not None
    assert said.believed_high is not None
    assert said.believed_low <= 3 <= said.believed_high
    assert said.next_level == said.limit + 1
    assert said.next_probe_at is not None
    assert said.changes == [
        f"Up: a call with {said.limit + 1} in flight is accepted.",
        f"Down: the provider refuses a call with {said.proven or said.limit} or fewer in flight.",
        "Back to 16: a person sets the cap again, which forgets the refusals.",
    ]


@pytest.mark.parametrize(
    ("why", "says"),
    [
        ("again", "5 were one too many again, near the limit that was found before"),
        ("omen", "5 at once were too many"),
    ],
)
def test_p4_every_verdict_has_words_and_one_that_is_not_known_is_said_plainly(why: str, says: str) -> None:
    calls = Calls(cap=16, allowed=4)
    calls.until_refused(6)
    belief = calls.belief()
    belief.last_why = why
    assert refusal_sentence(belief, belief.last_at or 0) == f"The last refusal, 0 s ago, was taken to mean: {says}."


@pytest.mark.parametrize("price", ["cheap", "normal", "expensive"])
def test_p4_what_refusals_cost_is_said_where_it_is_not_the_usual(price: str) -> None:
    calls = Calls(cap=4, allowed=9)
    calls.engine.handle(cmd.SetRule(Rule("requests", "umans", refusals=price)), calls.now)
    said = explain(calls.pool, calls.now)
    assert said.refusals == price
    assert any(f"set to be {price}" in sentence for sentence in said.sentences) is (price != "normal")
    assert explain(Calls(4, 9, "step").pool, START).refusals is None


@pytest.mark.parametrize("on_429", ["step", "pause", "fixed"])
def test_p4_where_nothing_is_learned_a_person_changes_the_limit(on_429: str) -> None:
    said = explain(Calls(4, 9, on_429).pool, START)
    assert said.believed_low is None
    assert said.changes[-1] == "Another cap: `fleetgate cap set`."
    assert (len(said.changes) == 2) is (on_429 == "step")


def test_lengths_of_time_are_rounded_down() -> None:
    assert [span(ms) for ms in (-5, 1_999, 119_999, 120_000, 7_199_999, 7_200_000)] == [
        "0 s",
        "1 s",
        "119 s",
        "2 min",
        "119 min",
        "2 h",
    ]
