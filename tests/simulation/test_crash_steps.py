"""One transaction, and the process dies or the store fails at each of its steps in turn (rules L2, Q2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.errors import BadRequest, InternalError
from fleetgate.core.invariants import check_invariants
from fleetgate.core.state.state import State
from fleetgate.gate.replica import replica
from fleetgate.gate.replica.lost_log_recovery import LOCAL_MS
from fleetgate.gate.replica.replica import Replica
from fleetgate.gate.replica.side_rows import TICKET_NEWS
from fleetgate.log.protocol import START, Commit, LogReplaced, Position, Stored, StoreError
from tests.postgres_server import Server
from tests.simulation.books import Books
from tests.simulation.faults import ERROR, KILL, KINDS, FaultyLog, Killed
from tests.simulation.stores import InMemory, InPostgres, InSqlite, Store
from tests.simulation.world import Process, compare, picture

SPEC = Spec(models=("umans/coder",), kind="requests")
CAP = cmd.SetRule(Rule("requests", "umans", cap=1, on_429="step", cooldown_ms=0))
FILE = cmd.LoadFile("/etc/fleetgate.toml", "digest", 1, (Rule("requests", "umans", cap=1, on_429="step"),))


STORES = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


def make_store(kind: str, folder: Path, request: pytest.FixtureRequest) -> Store:
    if kind == "postgres":
        server: Server = request.getfixturevalue("postgres")
        return InPostgres(server)
    return InMemory() if kind == "memory" else InSqlite(folder)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return make_store(request.param, tmp_path, request)


class Cast:
    """A few processes on one store: enough for one scene."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.all: list[Process] = []

    def enter(self, name: str) -> Process:
        process = Process(name, FaultyLog(self.store.open()))
        self.all.append(process)
        return process

    def exit(self) -> None:
        for process in self.all:
            process.log.bury()


@pytest.fixture
def cast(store: Store) -> Iterator[Cast]:
    cast = Cast(store)
    yield cast
    cast.exit()


def ask(process: Process, ident: str, *, wait: bool = True) -> cmd.Acquire:
    return cmd.Acquire(ident, SPEC, process.name, wait, wake=process.replica.address)


def whole_log(store: Store) -> list[Commit]:
    log = store.open()
    commits = log.read(START)
    log.close()
    return commits


def replayed(commits: list[Commit]) -> State:
    """What the log says, and the books agree."""
    engine, books = Engine(), Books()
    for commit in commits:
        engine.replay(commit.events, commit.at)
        for event in commit.events:
            books.enter(event, commit.at)
    check_invariants(engine.state)
    assert engine.state.leases.keys() == books.leases.keys()
    assert engine.state.tickets.keys() == books.tickets.keys()
    return engine.state


def agree(store: Store, *processes: Process) -> State:
    """Everybody who catches up sees what a fresh replay of the whole log sees."""
    fresh = replayed(whole_log(store))
    now = max(store.clock(), fresh.at)
    for process in processes:
        compare(process.name, picture(process.replica.catch_up(), now), picture(fresh, now))
    return fresh


# Every step of a transaction.


def scene(store: Store, cast: Cast) -> tuple[Process, Process, list[cmd.Command]]:
    """`writer` holds the only slot and `waiter` waits in the queue; the batch hands over and asks for one more."""
    writer, waiter = cast.enter("writer"), cast.enter("waiter")
    writer.replica.decide([FILE, CAP, ask(writer, "held")])
    waiter.replica.decide([ask(waiter, "next")])
    store.clock.advance(1_000)
    return writer, waiter, [cmd.Release("held"), ask(writer, "later"), cmd.Bump("nobody")]


