"""`adapt` under whatever may happen: calls, answers, refusals in any order, lost processes, caps set, restarts.

After every step: the limit is within floor and ceiling, one incident has not cut twice, no pause was shortened, at most
one call is above the proven level, and a process that replays the log or restores a snapshot believes the same.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.invariants import check_invariants, check_settled
from fleetgate.core.limits import AdaptiveLimit
from fleetgate.core.limits.adaptive_tuning import FLOOR
from fleetgate.core.pools.pool import Pool
from fleetgate.core.state.state import State
from fleetgate.core.views.limit_explanation import explain

CUTS = ("drop", "exact", "again")


class Adapting(RuleBasedStateMachine):
    @initialize(
        cap=st.integers(1, 6),
        explore=st.booleans(),
        cooldown_ms=st.sampled_from([None, None, 0, 300]),
        gate=st.booleans(),
    )
    def begin(self, cap: int, explore: bool, cooldown_ms: int | None, gate: bool) -> None:
        self.now = 1_000_000
        self.engine = Engine(me="p")
        self.replica = Engine()
        self.ids = 0
        self.cap = cap
        self.explore = explore
        self.epoch = 0
        self.cuts: dict[int, int] = {}  # by epoch
        said = Rule("requests", "umans", cap=cap, explore=explore, cooldown_ms=cooldown_ms, usage_gate=gate)
        self.do(cmd.SetRule(said))

    @property
    def pool(self) -> Pool:
        pool = self.engine.state.named("requests", "umans")
        assert pool is not None
        return pool

    @property
    def adapt(self) -> AdaptiveLimit:
        assert self.pool.limiter.adaptive is not None
        return self.pool.limiter.adaptive

    def do(self, command: cmd.Command) -> list[ev.Event]:
        told: list[ev.Event] = []
        for each in (cmd.Tick(), command):
            pauses, limits = self._all("paused_until"), self._all("limit")
            events = self.engine.handle(each, self.now)
            assert all(self._all("paused_until")[key] >= until for key, until in pauses.items()), (
                "a pause was shortened"
            )
            self._check_room(events, limits)
            told += events
        self.replica.replay(told, self.now)
        return told

    def _all(self, name: str) -> dict[str, int]:
        return {key: getattr(pool, name) for key, pool in self.engine.state.pools.items()}

    def _check_room(self, events: list[ev.Event], limits: dict[str, int]) -> None:
        """rule A1: no call enters above the limit, but for one probe at a time."""
        held = self.engine.state.lease_candidates
        entered = [held[event.id] for event in events if isinstance(event, ev.Granted) and event.id in held]
        for pool in [pool for candidate in entered for pool, _ in candidate.needs]:
            if pool.limiter.adaptive is not None:
                probe = pool.limiter.adaptive.belief.probing and pool.limit < pool.limiter.adaptive.ceiling
                assert pool.used <= max(limits.get(pool.key, 0), pool.limit) + probe, f"{pool} is too full"

    @rule(
        number=st.integers(1, 4),
        slots=st.sampled_from([1, 1, 1, 2]),
        wait=st.sampled_from([True, True, False]),
        model=st.sampled_from(["coder", "coder", "small"]),
    )
    def ask(self, number: int, slots: int, wait: bool, model: str) -> None:
        for _ in range(number if slots <= self.cap else 0):
            self.ids += 1
            spec = Spec((f"umans/{model}",), "requests", slots=slots)
            self.do(cmd.Acquire(f"c{self.ids}", spec, "p", wait, asks=("umans",)))

    @rule(steps=st.integers(3, 12), held_ms=st.sampled_from([400, 2_500, 15_000]))
    def traffic(self, steps: int, held_ms: int) -> None:
        """A while in which all goes well: calls are accepted and end, the provider is asked, others come."""
        for _ in range(steps):
            self.ask(1, 1, True, "coder")
            self.wait(held_ms // max(len(self.engine.state.leases), 1))
            self.usage(len(self.engine.state.leases))
            oldest = next(iter(self.engine.state.leases), None)
            if oldest is not None and self.now - self.engine.state.leases[oldest].granted_at >= held_ms:
                self._judge(self.do(cmd.Release(oldest)))

    @rule(ms=st.sampled_from([0, 10, 100, 350, 500, 1_000, 2_000, 3_000, 61_000, 600_000, 3_600_000]))
    def wait(self, ms: int) -> None:
        end = self.now + ms
        for _ in range(50):
            due = self.engine.next_deadline()
            if due is None or due > end:
                break
            self.now = max(due, self.now)
            self.do(cmd.Tick())
        self.now = end
        self.do(cmd.Tick())

    @precondition(lambda self: self.engine.state.leases)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(["ok", "ok", "ok", "rate_limited", "rate_limited", "overloaded", "server_error"]),
        after=st.sampled_from([None, None, 0, 500, 30_000]),
    )
    def end(self, data: st.DataObject, outcome: str, after: int | None) -> None:
        self._judge(self.do(cmd.Release(self._one(data), outcome, after)))

    @precondition(lambda self: self.engine.state.leases)
    @rule(data=st.data(), again=st.booleans())
    def report(self, data: st.DataObject, again: bool) -> None:
        ident = self._one(data)
        for _ in range(1 + again):
            self._judge(self.do(cmd.Report(ident)))

    @rule(data=st.data(), what=st.sampled_from(["script", "person", "other_cap", "restart"]))
    def seldom(self, data: st.DataObject, what: str) -> None:
        """One rule for what is rare: of rules, each is as likely as any other."""
        if what == "script":
            self.script(data.draw(st.sampled_from([None, 100, 40_000])))
        elif what == "person":
            self.person(data.draw(st.integers(1, 6)))
        elif what == "other_cap":
            self.other_cap(data.draw(st.booleans()))
        else:
            self.restart()

    def script(self, after: int | None) -> None:
        self._judge(self.do(cmd.Report(kind="requests", target="umans", retry_after_ms=after)))

    @precondition(lambda self: self.engine.state.leases)
    @rule(data=st.data())
    def answer_begins(self, data: st.DataObject) -> None:
        self.do(cmd.Active(self._one(data)))

    @precondition(lambda self: self.engine.state.leases)
    @rule(data=st.data())
    def taken_back(self, data: st.DataObject) -> None:
        self.do(cmd.Reclaim(self._one(data), "me"))

    @rule(count=st.one_of(st.none(), st.integers(0, 8)))
    def usage(self, count: int | None) -> None:
        if self.do(cmd.AskUsage("requests", "umans", "p")):
            room = self.pool.limiter.with_probe(self.now) - (count or 0)
            told = self.do(cmd.AnswerUsage("requests", "umans", "p", count, "" if count is not None else "status 500"))
            entered = [event for event in told if isinstance(event, ev.Granted)]
            if count is not None:  # rules G1, G2
                assert len(entered) <= (room > 0)

    def person(self, cap: int) -> None:
        self.cap = cap
        self.do(cmd.SetRule(Rule("requests", "umans", cap=cap)))

    def other_cap(self, narrow: bool) -> None:
        self.do(cmd.SetRule(Rule("requests", "umans/coder" if narrow else "openai", cap=3)))

    def restart(self) -> None:
        self.engine = Engine(State.restore(self.engine.state.export(self.now)), me="p")
        self.do(cmd.Tick())

    def _one(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.engine.state.leases)))

    def _judge(self, events: list[ev.Event]) -> None:
        """One incident cuts once: what follows in it only fits."""
        for event in events:
            if isinstance(event, ev.Refused) and event.pool == "umans":
                if event.why in CUTS:
                    self.cuts[self.adapt.belief.epoch] = self.cuts.get(self.adapt.belief.epoch, 0) + 1
                    assert self.cuts[self.adapt.belief.epoch] == 1
                if event.why == "fit":
                    assert self.adapt.belief.epoch == self.epoch, "a refusal of an old incident began a new one"
        self.epoch = self.adapt.belief.epoch

    @invariant()
    def the_limit_is_within_its_bounds(self) -> None:
        ceiling = 1_000_000 if self.explore else self.cap
        assert FLOOR <= self.pool.limit <= ceiling
        assert self.pool.limit == self.adapt.limit

    @invariant()
    def at_most_one_call_is_unproven(self) -> None:
        belief = self.adapt.belief
        undecided = [call for call in belief.calls.values() if call.bold and not call.decided]
        assert len([call for call in undecided if call.epoch == belief.epoch]) <= 1
        assert not belief.unproven or belief.unproven in belief.calls
        assert set(belief.calls) == {
            ident
            for ident, held in self.engine.state.lease_candidates.items()
            if any(pool is self.pool for pool, _ in held.needs)
        }

    @invariant()
    def the_state_is_sound_and_the_queue_settled(self) -> None:
        check_invariants(self.engine.state)
        check_settled(self.engine.state, self.now)

    @invariant()
    def replay_and_restore_believe_the_same(self) -> None:
        exported = self.engine.state.export(self.now)
        restored = State.restore(exported)
        assert self.replica.state.export(self.now) == exported
        assert restored.export(self.now) == exported
        for state in (restored, self.replica.state):
            pool = state.named("requests", "umans")
            assert pool is not None
            assert (pool.limit, pool.cooldown_ms) == (self.pool.limit, self.pool.cooldown_ms)

    @invariant()
    def it_can_be_explained(self) -> None:
        assert len(explain(self.pool, self.now).sentences) >= 5


TestAdapting = Adapting.TestCase
TestAdapting.settings = settings(stateful_step_count=40)
