"""K1-K3: a released slot stays taken for a while."""

from __future__ import annotations

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from tests.property.harness import CODER, SONNET, Bench


def test_k1_a_requests_slot_cools_for_350_ms_by_default():
    bench = Bench(requests={"umans": 1})
    bench.call("a", CODER)
    bench.call("b", CODER)
    bench.release("a")
    bench.wait(349)
    assert bench.fate("b") == "waits"
    bench.wait(1)
    assert bench.fate("b") == "offered"


def test_k1_an_agents_slot_does_not_cool_by_default():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    bench.release("a")
    assert bench.fate("b") == "offered"


def test_k1_zero_is_instant():
    bench = Bench(requests={"umans": 1})
    bench.do(cmd.SetRule(Rule("requests", "umans", cooldown_ms=0)))
    bench.call("a", CODER)
    bench.call("b", CODER)
    bench.release("a")
    assert bench.fate("b") == "offered"


def test_k1_all_slots_of_a_lease_cool_together():
    bench = Bench(requests={"umans": 3})
    bench.call("a", CODER, slots=3)
    bench.release("a")
    bench.wait(100)
    bench.call("b", CODER)
    assert bench.fate("b") == "waits"
    bench.wait(250)
    assert bench.fate("b") == "offered"


def test_k1_a_slot_that_was_offered_and_not_taken_does_not_cool():
    bench = Bench(requests={"umans": 1})
    for name in ("a", "b", "c"):
        bench.call(name, CODER)
    bench.release("a")
    bench.wait(350)
    assert bench.fate("b") == "offered"
    bench.do(cmd.Cancel("b"))
    assert bench.fate("c") == "offered"


def test_k1_slots_that_were_taken_back_cool_too():
    bench = Bench(requests={"umans": 1})
    bench.call("a", CODER)
    bench.call("b", CODER)
    bench.do(cmd.Reclaim("a", "me"))
    assert bench.fate("b") == "waits"
    bench.wait(350)
    assert bench.fate("b") == "offered"


def test_k2_a_new_cooldown_applies_to_later_releases_only():
    bench = Bench(requests={"umans": 2})
    bench.call("a", CODER)
    bench.call("b", CODER)
    bench.release("a")
    bench.do(cmd.SetRule(Rule("requests", "umans", cooldown_ms=5_000)))
    bench.release("b")
    bench.call("c", CODER)
    bench.call("d", CODER)
    bench.wait(350)
    assert (bench.fate("c"), bench.fate("d")) == ("offered", "waits")
    bench.do(cmd.Claim("c"))
    bench.do(cmd.SetRule(Rule("requests", "umans", cooldown_ms=0)))
    bench.wait(4_649)
    assert bench.fate("d") == "waits", "slots already cooling keep theirs"
    bench.wait(1)
    assert bench.fate("d") == "offered"


def test_k2_a_lowered_cap_counts_cooling_slots():
    bench = Bench(requests={"umans": 3})
    for name in ("a", "b", "c"):
        bench.call(name, CODER)
    bench.release("a")
    bench.cap("requests", "umans", 2)
    bench.release("b")
    bench.call("d", CODER)
    bench.wait(350)
    assert bench.fate("d") == "offered", "one lent, none cooling, two allowed"


def test_k3_a_cooldown_without_a_cap_imposes_none_and_applies_when_one_is_set():
    bench = Bench()
    bench.do(cmd.SetRule(Rule("requests", "umans", cooldown_ms=5_000)))
    assert [bench.call(f"c{n}", CODER) for n in range(5)] == ["granted"] * 5
    for n in range(5):
        bench.release(f"c{n}")
    bench.cap("requests", "umans", 1)
    assert bench.call("a", CODER) == "granted"
    bench.release("a")
    assert bench.call("b", CODER) == "waits"
    bench.wait(5_000)
    assert bench.fate("b") == "offered"


def test_k3_removing_a_cap_keeps_the_cooldown_for_the_next():
    bench = Bench()
    bench.do(cmd.SetRule(Rule("requests", "umans", cap=2, on_429="step", cooldown_ms=5_000)))
    bench.do(cmd.RemoveCap("requests", "umans"))
    bench.cap("requests", "umans", 1)
    assert bench.state.rules.caps["requests", "umans"].cooldown_ms == 5_000


def test_k1_a_pause_that_ends_early_leaves_the_end_of_the_cooldown():
    bench = Bench(requests={"umans": 1})
    bench.call("a", CODER)
    bench.call("b", CODER)
    bench.do(cmd.Pause("requests", "umans", for_ms=100_000))
    bench.release("a")
    bench.do(cmd.Resume("requests", "umans"))
    bench.wait(350)
    assert bench.fate("b") == "offered"


def test_k1_whoever_waits_in_a_paused_pool_waits_for_both():
    bench = Bench(requests={"umans": 1})
    bench.call("a", CODER)
    bench.call("b", CODER)
    bench.do(cmd.Pause("requests", "umans", for_ms=100))
    bench.release("a")
    bench.wait(100)
    assert bench.fate("b") == "waits"
    bench.wait(250)
    assert bench.fate("b") == "offered"