@pytest.fixture(autouse=True)
def _the_same_steps_on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decider that has not read for a while reads once more before it takes the lock: not here."""
    monkeypatch.setattr(replica, "_STALE_S", 1e9)


def steps_of_the_scene(store: Store) -> list[str]:
    cast = Cast(store)
    writer, _, batch = scene(store, cast)
    writer.log.arm()
    writer.replica.decide(batch)
    steps = list(writer.log.steps)
    cast.exit()
    return steps


@pytest.mark.parametrize("fault", KINDS)
@pytest.mark.parametrize("kind", STORES)
def test_L2_Q2_at_whichever_step_it_ends_a_batch_is_in_the_log_whole_or_not_at_all(
    kind: str, fault: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    learn = tmp_path / "learn"
    learn.mkdir()
    steps = steps_of_the_scene(make_store(kind, learn, request))
    wanted = {"lock", "locked", "begin", "begun", "read", "was read", "now", "append", "appended", "unlock", "wake"}
    assert wanted <= set(steps)
    if kind == "sqlite":
        assert {"sql BEGIN", "sql INSERT", "sql COMMIT", "sql COMMITTED"} <= set(steps)
    committed_at = steps.index({"sqlite": "sql COMMITTED", "postgres": "trip COMMITTED"}.get(kind, "appended"))
    for index, step in enumerate(steps):
        folder = tmp_path / f"{index}"
        folder.mkdir()
        store = make_store(kind, folder, request)
        cast = Cast(store)
        try:
            # A connection that is lost is no failure: it is decided again, on another one.
            again = fault == ERROR and step.startswith("trip")
            _one_ending(store, cast, index, fault, committed=again or index >= committed_at)
        except BaseException as error:
            error.add_note(f"{fault} at step {index}, {step!r}, of {steps}")
            raise
        finally:
            cast.exit()


def _one_ending(store: Store, cast: Cast, index: int, fault: str, *, committed: bool) -> None:
    writer, waiter, batch = scene(store, cast)
    before = whole_log(store)
    writer.log.arm(index, fault)
    raised = None
    try:
        writer.replica.decide(batch)
    except (Killed, StoreError, KeyboardInterrupt) as error:
        raised = error
    if fault == KILL:
        assert isinstance(raised, Killed)
        writer.log.bury()
    elif raised is None:
        assert committed, f"the fault at {index} went by"
    writer.log.arm()
    after = whole_log(store)
    assert after[: len(before)] == before
    new = [type(event).__name__ for commit in after[len(before) :] for event in commit.events]
    assert new == (["Released", "Granted", "Queued"] if committed else [])
    told = waiter.log.side_value(TICKET_NEWS, "next")
    assert told == (b"granted" if committed else None), "what is beside the log did not change with it"
    # Whoever is left goes on: with the same commands if they may be lost, which neither doubles nor loses any.
    if fault == KILL:
        agree(store, waiter)
        waiter.replica.decide([cmd.Lost((writer.name,)), cmd.Claim("next")])
        assert agree(store, waiter).leases.keys() == {"next"}
        return
    agree(store, writer, waiter)
    writer.replica.decide(batch)
    waiter.replica.decide([cmd.Claim("next")])
    state = agree(store, writer, waiter)
    assert state.leases.keys() == {"next"}
    assert state.tickets.keys() == {"later"}


def test_Q2_a_commit_that_failed_drops_the_engine_and_the_next_decision_reads_the_log_anew(
    store: Store, cast: Cast
) -> None:
    writer, waiter, batch = scene(store, cast)
    reloads = writer.replica.reloads
    writer.log.arm(at="append", kind=ERROR)
    with pytest.raises(StoreError, match="injected"):
        writer.replica.decide(batch)
    writer.log.arm()
    writer.replica.decide(batch)
    assert writer.replica.reloads == reloads + 1
    agree(store, writer, waiter)


def test_Q2_a_failed_decision_leaves_nothing_to_tell(store: Store, cast: Cast) -> None:
    writer, _, batch = scene(store, cast)
    writer.log.arm(at="append", kind=ERROR)
    with pytest.raises(StoreError):
        writer.replica.decide(batch)
    assert writer.replica.made == []


# Commits of unknown fate.


@pytest.mark.parametrize("wait", [True, False])
def test_L2_a_request_whose_commit_came_and_whose_answer_did_not_is_asked_again_and_counts_once(
    store: Store, cast: Cast, wait: bool
) -> None:
    process = cast.enter("one")
    process.replica.decide([FILE])
    command = ask(process, "mine", wait=wait)
    process.log.arm(at="appended", kind=ERROR)
    with pytest.raises(StoreError, match="appended"):
        process.replica.decide([command])
    process.log.arm()
    (again,) = process.replica.decide([command])
    assert again.events == []
    assert again.error is None
    state = agree(store, process)
    assert state.leases.keys() == {"mine"}
    assert state.leases["mine"].claimed


def test_L2_a_request_that_was_queued_without_an_answer_keeps_its_place_when_it_asks_again(
    store: Store, cast: Cast
) -> None:
    one, two = cast.enter("one"), cast.enter("two")
    one.replica.decide([FILE, ask(one, "held")])
    two.log.arm(at="appended", kind=ERROR)
    with pytest.raises(StoreError):
        two.replica.decide([ask(two, "first")])
    two.log.arm()
    one.replica.decide([ask(one, "second")])
    two.replica.decide([ask(two, "first")])
    state = agree(store, one, two)
    assert [ticket.id for ticket in sorted(state.tickets.values(), key=lambda t: t.arrival)] == ["first", "second"]


# Interrupted while it reads.


def test_L2_an_interruption_while_it_catches_up_does_not_make_it_take_in_anything_twice(
    store: Store, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = cast.enter("writer"), cast.enter("reader")
    writer.replica.decide([FILE, CAP])
    reader.replica.catch_up()
    for number in range(3):
        writer.replica.decide([ask(writer, f"i{number}")])
    replay, calls = Engine.replay, 0

    def interrupted(engine: Engine, events: list[ev.Event], at: int) -> None:
        nonlocal calls
        calls += 1
        replay(engine, events, at)
        if calls == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "replay", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reader.replica.catch_up()
    monkeypatch.undo()
    agree(store, writer, reader)


# Snapshots.


def save(process: Process) -> None:
    state = process.replica.catch_up()
    process.log.save_snapshot(msgspec.json.encode(state.export()), process.replica.position)


@pytest.mark.parametrize("fault", KINDS)
def test_L2_a_snapshot_that_was_not_finished_is_as_if_nobody_had_begun_it(store: Store, cast: Cast, fault: str) -> None:
    writer, other = cast.enter("writer"), cast.enter("other")
    writer.replica.decide([FILE, CAP, ask(writer, "a")])
    save(writer)
    first = other.log.snapshot()
    assert first is not None
    step = "between file and pointer" if isinstance(store, InSqlite) else "save"
    writer.replica.decide([ask(writer, "b")])
    writer.log.arm(at=step, kind=fault)
    with pytest.raises((Killed, StoreError, KeyboardInterrupt)):
        writer.log.save_snapshot(msgspec.json.encode(writer.replica.state.export()), writer.replica.position)
    assert writer.log.failed_at == step
    writer.log.arm()
    if fault == KILL:
        writer.log.bury()
    assert other.log.snapshot() == first
    newcomer = cast.enter("newcomer")
    agree(store, other, newcomer)
    save(other)
    second = other.log.snapshot()
    assert second is not None
    assert second.position == other.replica.position
    agree(store, other, newcomer, cast.enter("another newcomer"))


def test_L2_snapshots_at_any_moment_with_all_behind_them_pruned_restore_to_the_same(store: Store, cast: Cast) -> None:
    writer = cast.enter("writer")
    writer.replica.decide([FILE, CAP])
    commits = whole_log(store)
    for number in range(12):
        writer.replica.decide([ask(writer, f"i{number}"), cmd.Release(f"i{number - 2}")])
        store.clock.advance(400)
        commits += writer.log.read(commits[-1].position)
        save(writer)
        writer.log.maintain(keep_ms=0)
        fresh, now = replayed(commits), store.clock()
        newcomer = cast.enter(f"newcomer {number}")
        compare(newcomer.name, picture(newcomer.replica.catch_up(), now), picture(fresh, now))
    with pytest.raises(LogReplaced):
        writer.log.read(START)


def test_Q2_a_decider_that_begins_with_a_snapshot_knows_the_next_deadline(store: Store, cast: Cast) -> None:
    writer = cast.enter("writer")
    writer.replica.decide([FILE, ask(writer, "held"), ask(writer, "waits"), cmd.Pause("requests", "umans", 5_000)])
    assert writer.replica.due is not None
    save(writer)
    newcomer = cast.enter("newcomer")
    newcomer.replica.catch_up()
    assert newcomer.replica.due == writer.replica.due


def test_L2_rows_for_waiters_are_swept_but_never_one_that_was_written_meanwhile(
    store: Store, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "_SNAPSHOT_EVERY", 0)
    holder, waiter, gone = cast.enter("holder"), cast.enter("waiter"), cast.enter("gone")
    holder.replica.decide([FILE, CAP, ask(holder, "held")])
    gone.replica.decide([ask(gone, "never read")])
    holder.replica.decide([cmd.Cancel("never read", "somebody")])
    waiter.replica.decide([ask(waiter, "next")])

    class Slow(FaultyLog):
        """While it looks at the rows, somebody grants."""

        def side_items(self, table: str, low: str = "", high: str = "") -> list[tuple[str, bytes]]:
            holder.replica.decide([cmd.Release("held"), cmd.Bypass("x")])
            waiter.replica.decide([cmd.Claim("next")])
            waiter.replica.decide([ask(waiter, "last")])
            holder.replica.decide([cmd.Release("next")])
            return super().side_items(table, low, high)

    sweeper = Process("sweeper", Slow(store.open()))
    cast.all.append(sweeper)
    sweeper.replica.catch_up()
    assert sweeper.replica.maintain()
    assert dict(holder.log.side_items(TICKET_NEWS)) == {"last": b"granted"}


# The log is another one.


def test_Q2_a_log_restored_to_an_older_copy_is_noticed_and_decisions_go_on_with_what_it_says(
    store: Store, cast: Cast
) -> None:
    one, two = cast.enter("one"), cast.enter("two")
    one.replica.decide([FILE, CAP])
    restore = store.backup()
    one.replica.decide([ask(one, "forgotten")])
    two.replica.decide([ask(two, "forgotten too")])
    restore()
    reloads = one.replica.reloads
    (decided,) = one.replica.decide([ask(one, "new")])
    assert one.replica.reloads == reloads + 1
    assert [type(event) for event in decided.events] == [ev.Queued], "those who run are counted first"
    store.clock.advance(LOCAL_MS)
    one.replica.decide([])
    state = agree(store, one, two)
    assert state.leases.keys() == {"new"}
    one.replica.decide([cmd.Release("forgotten"), cmd.Release("new")])
    assert not agree(store, one, two).leases


def test_Q2_a_log_that_went_on_from_an_older_copy_is_another_one_although_it_is_as_long(
    store: Store, cast: Cast
) -> None:
    one, two, three = cast.enter("one"), cast.enter("two"), cast.enter("three")
    one.replica.decide([FILE, CAP])
    restore = store.backup()
    one.replica.decide([ask(one, "a")])
    one.replica.decide([ask(one, "b")])
    two.replica.catch_up()
    restore()
    three.replica.decide([ask(three, "c")])
    three.replica.decide([ask(three, "d")])
    store.clock.advance(LOCAL_MS)
    three.replica.decide([])
    assert two.replica.catch_up().leases.keys() == {"c"}
    (decided,) = one.replica.decide([cmd.Release("c")])
    assert type(decided.events[0]) is ev.Released
    store.clock.advance(LOCAL_MS)
    one.replica.decide([])
    assert agree(store, one, two, three).leases.keys() == {"d"}


def test_Q2_a_log_that_is_replaced_once_more_while_it_is_loaded_is_loaded_once_more(store: Store, cast: Cast) -> None:
    writer = cast.enter("writer")
    writer.replica.decide([FILE, CAP])
    save(writer)

    class Pruned(FaultyLog):
        """Between its snapshot and its tail others write two snapshots and prune all before them."""

        times = 0

        def snapshot(self) -> Stored | None:
            stored = super().snapshot()
            if Pruned.times < 2:
                Pruned.times += 1
                for number in range(2):
                    writer.replica.decide([ask(writer, f"i{Pruned.times}{number}")])
                    store.clock.advance(10)
                    save(writer)
                writer.log.maintain(keep_ms=0)
            return stored

    late = Replica(Pruned(store.open()), "late")
    seen = late.catch_up()
    assert seen.seq == writer.replica.catch_up().seq
    assert Pruned.times == 2
    late.log.close()


def test_Q2_a_store_that_never_stands_still_is_an_error_and_not_an_endless_loop(store: Store, cast: Cast) -> None:
    class Never(FaultyLog):
        def read(self, after: Position, limit: int = 10_000) -> list[Commit]:
            raise LogReplaced("again")

    never = Replica(Never(store.open()), "never")
    with pytest.raises(StoreError, match="replaced"):
        never.catch_up()
    with pytest.raises(StoreError, match="replaced"):
        never.decide([])
    inner = never.log
    assert isinstance(inner, FaultyLog)
    assert inner.inner.try_lock(), "the lock was kept"
    inner.bury()


# What must never be.


def test_Q2_a_command_that_is_refused_after_it_changed_something_stops_the_writer(
    store: Store, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = cast.enter("one")
    process.replica.decide([FILE])

    def half(engine: Engine, command: cmd.Bypass, now: int) -> None:
        engine._recorder.record(ev.Bypassed(command.holder))
        raise BadRequest("too late")

    monkeypatch.setattr(Engine, "_bypass", half)
    process.replica._engine = None
    with pytest.raises(InternalError, match="too late"):
        process.replica.decide([cmd.Bypass("x"), ask(process, "a")])
    monkeypatch.undo()
    process.replica._engine = None
    state = agree(store, process)
    assert not state.leases


def test_A1_two_replicas_charge_a_project_the_same_whether_they_saw_the_whole_log_or_a_snapshot() -> None:
    """Fair shares decide who enters: if replicas count them differently, they decide differently."""

    def grant(engine: Engine, ident: str, project: str, now: int) -> None:
        spec = Spec(models=("umans/coder",), kind="requests", project=project)
        engine.handle(cmd.Tick(), now)
        engine.handle(cmd.Acquire(ident, spec, "p"), now)

    whole = Engine()
    now = 1_700_000_000_000
    whole.handle(cmd.SetRule(Rule("requests", "umans", cap=9, on_429="step", cooldown_ms=0)), now)
    grant(whole, "long", "green", now)
    for number in range(4):
        grant(whole, f"short {number}", "blue", now)
    restored = Engine(State.restore(whole.state.export()))
    for engine in (whole, restored):
        engine.handle(cmd.Tick(), now + 100_000)
        engine.handle(cmd.Release("long"), now + 100_000)
        grant(engine, "again", "green", now + 100_000)
    assert restored.state.export() == whole.state.export()
