"""`simulate --from-history`: a replay of a log under the caps as they were gives what was measured, on every store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule, Spec
from fleetgate.simulate.history.comparison import Comparison, compare
from fleetgate.simulate.history.figures import Figures, Measure
from fleetgate.simulate.history.log_reader import LogReader, Row
from fleetgate.simulate.history.replay import CapChange, Replay
from tests.postgres_server import Server
from tests.simulation.history_workload import Workload
from tests.simulation.stores import InMemory, InPostgres, InSqlite, Store

STORES: dict[str, Callable[[Path], Store]] = {"memory": lambda _: InMemory(), "sqlite": InSqlite}


class Grants(Measure):
    """Remembers when each request was granted."""

    def see(self, event: ev.Event, now: int) -> None:
        super().see(event, now)
        if isinstance(event, ev.Granted):
            self.seen.append((event.id, now, event.model, event.waited_ms))

    seen: list[tuple[str, int, str, int]]


def grants(rows: list[Row], start: int = 0) -> list[tuple[str, int, str, int]]:
    return [
        (event.id, at, event.model, event.waited_ms)
        for _, at, event in rows
        if isinstance(event, ev.Granted) and at >= start
    ]


def replayed(
    reader: LogReader, changes: list[CapChange] | None = None
) -> tuple[Replay, list[tuple[str, int, str, int]]]:
    replay = Replay(reader.trace, changes or [])
    measure = replay.measure = Grants(replay.engine.state, reader.trace.start)
    measure.seen = []
    replay.run()
    return replay, measure.seen


def played(workload: Workload, until: int | None = None) -> tuple[list[Row], int]:
    workload.play(until)
    rows = list(workload.log.history())
    workload.log.close()
    return rows, workload.clock()


def compared(workload: Workload, rows: list[Row], end: int, *changes: CapChange) -> Comparison:
    return compare(rows, 0, end, workload.state, list(changes), set())


def of(found: Comparison, pool: str) -> tuple[Figures, Figures, Figures | None]:
    (each,) = [each for each in found.pools if each.pool == pool]
    return each.measured, each.unchanged, each.what_if


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("on_429", ["adapt", "step", "pause", "fixed"])
@pytest.mark.parametrize("seed", [1, 2])
def test_replaying_the_caps_as_they_were_grants_every_request_when_it_really_was(
    tmp_path: Path, store: str, on_429: str, seed: int
) -> None:
    workload = Workload(STORES[store](tmp_path), seed, 250, on_429=on_429)
    rows, end = played(workload)
    reader = LogReader(rows, 0, end, workload.state)
    replay, seen = replayed(reader)
    assert seen == grants(rows)
    assert replay.measure.figures(end) == reader.measure.figures(end)
    assert replay.guessed == 0


def test_the_same_holds_for_a_long_log_in_which_much_happens_in_the_same_millisecond() -> None:
    workload = Workload(InMemory(), 3, 3_000, every_ms=1_800)
    rows, end = played(workload)
    assert len(rows) > 9_000
    _, seen = replayed(LogReader(rows, 0, end, workload.state))
    assert seen == grants(rows)


def test_the_same_holds_on_postgresql(postgres: Server) -> None:
    workload = Workload(InPostgres(postgres), 3, 60)
    rows, end = played(workload)
    _, seen = replayed(LogReader(rows, 0, end, workload.state))
    assert seen == grants(rows)


@pytest.mark.parametrize("seed", [5, 6])
def test_a_replay_may_begin_in_the_middle_with_what_was_held_and_waited_for_then(tmp_path: Path, seed: int) -> None:
    workload = Workload(InMemory(), seed, 250)
    rows, end = played(workload)
    start = (rows[0][1] + end) // 2
    reader = LogReader(rows, start, end, workload.state)
    _, seen = replayed(reader)
    assert seen == grants(rows, start)


def test_a_replay_may_end_in_the_middle_of_everything(tmp_path: Path) -> None:
    workload = Workload(InMemory(), 7, 250)
    rows, end = played(workload, workload.clock() + 200_000)
    reader = LogReader(rows, 0, end, workload.state)
    assert reader.trace.still_running
    replay, seen = replayed(reader)
    assert seen == grants(rows)
    assert replay.measure.figures(end) == reader.measure.figures(end)


@pytest.mark.parametrize("seed", [8, 9])
def test_a_pruned_log_begins_late_and_soon_gives_what_was_measured(seed: int) -> None:
    workload = Workload(InMemory(), seed, 400, calm=True, every_ms=4_000)
    rows, end = played(workload)
    kept = rows[len(rows) // 3 :]
    found = compare(kept, 0, end, workload.state, [], set())
    assert found.start == kept[0][1]
    assert "Older events are no longer kept" in " ".join(found.notes)
    assert len(found.pools) == 3
    for each in found.pools:
        assert each.measured.requests > 50
        assert each.unchanged.finished == pytest.approx(each.measured.finished, abs=3)
        assert each.unchanged.wait_mean_s == pytest.approx(each.measured.wait_mean_s, rel=0.1, abs=0.2)


def test_a_higher_cap_would_have_shortened_the_waits_and_a_lower_one_lengthened_them() -> None:
    workload = Workload(InMemory(), 11, 400, on_429="fixed", calm=True)
    rows, end = played(workload)
    means = []
    for cap in (3, 6, 12):
        found = compared(workload, rows, end, CapChange("requests", "umans", cap))
        measured, unchanged, what_if = of(found, "umans")
        assert [each.pool for each in found.pools] == ["umans"], "only what was changed is shown"
        assert what_if is not None
        assert measured == unchanged
        assert what_if.limit_mean == pytest.approx(cap, abs=0.05)
        means.append(what_if.wait_mean_s)
        if cap == 6:
            assert what_if == measured
    assert means[0] > means[1] > means[2]


def test_the_calls_of_a_run_follow_its_own_progress() -> None:
    workload = Workload(InMemory(), 12, 300, calm=True)
    rows, end = played(workload)
    reader = LogReader(rows, 0, end, workload.state)
    _, seen = replayed(reader, [CapChange("agents", "host", 1)])
    began = {ident: at for ident, at, _, _ in seen}
    calls = [ident for ident in began if "." in ident]
    assert calls
    for call in calls:
        assert began[call] >= began[call.partition(".")[0]], "no agent calls before it has started"
    assert len(began) < len(grants(rows)), "with one agent at a time, not all get their turn"


def test_a_cap_that_is_changed_in_the_log_stays_what_the_question_says() -> None:
    workload = Workload(InMemory(), 13, 300, on_429="fixed")
    rows, end = played(workload)
    assert sum(isinstance(event, ev.RuleSet) for _, _, event in rows) > 4
    measured, _, what_if = of(compared(workload, rows, end, CapChange("requests", "umans", 3)), "umans")
    assert what_if is not None
    assert what_if.limit_mean == pytest.approx(3, abs=0.05)
    assert measured.limit_mean != pytest.approx(3, abs=0.5)


def test_another_policy_answers_the_same_refusals_in_its_own_way() -> None:
    workload = Workload(InMemory(), 14, 400, on_429="pause")
    rows, end = played(workload)
    found = compared(workload, rows, end, CapChange("requests", "umans", None, "step"))
    measured, _, what_if = of(found, "umans")
    assert what_if is not None
    assert measured.limit_mean is not None
    assert what_if.limit_mean is not None
    assert what_if.limit_mean < measured.limit_mean - 0.5, "each refusal lowers the limit"
    assert "is refused here, too, unless fewer slots are in use than then" in " ".join(found.notes)


def refused_at_four(on_429: str) -> tuple[Workload, list[Row], int]:
    """Four calls at once, of which the provider refuses the last and takes its second try."""
    store = InMemory()
    workload = Workload(store, 18, 0)
    workload.replica.decide([cmd.SetRule(Rule("requests", "umans", cap=4, on_429=on_429, cooldown_ms=0))])

    def call(ident: str) -> None:
        workload.replica.decide([cmd.Acquire(ident, Spec(("umans/a",), "requests"), "h|b|0|9|1")])
        workload.replica.decide([cmd.Claim(ident)])
        store.clock.advance(500)
        workload.replica.decide([cmd.Active(ident)])

    for ident in ("a", "b", "c"):
        call(ident)
    call("d")
    workload.replica.decide([cmd.Release("d", "rate_limited", 1_000)])
    for ident in ("a", "b", "c"):
        store.clock.advance(10_000)
        workload.replica.decide([cmd.Release(ident)])
    call("d again")
    store.clock.advance(10_000)
    workload.replica.decide([cmd.Release("d again")])
    return workload, list(workload.log.history()), store.clock() + 100_000


@pytest.mark.parametrize("on_429", ["adapt", "step", "pause", "fixed"])
def test_a_call_is_refused_again_unless_fewer_slots_are_in_use_than_then(on_429: str) -> None:
    workload, rows, end = refused_at_four(on_429)
    for cap, refused in ((4, 1), (9, 1), (3, 0), (1, 0)):
        found = compared(workload, rows, end, CapChange("requests", "umans", cap))
        measured, unchanged, what_if = of(found, "umans")
        assert what_if is not None
        assert (measured.rate_limits, unchanged.rate_limits, what_if.rate_limits) == (1, 1, refused), cap
        assert what_if.finished + what_if.rate_limits == 5
        said = " ".join(found.notes)
        assert ("1 starts with fewer, and is not." in said) is (refused == 0)
        if not refused:
            assert what_if.limit_mean == pytest.approx(cap, abs=0.1), "no refusal lowers the limit"


def test_what_is_not_known_is_said() -> None:
    store = InMemory()
    workload = Workload(store, 15, 0)
    for number in range(10):
        workload.replica.decide([cmd.Acquire(f"a{number}", Spec(("umans/a",), "requests"), "h|b|0|9|1")])
    for number in (8, 9):
        workload.replica.decide([cmd.Cancel(f"a{number}")])
    workload.replica.decide([cmd.Acquire("no", Spec(("umans/a",), "requests"), "h|b|0|9|1", wait=False)])
    store.clock.advance(60_000)
    for number in range(6):
        workload.replica.decide([cmd.Release(f"a{number}")])
    rows = list(workload.log.history())
    found = compared(workload, rows, store.clock() + 1, CapChange("requests", "umans", 10, "fixed"))
    said = " ".join(found.notes)
    assert "requests never started then and start here" in said
    assert "1 requests that did not wait were refused" in said
    assert "more than was ever accepted" in said


def test_an_empty_log_has_nothing_to_replay() -> None:
    workload = Workload(InMemory(), 16, 0)
    rows = list(workload.log.history())
    assert compared(workload, rows, workload.clock(), CapChange("requests", "umans", 2)).pools == []
    assert compared(workload, [], workload.clock()).pools == []


def test_a_cap_where_there_was_none_makes_a_pool() -> None:
    workload = Workload(InMemory(), 17, 200, calm=True)
    workload.replica.decide([cmd.SetRule(Rule("agents", "project", cap=50))])
    rows, end = played(workload)
    found = compared(workload, rows, end, CapChange("requests", "umans/a", 1))
    measured, _, what_if = of(found, "umans/a")
    assert measured == Figures()
    assert what_if is not None
    assert what_if.requests > 20
    assert what_if.wait_mean_s > 1
