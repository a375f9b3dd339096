"""Rule A4 between projects: start-time fair queueing, watched over virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from tests.property.harness import CODER, HOUR, MINUTE, OPUS, SECOND, SONNET, Bench


def granted(bench: Bench, since: int = 0) -> list[str]:
    """Ids in the order of their grants."""
    return [event.id for event, _ in bench.log[since:] if isinstance(event, ev.Granted)]


def projects(bench: Bench, since: int = 0) -> list[str]:
    """The project of each grant: ids are `project-number`."""
    return [ident.split("-")[0] for ident in granted(bench, since)]


def work(bench: Bench, hold_ms: Callable[[str], int], until: Callable[[], bool], most_steps: int = 3_000) -> None:
    """Every lease is claimed at once and released when its hold is over; until nothing runs, or `until` says so."""
    for _ in range(most_steps):
        for lease in list(bench.state.leases.values()):
            if not lease.claimed:
                bench.do(cmd.Claim(lease.id))
        ends = {lease.id: lease.granted_at + hold_ms(lease.id) for lease in bench.state.leases.values()}
        if until() or not (ends or bench.state.tickets):
            return
        if not ends:  # slots cool down
            bench.wait((bench.engine.next_deadline() or bench.now) - bench.now)
            continue
        first = min(ends, key=lambda ident: ends[ident])
        bench.wait(max(ends[first] - bench.now, 0))
        bench.release(first)
    raise AssertionError("it never ended")


def never() -> bool:
    return False


def test_a4_three_projects_with_many_and_few_tickets_share_a_full_pool_equally():
    bench = Bench(agents={"host": 3})
    for n in range(100):
        bench.agent(f"a-{n}", SONNET, project="a")
    for n in range(6):
        bench.agent(f"b-{n}", SONNET, project="b")
        bench.agent(f"c-{n}", SONNET, project="c")
    began = len(bench.log)
    work(bench, lambda ident: MINUTE, never)
    order = projects(bench, began)
    first = Counter(order[:18])
    assert max(first.values()) - min(first.values()) <= 2, first
    assert len(order) == 109, "three had entered at once"
    for upto in range(3, 19, 3):
        share = Counter(order[:upto])
        assert share["b"] >= upto // 3 - 1
        assert share["c"] >= upto // 3 - 1


def test_a4_shares_are_of_time_and_not_of_grants():
    """One project holds its slots five times as long: it gets a fifth of the grants."""
    bench = Bench(agents={"host": 2})
    for n in range(60):
        bench.agent(f"long-{n}", SONNET, project="long")
        bench.agent(f"short-{n}", SONNET, project="short")
    hold = {"long": 5 * MINUTE, "short": MINUTE}
    time: Counter[str] = Counter()

    def hold_ms(ident: str) -> int:
        return hold[ident.split("-")[0]]

    work(bench, hold_ms, lambda: projects(bench).count("short") > 50)
    for event in bench.of(ev.Released):
        assert isinstance(event, ev.Released)
        time[event.project] += event.held_ms
    assert 0.7 < time["long"] / time["short"] < 1.4, time


def test_a4_a_project_that_returns_from_idle_has_no_credit():
    bench = Bench(agents={"host": 1})
    bench.agent("idle-0", SONNET, project="idle")
    bench.wait(SECOND)
    bench.release("idle-0")
    for n in range(30):
        bench.agent(f"busy-{n}", SONNET, project="busy")
    work(bench, lambda ident: MINUTE, lambda: projects(bench).count("busy") == 10)
    began = len(bench.log)
    for n in range(1, 11):
        bench.agent(f"idle-{n}", SONNET, project="idle")
    work(bench, lambda ident: MINUTE, lambda: len(granted(bench, began)) == 10)
    assert 4 <= projects(bench, began).count("busy") <= 6


def test_a4_slots_given_back_early_are_no_credit_either():
    """What was charged for fifty short calls is put right, and not saved up."""
    bench = Bench(agents={"host": 50})
    for n in range(50):
        bench.agent(f"brief-{n}", SONNET, project="brief")
    bench.wait(1)
    for n in range(50):
        bench.release(f"brief-{n}")
    bench.cap("agents", "host", 1)
    for n in range(20):
        bench.agent(f"steady-{n}", SONNET, project="steady")
    work(bench, lambda ident: MINUTE, lambda: projects(bench).count("steady") == 5)
    began = len(bench.log)
    for n in range(50, 70):
        bench.agent(f"brief-{n}", SONNET, project="brief")
    work(bench, lambda ident: MINUTE, lambda: len(granted(bench, began)) == 10)
    assert 4 <= projects(bench, began).count("steady") <= 6


def test_a4_a_project_whose_calls_fail_at_once_does_not_take_the_pool():
    """Its slots cool down after each: that is time too."""
    bench = Bench(requests={"umans": 1})
    bench.call("broken-x", CODER, project="broken")
    for n in range(200):
        bench.call(f"broken-{n}", CODER, project="broken")
    for n in range(20):
        bench.call(f"good-{n}", CODER, project="good")
    hold = {"broken": 0, "good": 350}
    work(bench, lambda ident: hold[ident.split("-")[0]], lambda: len(granted(bench)) == 60)
    assert projects(bench).count("good") >= 15, Counter(projects(bench))


def test_a4_weighted_slots_are_charged_by_their_weight():
    bench = Bench(agents={"host": 4})
    bench.agent("wide-x", SONNET, project="wide", slots=4)
    for n in range(30):
        bench.agent(f"wide-{n}", SONNET, project="wide", slots=2)
        bench.agent(f"slim-{n}", SONNET, project="slim")
        bench.agent(f"slim-{n + 30}", SONNET, project="slim")
    work(bench, lambda ident: MINUTE, lambda: len(granted(bench)) == 60)
    share = Counter(projects(bench)[20:])
    assert 1.7 < share["slim"] / share["wide"] < 2.3, share


def test_a4_a_project_that_waits_for_another_pool_holds_nobody_up():
    bench = Bench(agents={"host": 1, "anthropic/claude-opus-*": 1})
    bench.agent("x-0", OPUS, project="x", supervisor=True)
    bench.agent("stuck-0", OPUS, project="stuck")
    for n in range(10):
        bench.agent(f"b-{n}", SONNET, project="b")
    work(bench, lambda ident: HOUR if ident == "x-0" else MINUTE, lambda: projects(bench).count("b") == 10)
    assert bench.fate("stuck-0") == "waits"


def test_a4_nor_is_waiting_for_another_pool_a_credit_in_this_one():
    """Two hours in the queue for opus do not entitle a project to the host for the next two hours."""
    bench = Bench(agents={"host": 1, "anthropic/claude-opus-*": 1})
    bench.agent("x-0", OPUS, project="x", supervisor=True)
    bench.agent("f-0", OPUS, project="f")
    for n in range(200):
        bench.agent(f"g-{n}", SONNET, project="g")

    def hold_ms(ident: str) -> int:
        return 100 * HOUR if ident == "x-0" else MINUTE

    work(bench, hold_ms, lambda: projects(bench).count("g") == 60)
    began = len(bench.log)
    for n in range(1, 41):
        bench.agent(f"f-{n}", SONNET, project="f")
    work(bench, hold_ms, lambda: len(granted(bench, began)) == 20)
    assert 9 <= projects(bench, began).count("f") <= 11


@pytest.mark.parametrize("number", [2, 5])
def test_a4_with_a_single_project_the_queue_is_by_age(number):
    bench = Bench(agents={"host": number})
    for n in range(30):
        bench.agent(f"a-{n}", SONNET, since=bench.now - (n * 7919 % 31) * SECOND)
    waiting = sorted(bench.state.tickets.values(), key=lambda ticket: (ticket.order, ticket.arrival))
    began = len(bench.log)
    work(bench, lambda ident: MINUTE, never)
    assert granted(bench, began) == [ticket.id for ticket in waiting]


def test_a4_fairness_goes_on_where_it_was_after_a_restart():
    def run(restart: bool) -> list[str]:
        bench = Bench(agents={"host": 2, "anthropic": 1})
        for n in range(12):
            for project in ("a", "b", "c"):
                bench.agent(f"{project}-{n}", SONNET, project=project)
                bench.agent(f"{project}-x{n}", CODER, project=project)
        hold = {"a": MINUTE, "b": 3 * MINUTE, "c": 10 * SECOND}
        for _ in range(60):
            if restart:
                bench.restart()
            started = len(granted(bench))
            work(bench, lambda ident: hold[ident[0]], lambda before=started: len(granted(bench)) > before)  # type: ignore[misc]
        return granted(bench)

    assert run(restart=True) == run(restart=False)
