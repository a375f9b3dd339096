"""What every log does, whichever store keeps it (log/protocol.py)."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from fleetgate.core.entities import Reason, Rule, Spec, Ticket
from fleetgate.core.errors import InternalError
from fleetgate.core.events import Cancelled, Event, Expired, Granted, Queued, Returned, RuleSet
from fleetgate.log.protocol import START, Head, Log, LogReplaced, Position, SideWrite

if TYPE_CHECKING:
    from tests.contract.conftest import Commits, Store


def ticket(id: str = "t1") -> Ticket:
    spec = Spec(models=("anthropic/claude-opus-4-6",), host="h", caps=(("anthropic/*", 3),))
    return Ticket(
        id=id,
        spec=spec,
        holder="h|b|n|1|2",
        order=5,
        arrival=1,
        since=5,
        queued_at=5,
        expires_at=9,
        command="naïve →",
    )


# Order and numbers.


def test_a_new_log_is_empty(log: Log) -> None:
    assert log.read(START) == []
    assert log.head() is None
    assert log.snapshot() is None
    assert list(log.history()) == []
    assert log.side_value("jobs", "1") is None
    assert log.side_items("jobs") == []


def test_commits_are_read_back_in_order_with_dense_numbers(log: Log, commit: Commits) -> None:
    for count in (1, 3, 0, 2):
        commit(log, [Returned(id=f"{count}.{index}") for index in range(count)])
    commits = log.read(START)
    assert [one.number for one in commits] == [1, 2, 3, 4]
    assert [one.seq for one in commits] == [1, 4, 4, 6]
    assert [[event.id for event in one.events if isinstance(event, Returned)] for one in commits] == [
        ["1.0"],
        ["3.0", "3.1", "3.2"],
        [],
        ["2.0", "2.1"],
    ]
    assert len({one.id for one in commits}) == 4


def test_append_returns_the_position_that_reading_goes_on_from(log: Log, commit: Commits) -> None:
    first = commit(log, [Returned(id="a")])
    second = commit(log, [Returned(id="b")])
    assert [one.position for one in log.read(START)] == [first, second]
    assert [one.position for one in log.read(first)] == [second]
    assert log.read(second) == []


def test_a_long_log_is_read_in_pages(log: Log, commit: Commits) -> None:
    position = START
    for index in range(5):
        position = commit(log, [Returned(id=str(index))], after=position)
    page = log.read(START, limit=2)
    assert [one.number for one in page] == [1, 2]
    page = log.read(page[-1].position, limit=2)
    assert [one.number for one in page] == [3, 4]
    page = log.read(page[-1].position, limit=2)
    assert [one.number for one in page] == [5]


def test_an_append_behind_one_page_of_a_longer_log_is_refused(log: Log, commit: Commits) -> None:
    for index in range(3):
        commit(log, [Returned(id=str(index))])
    log.lock()
    log.begin()
    page = log.read(START, limit=2)
    with pytest.raises(LogReplaced):
        log.append(page[-1].position, log.now(), [], None)
    log.unlock()
    assert len(log.read(START)) == 3


def test_events_come_back_equal_and_are_not_the_writers_own_objects(store: Store, log: Log, commit: Commits) -> None:
    waiting = ticket()
    events: list[Event] = [
        Queued(ticket=waiting, reason=Reason(code="behind", text="in the queue", pools=["host:h"], until=7)),
        Granted(id="t2", model="a/b", charge_ms=3, ticket=ticket("t2"), claimed=False),
        RuleSet(rule=Rule(kind="agents", selector="*/claude-opus-*", cap=4)),
    ]
    commit(log, events)
    other = store.open()
    read = other.read(START)[0].events
    assert read == events
    queued = read[0]
    assert isinstance(queued, Queued)
    assert queued.ticket is not waiting
    assert queued is not log.read(START)[0].events[0]


def test_head_is_the_newest_commit_without_its_events(store: Store, log: Log, commit: Commits) -> None:
    store.time.ms = 2_000_000
    commit(log, [Returned(id="a")], due=2_000_500)
    assert log.head() == Head(1, 2_000_000, 2_000_500)
    store.time.ms = 2_000_100
    commit(log, [])
    assert log.head() == Head(2, 2_000_100, None)


def test_an_empty_commit_only_moves_the_deadline(log: Log, commit: Commits) -> None:
    first = commit(log, [Returned(id="a")], due=10)
    second = commit(log, [], due=20)
    assert second.seq == first.seq == 1
    one = log.read(first)[0]
    assert (one.number, one.due, one.events) == (2, 20, [])
    assert [seq for seq, _, _ in log.history()] == [1]


def test_durable_and_ordinary_commits_make_one_log(log: Log, commit: Commits) -> None:
    for durable in (True, False, True, True, False):
        commit(log, [Returned(id=str(durable))], durable=durable)
    assert [one.number for one in log.read(START)] == [1, 2, 3, 4, 5]


# Identity.


def test_reading_after_a_position_that_the_log_does_not_know_raises(log: Log, commit: Commits) -> None:
    commit(log, [Returned(id="a")])
    position = commit(log, [Returned(id="b")])
    for stranger in (
        position._replace(id="0" * 16),
        position._replace(seq=position.seq + 1),
        Position(1, position.id, 1),
        Position(3, position.id, 3),
        Position(4, "0" * 16, 4),
    ):
        with pytest.raises(LogReplaced):
            log.read(stranger)
    assert log.read(position) == []


def test_appending_behind_anything_but_the_last_commit_raises_and_leaves_nothing(log: Log, commit: Commits) -> None:
    first = commit(log, [Returned(id="a")])
    last = commit(log, [Returned(id="b")])
    for wrong in (START, first, last._replace(id="0" * 16), last._replace(seq=9), Position(3, "0" * 16, 3)):
        log.lock()
        log.begin()
        with pytest.raises(LogReplaced):
            log.append(wrong, log.now(), [Returned(id="c")], None, [SideWrite("jobs", "1", b"x")])
        log.unlock()
    assert [one.position for one in log.read(START)] == [first, last]
    assert log.side_value("jobs", "1") is None


def test_appending_to_an_empty_log_starts_at_start_and_nowhere_else(log: Log, commit: Commits) -> None:
    with pytest.raises(LogReplaced):
        commit(log, [], after=Position(1, "0" * 16, 0))
    assert commit(log, [], after=START).commit == 1


def test_a_restored_backup_is_noticed_by_whoever_runs(store: Store, log: Log, commit: Commits) -> None:
    other = store.open()
    kept = commit(log, [Returned(id="kept")])
    restore = store.backup()
    lost = commit(log, [Returned(id="lost")])
    assert other.read(kept)[0].position == lost
    restore()
    for running in (log, other):
        with pytest.raises(LogReplaced):
            running.read(lost)
    assert commit(other, [Returned(id="new")], after=kept).commit == 2
    with pytest.raises(LogReplaced):
        commit(log, [Returned(id="late")], after=lost)
    assert [one.events for one in log.read(START)] == [[Returned(id="kept")], [Returned(id="new")]]


def test_a_restored_backup_is_noticed_inside_the_transaction(store: Store, log: Log, commit: Commits) -> None:
    commit(log, [Returned(id="kept")])
    restore = store.backup()
    lost = commit(log, [Returned(id="lost")])
    restore()
    log.lock()
    log.begin()
    with pytest.raises(LogReplaced):
        log.read(lost)
    log.rollback()
    log.begin()
    position = log.read(START)[-1].position
    assert log.append(position, log.now(), [], None).commit == 2
    log.unlock()


def test_a_backup_that_has_all_that_this_process_knows_is_no_other_log(store: Store, log: Log, commit: Commits) -> None:
    position = commit(log, [Returned(id="a")])
    restore = store.backup()
    restore()
    assert log.read(position) == []
    assert commit(log, [Returned(id="b")], after=position).commit == 2


# Transactions.


def test_a_rolled_back_transaction_leaves_nothing(log: Log, commit: Commits) -> None:
    position = commit(log, [Returned(id="a")])
    log.lock()
    log.begin()
    log.rollback()
    log.rollback()
    log.unlock()
    assert log.read(position) == []
    assert commit(log, [], after=position).commit == 2


def test_unlock_ends_a_transaction_that_was_not_committed(store: Store, log: Log, commit: Commits) -> None:
    log.lock()
    log.begin()
    log.unlock()
    log.unlock()
    assert commit(store.open(), []).commit == 1


def test_a_log_that_is_closed_in_a_transaction_leaves_nothing_and_frees_the_lock(store: Store, commit: Commits) -> None:
    dying = store.open()
    dying.lock()
    dying.begin()
    dying.close()
    dying.close()
    assert commit(store.open(), [Returned(id="a")]).commit == 1


def test_a_commit_can_be_rolled_back_no_more(log: Log) -> None:
    log.lock()
    log.begin()
    position = log.append(START, log.now(), [Returned(id="a")], None)
    log.rollback()
    log.unlock()
    assert log.read(START)[0].position == position


def test_an_event_that_cannot_be_written_down_leaves_nothing(log: Log, commit: Commits) -> None:
    with pytest.raises(TypeError):
        commit(log, [Returned(id="a"), Cancelled(id=object())], side=[SideWrite("t", "k", b"v")])  # type: ignore[arg-type]
    assert log.read(START) == []
    assert log.side_value("t", "k") is None
    assert commit(log, [Returned(id="a")]).commit == 1


def test_several_transactions_fit_under_one_lock(log: Log) -> None:
    log.lock()
    position = START
    for _ in range(3):
        log.begin()
        position = log.append(position, log.now(), [Returned(id="a")], None)
    log.unlock()
    assert [one.number for one in log.read(START)] == [1, 2, 3]


def test_transactions_out_of_order_are_a_bug_of_the_caller(log: Log) -> None:
    with pytest.raises(InternalError):
        log.begin()
    with pytest.raises(InternalError):
        log.append(START, 1, [], None)
    log.lock()
    with pytest.raises(InternalError):
        log.append(START, 1, [], None)
    with pytest.raises(InternalError):
        log.lock()
    log.begin()
    with pytest.raises(InternalError):
        log.begin()
    log.unlock()
    assert log.read(START) == []


# Beside the log.


def test_side_writes_commit_with_their_events(store: Store, log: Log, commit: Commits) -> None:
    commit(log, [Returned(id="a")], side=[SideWrite("jobs", "2", b"two"), SideWrite("jobs", "1", b"\x00\xff")])
    commit(log, [], side=[SideWrite("other", "1", b"")])
    other = store.open()
    assert other.side_value("jobs", "1") == b"\x00\xff"
    assert other.side_items("jobs") == [("1", b"\x00\xff"), ("2", b"two")]
    assert other.side_value("other", "1") == b""
    assert other.side_value("other", "2") is None


def test_side_writes_replace_and_delete_in_the_order_given(log: Log, commit: Commits) -> None:
    commit(log, [], side=[SideWrite("jobs", key, b"old") for key in "abc"])
    commit(
        log,
        [],
        side=[
            SideWrite("jobs", "a", b"new"),
            SideWrite("jobs", "b", None),
            SideWrite("jobs", "c", None),
            SideWrite("jobs", "c", b"again"),
            SideWrite("jobs", "none", None),
        ],
    )
    assert log.side_items("jobs") == [("a", b"new"), ("c", b"again")]


def test_side_items_of_a_range_are_those_from_its_beginning_to_before_its_end(log: Log, commit: Commits) -> None:
    keys = ["400001", "400002", "400003", "400010", "5"]
    commit(log, [], side=[*(SideWrite("usage", key, key.encode()) for key in keys), SideWrite("a", "400002", b"other")])

    def found(low: str, high: str = "") -> list[str]:
        return [key for key, value in log.side_items("usage", low, high) if value == key.encode()]

    assert found("400002", "400010") == ["400002", "400003"]
    assert found("400004") == ["400010", "5"]
    assert found("", "400002") == ["400001"]
    assert found("400003", "400003") == []
    assert found("6", "7") == []


def test_side_items_before_a_key_are_forgotten_a_part_at_a_time(store: Store, log: Log, commit: Commits) -> None:
    keys = [str(100_000 + n) for n in range(4_100)]
    commit(log, [], side=[*(SideWrite("usage", key, b"x") for key in keys), SideWrite("other", "100000", b"kept")])
    calls = 1
    while log.forget_side_items("usage", "104090"):
        calls += 1
    assert calls < 10
    other = store.open()
    assert [key for key, _ in other.side_items("usage")] == keys[4_090:]
    assert other.side_items("other") == [("100000", b"kept")]
    assert not log.forget_side_items("usage", "104090")
    commit(log, [Returned(id="a")])  # the lock is free


# The write lock.


def test_one_decider_at_a_time_has_the_lock(store: Store, log: Log) -> None:
    other = store.open()
    assert log.lock_owner() is None
    assert log.try_lock()
    assert log.lock_owner() == other.lock_owner() == os.getpid()
    assert not other.try_lock()
    log.unlock()
    assert other.lock_owner() is None
    assert other.try_lock()
    assert not log.try_lock()
    other.unlock()


def test_readers_do_not_wait_for_the_lock(store: Store, log: Log, commit: Commits) -> None:
    position = commit(log, [Returned(id="a")], side=[SideWrite("t", "k", b"v")])
    other = store.open()
    log.lock()
    log.begin()
    assert other.read(START)[-1].position == position
    assert other.read(position) == []
    assert other.head() is not None
    assert other.side_value("t", "k") == b"v"
    assert [seq for seq, _, _ in other.history()] == [1]
    log.append(position, log.now(), [Returned(id="b")], None)
    assert [one.number for one in other.read(position)] == [2]
    log.unlock()


def test_a_waiter_goes_on_when_the_lock_is_let_go(store: Store, log: Log, commit: Commits) -> None:
    log.lock()
    log.begin()
    waiting = threading.Event()
    done: list[Position] = []

    def wait_and_commit() -> None:
        other = store.open()
        waiting.set()
        other.lock()
        other.begin()
        done.append(other.append(other.read(START)[-1].position, other.now(), [Returned(id="b")], None))
        other.unlock()

    thread = threading.Thread(target=wait_and_commit)
    thread.start()
    waiting.wait()
    assert not done
    log.append(START, log.now(), [Returned(id="a")], None)
    log.unlock()
    thread.join()
    assert done[0].commit == 2


def test_q2_a_commit_of_many_megabytes_goes_through(log: Log) -> None:
    rows = [SideWrite("mine", f"{number}", bytes(100_000)) for number in range(20)]
    log.lock()
    log.begin()
    log.append(START, log.now(), [Returned(id="x" * 1_000_000)], None, rows)
    log.unlock()
    assert len(log.side_items("mine")) == 20
    (commit,) = log.read(START)
    assert len(commit.events[0].id) == 1_000_000  # type: ignore[union-attr]


def test_many_threads_make_one_dense_log_and_lose_nothing(store: Store, commit: Commits) -> None:
    store.open()
    failures: list[BaseException] = []

    def work(name: int) -> None:
        try:
            log = store.open()
            for index in range(50):
                commit(log, [Returned(id=f"{name}.{index}")])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    commits = store.open().read(START)
    assert [one.number for one in commits] == list(range(1, 201))
    ids = [event.id for one in commits for event in one.events if isinstance(event, Returned)]
    assert sorted(ids) == sorted(f"{name}.{index}" for name in range(4) for index in range(50))
    for name in range(4):
        own = [id for id in ids if id.startswith(f"{name}.")]
        assert own == [f"{name}.{index}" for index in range(50)]


def test_a_log_may_be_handed_from_thread_to_thread(log: Log, commit: Commits) -> None:
    for _ in range(3):
        thread = threading.Thread(target=commit, args=(log, [Returned(id="a")]))
        thread.start()
        thread.join()
    log.lock()
    thread = threading.Thread(target=log.unlock)
    thread.start()
    thread.join()
    assert log.try_lock()
    log.unlock()
    assert len(log.read(START)) == 3


# Time.


def test_Q2_time_never_goes_backwards(store: Store, log: Log) -> None:
    assert log.now() == 1_000_000
    store.time.ms = 1_000_500
    assert log.now() == 1_000_500
    store.time.ms = 400
    assert log.now() == 1_000_500
    store.time.ms = 1_000_501
    assert log.now() == 1_000_501


def test_Q2_time_is_never_before_a_commit_that_was_read(store: Store, log: Log, commit: Commits) -> None:
    store.time.ms = 5_000_000
    position = commit(log, [])
    store.time.ms = 10
    other = store.open()
    assert other.read(START)[0].at == 5_000_000
    assert other.now() == 5_000_000
    third = store.open()
    assert third.read(position) == []
    assert third.now() == 5_000_000


# History.


def test_history_tells_each_event_with_its_number_and_time(store: Store, log: Log, commit: Commits) -> None:
    commit(log, [Returned(id="a"), Returned(id="b")])
    store.time.ms += 50
    commit(log, [])
    commit(log, [Expired(id="c", after_ms=1)])
    assert list(log.history()) == [
        (1, 1_000_000, Returned(id="a")),
        (2, 1_000_000, Returned(id="b")),
        (3, 1_000_050, Expired(id="c", after_ms=1)),
    ]


def test_history_goes_on_after_any_sequence_number(log: Log, commit: Commits) -> None:
    for count in (2, 0, 1, 3, 0, 0, 1):
        commit(log, [Returned(id="x")] * count)
    for since in range(-1, 9):
        assert [seq for seq, _, _ in log.history(since)] == [seq for seq in range(1, 8) if seq > since]


def test_history_may_be_read_while_commits_are_made(log: Log, commit: Commits) -> None:
    for index in range(3):
        commit(log, [Returned(id=str(index))])
    told = log.history()
    assert next(told)[0] == 1
    commit(log, [Returned(id="3")])
    assert [seq for seq, _, _ in told][:2] == [2, 3]
    assert [seq for seq, _, _ in log.history(3)] == [4]


def test_history_may_be_read_within_a_transaction(log: Log, commit: Commits) -> None:
    """As one does who must know what became of a lease before it is claimed again
    (gate/replica/lost_log_recovery.py).
    """
    position = commit(log, [Returned(id="a"), Returned(id="b")])
    log.lock()
    log.begin()
    assert log.read(position) == []
    assert [seq for seq, _, _ in log.history(1)] == [2]
    log.append(position, log.now(), [Returned(id="c")], None, [])
    log.unlock()
    assert [seq for seq, _, _ in log.history()] == [1, 2, 3]


# Snapshots and pruning.


def test_the_newest_snapshot_is_found_by_every_process(store: Store, log: Log, commit: Commits) -> None:
    first = commit(log, [Returned(id="a")])
    log.save_snapshot(b'{"one": 1}', first)
    assert store.open().snapshot() == (b'{"one": 1}', first)
    second = commit(log, [Returned(id="b")])
    assert store.open().snapshot() == (b'{"one": 1}', first)
    log.save_snapshot(b'{"two": 2}', second)
    assert store.open().snapshot() == (b'{"two": 2}', second)


def test_an_old_snapshot_that_comes_late_does_not_hide_a_newer_one(log: Log, commit: Commits) -> None:
    positions = [commit(log, [Returned(id=str(index))]) for index in range(4)]
    log.save_snapshot(b"2", positions[2])
    log.save_snapshot(b"1", positions[1])
    assert log.snapshot() == (b"2", positions[2])
    log.save_snapshot(b"3", positions[3])
    log.save_snapshot(b"0", positions[0])
    assert log.snapshot() == (b"3", positions[3])


def test_the_same_commit_may_be_saved_twice(log: Log, commit: Commits) -> None:
    position = commit(log, [Returned(id="a")])
    log.save_snapshot(b"once", position)
    log.save_snapshot(b"again", position)
    assert log.snapshot() == (b"again", position)


def test_a_snapshot_of_another_log_is_refused(log: Log, commit: Commits) -> None:
    position = commit(log, [Returned(id="a")])
    for stranger in (START, position._replace(id="0" * 16), Position(7, "0" * 16, 7)):
        with pytest.raises(LogReplaced):
            log.save_snapshot(b"{}", stranger)
    assert log.snapshot() is None
    assert log.try_lock()
    log.unlock()


def test_pruning_takes_what_is_old_and_behind_both_snapshots(store: Store, log: Log, commit: Commits) -> None:
    positions = []
    for index in range(6):
        store.time.ms = 1_000_000 + index * 1000
        positions.append(commit(log, [Returned(id=str(index))]))
    log.maintain(0)
    assert len(log.read(START)) == 6, "no snapshot: nothing may go"
    log.save_snapshot(b"a", positions[3])
    log.maintain(0)
    assert len(log.read(START)) == 6, "one snapshot: it might be damaged"
    log.save_snapshot(b"b", positions[5])
    log.maintain(1_000_000)
    assert len(log.read(START)) == 6, "nothing is old enough"
    log.maintain(3_500)  # keeps what was committed in the last 3.5 s: commits 3 to 6
    assert [seq for seq, _, _ in log.history()] == [3, 4, 5, 6]
    log.maintain(0)
    assert [seq for seq, _, _ in log.history()] == [4, 5, 6], "the older snapshot's own commit stays"
    log.maintain(0)
    assert [seq for seq, _, _ in log.history(4)] == [5, 6]


def test_a_log_that_is_too_large_is_pruned_however_young_it_is(log: Log, commit: Commits) -> None:
    positions = [commit(log, [Returned(id=f"{index:01000}")]) for index in range(40)]
    log.save_snapshot(b"a", positions[29])
    log.save_snapshot(b"b", positions[39])
    log.maintain(1_000_000, most_bytes=100_000)
    assert len(log.read(START)) == 40, "it is small enough"
    while log.maintain(1_000_000, most_bytes=22_000):
        continue
    assert next(log.history())[0] in range(18, 25), "twenty or so fit"
    while log.maintain(1_000_000, most_bytes=1):
        continue
    assert next(log.history())[0] == 30, "never what the older of two snapshots needs"
    assert log.maintain(1_000_000, most_bytes=1) is False
    stored = log.snapshot()
    assert stored is not None
    assert log.read(stored.position) == []


def test_a_pruned_log_is_read_from_its_snapshots_and_goes_on(store: Store, log: Log, commit: Commits) -> None:
    positions = [commit(log, [Returned(id=str(index))]) for index in range(4)]
    log.save_snapshot(b"a", positions[1])
    log.save_snapshot(b"b", positions[3])
    store.time.ms += 1000
    log.maintain(0)
    other = store.open()
    for gone in (START, positions[0]):
        with pytest.raises(LogReplaced):
            other.read(gone)
    stored = other.snapshot()
    assert stored == (b"b", positions[3])
    assert other.read(positions[3]) == []
    assert [one.position for one in other.read(positions[1])] == positions[2:]
    assert commit(other, [Returned(id="4")]).commit == 5
    assert other.head() == Head(5, 1_001_000, None)


def test_a_log_says_what_it_is(log: Log) -> None:
    assert "Log(" in repr(log)
    log.lock()
    assert "holding the write lock" in repr(log)
    log.unlock()


def test_l2_silence_is_counted_by_the_stores_clock(store: Store, log: Log) -> None:
    other = store.open()
    assert log.beats() == {}
    log.beat("a")
    other.beat("b")
    store.time.ms += 15_000
    other.beat("b")
    assert log.beats() == other.beats() == {"a": 15_000, "b": 0}
    store.time.ms += 15_000
    log.beat("a")
    assert other.beats() == {"a": 0, "b": 15_000}


def test_l2_a_time_in_which_nobody_beat_counts_against_nobody(store: Store, log: Log) -> None:
    """The store was down, or the machine slept: all get their whole time once more."""
    log.beat("a")
    log.beat("b")
    store.time.ms += 600_000
    assert log.beats() == {"a": 0, "b": 0}
    log.beat("b")
    store.time.ms += 15_000
    log.beat("b")
    store.time.ms += 15_000
    assert log.beats() == {"a": 30_000, "b": 15_000}


def test_l2_a_silent_host_is_silent_though_others_beat_late(store: Store, log: Log) -> None:
    log.beat("a")
    for _ in range(3):
        store.time.ms += 19_000
        log.beat("b")
    assert log.beats() == {"a": 57_000, "b": 0}


def test_l2_hosts_that_were_not_heard_of_for_a_week_are_forgotten(store: Store, log: Log) -> None:
    log.beat("a")
    store.time.ms += 8 * 86_400_000
    log.beat("b")
    assert log.beats() == {"b": 0}


def test_l2_a_beat_needs_no_lock_and_is_in_no_commit(store: Store, log: Log, commit: Commits) -> None:
    commit(log, [Returned(id="x")])
    before = log.head()
    log.lock()
    store.open().beat("a")
    log.unlock()
    assert log.head() == before
    assert log.beats() == {"a": 0}
