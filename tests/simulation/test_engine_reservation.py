"""Nothing waits for ever: tickets that others could overtake without end.

The others come in a stream that never leaves a pool empty. A ticket that needs what is never free at one moment is
kept what frees up, after a bounded wait; and no slot is kept for one who could not take it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.core.invariants import check_settled
from fleetgate.core.queue.reservations import RESERVE_AFTER_MS
from tests.property.harness import CODER, HOUR, MINUTE, OPUS, SECOND, SONNET, Bench

Ask = Callable[[Bench, str], object]


class Stream:
    """Others: as soon as one of them ends, the next asks, so that there is always one in the queue.

    With `apart_ms` the first ones come one after the other, and never end together.
    """

    def __init__(self, bench: Bench, name: str, ask: Ask, hold_ms: int, number: int, apart_ms: int = 0) -> None:
        self.bench, self.name, self.ask, self.hold_ms = bench, name, ask, hold_ms
        self.asked = 0
        for _ in range(number):
            self.come()
            bench.wait(apart_ms)

    def come(self) -> None:
        self.asked += 1
        self.ask(self.bench, f"{self.name}-{self.asked}")

    def step(self) -> None:
        for lease in list(self.bench.state.leases.values()):
            if lease.id.startswith(f"{self.name}-") and lease.granted_at + self.hold_ms <= self.bench.now:
                self.bench.release(lease.id)
                self.come()


def go_on(bench: Bench, *streams: Stream, ms: int = SECOND) -> None:
    """Time passes: grants are claimed, leases end, the next ones ask."""
    bench.wait(ms)
    for lease in list(bench.state.leases.values()):
        if not lease.claimed:
            bench.do(cmd.Claim(lease.id))
    for stream in streams:
        stream.step()


def entered_after_ms(bench: Bench, ident: str, *streams: Stream, most_ms: int, step_ms: int = SECOND) -> int:
    """Let the streams run until a ticket is granted its slots."""
    began = bench.now
    while bench.now - began <= most_ms:
        if bench.fate(ident) in ("offered", "granted"):
            return bench.now - began
        go_on(bench, *streams, ms=step_ms)
    raise AssertionError(f"{ident} still waits after {most_ms} ms, behind {bench.of(ev.Granted)[-3:]}")


def two_streams(bench: Bench) -> tuple[Stream, Stream]:
    """Four slots of the host are always taken, and never more than two of them come free together."""
    ones = Stream(bench, "one", lambda b, i: b.agent(i, SONNET), 10 * SECOND, 2)
    bench.wait(5 * SECOND)
    return ones, Stream(bench, "more", lambda b, i: b.agent(i, SONNET), 10 * SECOND, 4)


def test_two_pools_that_are_never_free_together_are_entered_within_a_bound():
    """The opus slot goes from hand to hand on the other host, this host is full of sonnets, out of step."""
    bench = Bench(agents={"host": 2, "anthropic/claude-opus-*": 1})
    opus = Stream(bench, "opus", lambda b, i: b.agent(i, OPUS, host="h2"), 20 * SECOND, 3)
    bench.wait(7 * SECOND)
    sonnet = Stream(bench, "sonnet", lambda b, i: b.agent(i, SONNET), 20 * SECOND, 4)
    bench.agent("both", OPUS)
    waited = entered_after_ms(bench, "both", opus, sonnet, most_ms=5 * MINUTE)
    assert waited <= 2 * RESERVE_AFTER_MS + 2 * 20 * SECOND


def test_that_holds_between_projects_too():
    bench = Bench(agents={"host": 2, "anthropic/claude-opus-*": 1})
    opus = Stream(bench, "opus", lambda b, i: b.agent(i, OPUS, host="h2", project="x"), 20 * SECOND, 3)
    bench.wait(7 * SECOND)
    sonnet = Stream(bench, "sonnet", lambda b, i: b.agent(i, SONNET, project="y"), 20 * SECOND, 4)
    bench.agent("both", OPUS, project="z")
    waited = entered_after_ms(bench, "both", opus, sonnet, most_ms=5 * MINUTE)
    assert waited <= 2 * RESERVE_AFTER_MS + 2 * 20 * SECOND


def test_that_holds_across_restarts():
    bench = Bench(agents={"host": 2, "anthropic/claude-opus-*": 1})
    opus = Stream(bench, "opus", lambda b, i: b.agent(i, OPUS, host="h2"), 20 * SECOND, 3)
    bench.wait(7 * SECOND)
    sonnet = Stream(bench, "sonnet", lambda b, i: b.agent(i, SONNET), 20 * SECOND, 4)
    bench.agent("both", OPUS)
    for _ in range(100):
        bench.restart()
        try:
            entered_after_ms(bench, "both", opus, sonnet, most_ms=5 * SECOND)
        except AssertionError:
            continue
        return
    raise AssertionError("both still waits")


def test_weighted_slots_do_not_starve():
    bench = Bench(agents={"host": 4})
    streams = two_streams(bench)
    bench.agent("three", SONNET, slots=3)
    waited = entered_after_ms(bench, "three", *streams, most_ms=5 * MINUTE)
    assert waited <= 2 * RESERVE_AFTER_MS + 10 * SECOND


def test_weighted_slots_do_not_starve_where_slots_cool_down():
    bench = Bench(requests={"umans": 4})
    ones = Stream(bench, "one", lambda b, i: b.call(i, CODER), 2 * SECOND, 8)
    bench.call("three", CODER, slots=3)
    waited = entered_after_ms(bench, "three", ones, most_ms=5 * MINUTE, step_ms=100)
    assert waited <= 2 * RESERVE_AFTER_MS + 5 * SECOND


def test_nobody_is_held_back_for_one_whose_environment_allows_it_less_than_others():
    """FLEETGATE_AGENTS=host=1 on a host that others keep at three: it waits for a quiet moment, as it was told to."""
    bench = Bench(agents={"host": 3})
    others = Stream(bench, "o", lambda b, i: b.agent(i, SONNET), 10 * SECOND, 5)
    bench.agent("alone", SONNET, caps=(("host", 1),))
    for _ in range(300):
        go_on(bench, others)
        assert bench.used("host:h1") == 3
    assert bench.fate("alone") == "waits"
    others.hold_ms = HOUR
    for ident in bench.running():
        bench.release(ident)
    for ident in [ident for ident in bench.state.tickets if ident != "alone"]:
        bench.do(cmd.Cancel(ident))
    for ident in bench.running():
        bench.release(ident)
    assert bench.fate("alone") == "offered"


def test_nobody_is_held_back_in_a_pool_that_is_only_counted_for_them():
    """Opus is capped by my environment alone: what is kept in the pool that is built in does not concern me."""
    bench = Bench(agents={"host": 50})
    six = (("opus", 6),)
    others = Stream(bench, "o", lambda b, i: b.agent(i, OPUS, family_caps=six), 10 * SECOND, 8, SECOND)
    bench.agent("plain", OPUS)
    for _ in range(100):
        if bench.state.reserved:
            break
        go_on(bench, others)
    assert bench.state.reserved == {"plain": ("agents */claude-opus-*:anthropic",)}
    assert bench.agent("own", OPUS, caps=(("anthropic", 20),)) == "granted"


def test_one_with_the_ordinary_limit_does_not_starve_behind_those_who_may_take_more():
    """AIDEVOPS_OPUS_CONCURRENCY_CAP=6 in some shells keeps six there, and the file says four."""
    bench = Bench(agents={"host": 50, "anthropic/claude-opus-*": 4})
    six = (("opus", 6),)
    others = Stream(bench, "o", lambda b, i: b.agent(i, OPUS, family_caps=six), 10 * SECOND, 8, SECOND)
    bench.agent("plain", OPUS)
    assert entered_after_ms(bench, "plain", others, most_ms=5 * MINUTE) <= 2 * RESERVE_AFTER_MS + 10 * SECOND


def test_a_ticket_that_comes_to_the_head_later_is_watched_too():
    """The one before it leaves; nobody else moves."""
    bench = Bench(agents={"host": 4})
    streams = two_streams(bench)
    bench.agent("first", SONNET, slots=3)
    bench.agent("second", SONNET, slots=3)
    bench.do(cmd.Cancel("first"))
    waited = entered_after_ms(bench, "second", *streams, most_ms=5 * MINUTE)
    assert waited <= 2 * RESERVE_AFTER_MS + 10 * SECOND


def test_a_ticket_that_was_passed_over_is_watched_again_when_it_speaks():
    bench = Bench(agents={"host": 4})
    bench.agent("x", SONNET, slots=4)
    bench.agent("three", SONNET, slots=3)
    bench.wait(SECOND)
    bench.release("x")
    bench.wait(10 * SECOND)
    assert bench.fate("three") == "away"
    streams = two_streams(bench)
    bench.do(cmd.Ask("three"))
    waited = entered_after_ms(bench, "three", *streams, most_ms=5 * MINUTE)
    assert waited <= 2 * RESERVE_AFTER_MS + 10 * SECOND


def overtaken(bench: Bench, slots: int = 3) -> tuple[Stream, Stream]:
    """A ticket `wide` for which slots of the host are kept."""
    streams = two_streams(bench)
    bench.agent("wide", SONNET, slots=slots)
    for _ in range(100):
        if bench.state.reserved:
            break
        go_on(bench, *streams)
    assert bench.state.reserved == {"wide": ("agents host:h1",)}
    return streams


@pytest.mark.parametrize(
    "command",
    [
        cmd.Cancel("wide"),
        cmd.Lost(("p-wide",)),
        cmd.Bump("wide", 0),
        cmd.SetRule(Rule("agents", "host", cap=2)),
        cmd.RemoveCap("agents", "host"),
    ],
)
def test_what_was_kept_is_free_when_the_ticket_leaves_or_moves_or_can_no_longer_take_it(command):
    bench = Bench(agents={"host": 4})
    overtaken(bench)
    assert bench.state.pools["agents host:h1"].reservation is not None
    bench.do(command)
    assert bench.state.reserved == {}
    assert all(pool.reservation is None for pool in bench.state.pools.values())


@pytest.mark.parametrize(
    "command",
    [
        cmd.SetRule(Rule("agents", "umans", cap=3)),
        cmd.SetRule(Rule("agents", "host", cooldown_ms=5)),
        cmd.LoadFile("config.toml", "new", 99, (Rule("agents", "host", cap=4), Rule("requests", "umans", cap=2))),
        cmd.BackOff("umans/coder", "overloaded"),
    ],
)
def test_what_is_kept_stays_kept_when_something_else_changes(command):
    """A busy fleet changes all the time: that must not send the overtaken back to where they were."""
    bench = Bench(agents={"host": 4})
    streams = overtaken(bench)
    bench.do(command)
    assert bench.state.reserved == {"wide": ("agents host:h1",)}
    reservation = bench.state.pools["agents host:h1"].reservation
    assert reservation is not None
    assert reservation.queue is bench.state.queues[bench.state.tickets["wide"].spec]
    entered_after_ms(bench, "wide", *streams, most_ms=20 * SECOND)


def test_what_is_kept_in_a_pool_that_the_rules_make_superfluous_is_free():
    """The pool is still there, for others; the ticket does not need it any more."""
    bench = Bench(agents={"host": 50})
    six = (("opus", 6),)
    others = Stream(bench, "o", lambda b, i: b.agent(i, OPUS, family_caps=six), 10 * SECOND, 8, SECOND)
    bench.agent("plain", OPUS)
    for _ in range(100):
        if bench.state.reserved:
            break
        go_on(bench, others)
    assert bench.state.reserved == {"plain": ("agents */claude-opus-*:anthropic",)}
    bench.agent("x", "anthropic/claude-opus-4-5")
    bench.cap("agents", "anthropic/claude-opus-4-6", 3)
    assert bench.state.reserved == {}
    assert bench.state.pools["agents */claude-opus-*:anthropic"].reservation is None


def test_a_reservation_survives_a_restart():
    bench = Bench(agents={"host": 4})
    streams = overtaken(bench)
    bench.restart()
    assert bench.state.reserved == {"wide": ("agents host:h1",)}
    entered_after_ms(bench, "wide", *streams, most_ms=20 * SECOND)


def test_a_ticket_that_moved_gets_another_reservation():
    bench = Bench(agents={"host": 4})
    streams = overtaken(bench)
    bench.do(cmd.Bump("wide", 0))
    entered_after_ms(bench, "wide", *streams, most_ms=2 * RESERVE_AFTER_MS + 20 * SECOND)


def test_nothing_is_kept_for_one_whose_cap_became_too_small():
    """A person lowers the cap below what it asks for: others must not wait for it until it expires."""
    bench = Bench(agents={"host": 4})
    streams = overtaken(bench)
    bench.cap("agents", "host", 2)
    before = len(bench.of(ev.Granted))
    for _ in range(200):
        go_on(bench, *streams)
    assert len(bench.of(ev.Granted)) - before >= 2 * 200 // 11 - 4
    assert bench.state.reserved == {}


@pytest.mark.parametrize("how", ["reduced", "foreign", "paused"])
def test_nothing_is_kept_for_one_who_could_not_take_it(how):
    """A limit lowered by a rate limit, foreign agents, or a pause: the reservation is given up, and comes again."""
    bench = Bench(rules=(Rule("agents", "anthropic", cap=4, on_429="step"), Rule("agents", "host", cap=50)))
    streams = two_streams(bench)
    bench.agent("wide", SONNET, slots=4)
    for _ in range(100):
        if bench.state.reserved:
            break
        go_on(bench, *streams)
    assert bench.state.reserved == {"wide": ("agents anthropic",)}
    if how == "reduced":
        bench.do(cmd.Report(kind="agents", target="anthropic", retry_after_ms=0))
    elif how == "foreign":
        bench.do(cmd.Observe("h1", ((SONNET, 1),)))
    else:
        bench.do(cmd.Pause("agents", "anthropic", for_ms=SECOND))
    assert bench.state.reserved == {}
    for _ in range(60):
        go_on(bench, *streams)
        assert how == "paused" or bench.state.reserved == {}
    if how == "reduced":
        bench.cap("agents", "anthropic", 4)
    elif how == "foreign":
        bench.do(cmd.Observe("h1"))
    entered_after_ms(bench, "wide", *streams, most_ms=3 * RESERVE_AFTER_MS)


def stays_full(bench: Bench, first_ms: int) -> tuple[Stream, int]:
    """`both` was passed in both its pools; now opus is taken, by another host, for two hours. Idle slot-time here."""
    bench.agent("opus-1", OPUS, host="h2")
    sonnet = Stream(bench, "sonnet", lambda b, i: b.agent(i, SONNET), 10 * SECOND, 5)
    bench.agent("both", OPUS)
    bench.wait(first_ms)
    bench.agent("opus-2", OPUS, host="h2", priority=-1)
    bench.release("opus-1")
    assert bench.fate("opus-2") == "offered", "it passed `both`, whose host is full"
    bench.do(cmd.Claim("opus-2", child="c"))
    idle_ms = 0
    for _ in range(2 * HOUR // SECOND):
        go_on(bench, sonnet)
        idle_ms += SECOND * (2 - bench.used("host:h1"))
    return sonnet, idle_ms


def test_a_pool_that_stays_full_leaves_no_slot_of_another_idle():
    """Opus slots are held for long, as everybody knows by now: only opus is kept, and it is never free."""
    bench = Bench(agents={"host": 2, "anthropic/claude-opus-*": 1})
    bench.agent("opus-0", OPUS, host="h2")
    bench.wait(HOUR)
    bench.release("opus-0")
    sonnet, idle_ms = stays_full(bench, SECOND)
    assert idle_ms == 0
    bench.release("opus-2")
    entered_after_ms(bench, "both", sonnet, most_ms=20 * SECOND)


def test_not_for_long_at_least_where_nobody_could_know():
    """So far opus slots came back in a second: it looked as if the host were the slower one."""
    bench = Bench(agents={"host": 2, "anthropic/claude-opus-*": 1})
    sonnet, idle_ms = stays_full(bench, SECOND)
    assert idle_ms <= 2 * RESERVE_AFTER_MS
    bench.release("opus-2")
    entered_after_ms(bench, "both", sonnet, most_ms=20 * SECOND)


@pytest.mark.parametrize("hold_s", [45, 100, 400])
def test_the_bound_holds_for_long_holds_in_both_pools(hold_s):
    """Whatever was kept in vain and let go: in the end it is kept for long enough."""
    bench = Bench(agents={"host": 1, "anthropic/claude-opus-*": 1})
    opus = Stream(bench, "opus", lambda b, i: b.agent(i, OPUS, host="h2"), hold_s * SECOND, 3)
    bench.wait(hold_s * SECOND // 2)
    sonnet = Stream(bench, "sonnet", lambda b, i: b.agent(i, SONNET), hold_s * SECOND, 4)
    bench.agent("both", OPUS)
    entered_after_ms(bench, "both", opus, sonnet, most_ms=7 * hold_s * SECOND + 4 * RESERVE_AFTER_MS)


def test_a_ticket_whose_pools_are_all_full_and_that_nobody_passed_keeps_nothing():
    bench = Bench(agents={"host": 1, "anthropic/claude-opus-*": 1})
    bench.agent("a", OPUS)
    bench.agent("b", OPUS)
    bench.wait(HOUR)
    assert bench.of(ev.Reserved) == []


def test_one_pool_is_kept_after_the_other_the_slowest_first():
    bench = Bench(agents={"host": 2, "anthropic/claude-opus-*": 1})
    opus = Stream(bench, "opus", lambda b, i: b.agent(i, OPUS, host="h2"), 61 * SECOND, 3)
    bench.wait(7 * SECOND)
    sonnet = Stream(bench, "sonnet", lambda b, i: b.agent(i, SONNET), 20 * SECOND, 4)
    bench.agent("both", OPUS)
    entered_after_ms(bench, "both", opus, sonnet, most_ms=10 * MINUTE)
    kept = [event.pools for event in bench.of(ev.Reserved) if isinstance(event, ev.Reserved)]
    assert kept[:2] == [
        ("agents anthropic/claude-opus-*",),
        ("agents anthropic/claude-opus-*", "agents host:h1"),
    ]


def test_two_who_need_the_same_pools_are_kept_for_one_after_the_other():
    bench = Bench(agents={"host": 4})
    streams = two_streams(bench)
    bench.agent("three", SONNET, slots=3)
    bench.agent("four", SONNET, slots=4)
    for _ in range(300):
        go_on(bench, *streams)
        assert len(bench.state.reserved) <= 1
        check_settled(bench.state, bench.now)
        for ident in ("three", "four"):
            if bench.fate(ident) == "granted":
                bench.release(ident)
    assert (bench.fate("three"), bench.fate("four")) == ("released", "released")
