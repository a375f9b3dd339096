"""Rule Y2: the same gate for synchronous code, from any thread, and interrupted at bad moments."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import pytest

import fleetgate
from fleetgate.core import events as ev
from fleetgate.log.sqlite.log import SqliteLog
from tests.library.helpers import CODER, LockHolder


def until(true: Callable[[], object], within_s: float = 20.0) -> None:
    deadline = monotonic() + within_s
    while not true():
        assert monotonic() < deadline, f"it did not come true within {within_s} s"
        sleep(0.002)


def in_flight(gate: fleetgate.sync.Gate) -> int:
    return next(view.in_flight for view in gate.status() if view.pool == "umans")


def nothing_is_left(gate: fleetgate.sync.Gate) -> None:
    until(lambda: not gate.queue() and not in_flight(gate))


def test_Y2_a_lease_is_held_inside_the_block_and_given_back_after_it(store: str) -> None:
    with fleetgate.sync.open_gate(store) as gate:
        gate.set_cap("umans", 1, cooldown_s=0)
        with gate.lease(CODER) as lease:
            assert lease.model == CODER
            assert in_flight(gate) == 1
            told = gate.try_lease(CODER)
            assert isinstance(told, fleetgate.Deferred)
            assert told.reason.code == "concurrency_cap"
            with pytest.raises(fleetgate.NotAdmitted), gate.lease(CODER, timeout_s=0.05):
                pytest.fail("it was let in")
        got = gate.try_lease(CODER)
        assert isinstance(got, fleetgate.sync.Leased)
        got.release()
        got.release()
        nothing_is_left(gate)


def test_Y2_leaving_by_an_exception_releases(store: str) -> None:
    with fleetgate.sync.open_gate(store) as gate:
        gate.set_cap("umans", 1)
        with pytest.raises(ZeroDivisionError), gate.lease(CODER):
            _ = 1 / 0
        nothing_is_left(gate)


def test_Y2_A1_many_threads_share_the_slots_and_never_more(store: str) -> None:
    inside, most, mutex = 0, 0, threading.Lock()
    with fleetgate.sync.open_gate(store) as gate, ThreadPoolExecutor(24) as threads:
        gate.set_cap("umans", 3, cooldown_s=0)

        def work(number: int) -> int:
            nonlocal inside, most
            with gate.lease(CODER, project=f"project {number % 2}"):
                with mutex:
                    inside += 1
                    most = max(most, inside)
                sleep(0.001)
                with mutex:
                    inside -= 1
            return number

        assert sorted(threads.map(work, range(100))) == list(range(100))
        nothing_is_left(gate)
    assert 1 <= most <= 3


def test_Y2_caps_pauses_reports_and_the_queue_are_managed_as_by_the_other_face(store: str) -> None:
    with fleetgate.sync.open_gate(store) as gate:
        gate.set_cap("umans", 2, on_429="step")
        gate.set_cooldown("umans", 0)
        with gate.lease(CODER) as lease:
            lease.report(fleetgate.RateLimited(retry_after_s=0.01))
        gate.report(fleetgate.RateLimited(retry_after_s=0.01), pool="umans")
        (view,) = [view for view in gate.status() if view.pool == "umans"]
        assert (view.limit, view.auto_reduced_from) == (1, 2)
        gate.pause("umans", for_s=60)
        told = gate.try_lease(CODER)
        assert isinstance(told, fleetgate.Deferred)
        assert told.reason.code == "paused"
        waiter = threading.Thread(target=_expect_not_admitted, args=(gate,))
        waiter.start()
        until(lambda: len(gate.queue()) == 1)
        gate.cancel(gate.queue()[0].ticket.id)
        waiter.join()
        gate.resume("umans")
        with gate.lease(CODER):
            pass
        gate.remove_cap("umans")
        assert [view for view in gate.status() if view.pool == "umans"] == []


def _expect_not_admitted(gate: fleetgate.sync.Gate) -> None:
    with pytest.raises(fleetgate.NotAdmitted), gate.lease(CODER):
        pass


def test_Y2_events_are_read_in_a_loop_and_resumed(store: str) -> None:
    with fleetgate.sync.open_gate(store) as gate:
        gate.set_cap("umans", 1)
        with gate.lease(CODER):
            pass
        seen = []
        for seq, _, event in gate.events(since=0):
            seen.append((seq, type(event)))
            if isinstance(event, ev.Released):
                break
        assert seen == [(1, ev.RuleSet), (2, ev.Granted), (3, ev.Released)]
        assert next(iter(gate.events(since=2)))[0] == 3


# Closing.


def test_Y2_threads_that_wait_when_the_gate_is_closed_are_told(store: str) -> None:
    told: list[BaseException] = []

    def wait(use: Callable[[], Any]) -> None:
        try:
            use()
        except BaseException as error:
            told.append(error)

    with fleetgate.sync.open_gate(store) as gate:
        gate.set_cap("umans", 1)
        gate.lease(CODER).__enter__()
        uses: list[Callable[[], Any]] = [gate.lease(CODER).__enter__ for _ in range(3)]
        uses.append(lambda: list(gate.events()))
        threads = [threading.Thread(target=wait, args=(use,)) for use in uses]
        for thread in threads:
            thread.start()
        until(lambda: len(gate.queue()) == 3)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert [type(error) for error in told] == [fleetgate.FleetgateError] * 4
    assert all("closed" in str(error) for error in told)


def test_Y2_a_block_that_outlives_its_gate_ends_quietly(sqlite: str) -> None:
    gate = fleetgate.sync.open_gate(sqlite)
    with gate:
        gate.set_cap("umans", 1)
        lease = gate.lease(CODER)
        lease.__enter__()
    lease.__exit__(None, None, None)
    lease.release()
    gate.close()
    with fleetgate.sync.open_gate(sqlite) as other:
        nothing_is_left(other)


def test_Y2_a_gate_that_is_not_open_says_so(store: str) -> None:
    gate = fleetgate.sync.open_gate(store)
    gate.close()
    uses: list[Callable[[], Any]] = [
        lambda: gate.lease(CODER),
        lambda: gate.try_lease(CODER),
        lambda: gate.set_cap("umans", 1),
        lambda: gate.remove_cap("umans"),
        lambda: gate.set_cooldown("umans", 1),
        lambda: gate.pause("umans"),
        lambda: gate.resume("umans"),
        lambda: gate.cancel("x"),
        lambda: gate.report(fleetgate.RateLimited(), pool="umans"),
        gate.status,
        gate.queue,
        lambda: next(gate.events()),
    ]
    for use in uses:
        with pytest.raises(fleetgate.FleetgateError, match="not open"):
            use()
    with gate:
        lease = gate.lease(CODER)
        with pytest.raises(fleetgate.FleetgateError, match="once"):
            gate.__enter__()
    for use in [*uses, lease.__enter__]:
        with pytest.raises(fleetgate.FleetgateError, match="closed"):
            use()


def test_Y2_a_gate_that_cannot_be_opened_raises_why_and_leaves_no_thread(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    before = threading.active_count()
    gate = fleetgate.sync.open_gate(f"sqlite://{tmp_path}/file")
    with pytest.raises(fleetgate.StoreError, match="folder"):
        gate.__enter__()
    until(lambda: threading.active_count() == before)
    gate.close()
    with pytest.raises(fleetgate.ConfigError), fleetgate.sync.open_gate("mysql://nowhere"):
        pass


# Interrupted.


@contextmanager
def interrupted(after_s: float = 0.05) -> Iterator[None]:
    """Ctrl-C comes while the main thread waits inside the block."""
    old = signal.getsignal(signal.SIGALRM)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def ask(gate: fleetgate.sync.Gate, way: str) -> None:
    if way == "lease":
        gate.lease(CODER).__enter__()
    else:
        gate.try_lease(CODER)


@contextmanager
def busy_loop(gate: fleetgate.sync.Gate) -> Iterator[threading.Event]:
    """The gate's own thread does nothing until the event is set."""
    reached, go_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        reached.set()
        go_on.wait(20)

    gate.thread.loop.call_soon_threadsafe(stand_still)
    assert reached.wait(20)
    try:
        yield go_on
    finally:
        go_on.set()


def test_Y2_a_thread_interrupted_in_the_queue_leaves_it(store: str) -> None:
    with fleetgate.sync.open_gate(store) as gate:
        gate.set_cap("umans", 1)
        with gate.lease(CODER):
            with interrupted(), gate.lease(CODER):
                pass
            until(lambda: not gate.queue())
        nothing_is_left(gate)


@pytest.mark.parametrize("way", ["lease", "try_lease"])
def test_Y2_a_thread_interrupted_before_its_request_was_even_sent_leaves_nothing(store: str, way: str) -> None:
    with fleetgate.sync.open_gate(store) as gate:
        gate.set_cap("umans", 1)
        with busy_loop(gate), interrupted():
            ask(gate, way)
        nothing_is_left(gate)


@pytest.mark.parametrize("way", ["lease", "try_lease"])
def test_Y2_a_thread_interrupted_when_its_lease_had_just_been_granted_gives_it_back(
    store: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from concurrent.futures import Future

    with fleetgate.sync.open_gate(store) as gate:
        gate.set_cap("umans", 1)
        result = Future.result

        def too_late(future: Any, timeout: float | None = None) -> Any:
            result(future, timeout)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Future, "result", too_late)
            with pytest.raises(KeyboardInterrupt):
                ask(gate, way)
        nothing_is_left(gate)


def test_Y2_a_thread_interrupted_while_it_releases_has_released(store: str) -> None:
    with fleetgate.sync.open_gate(store) as gate:
        gate.set_cap("umans", 1)
        lease = gate.lease(CODER)
        lease.__enter__()
        with busy_loop(gate), interrupted():
            lease.__exit__(None, None, None)
        nothing_is_left(gate)


def test_Y2_a_thread_interrupted_while_it_opens_a_gate_leaves_none_behind(sqlite: str) -> None:
    SqliteLog(sqlite.removeprefix("sqlite://")).close()
    before = threading.active_count()
    gate = fleetgate.sync.open_gate(sqlite, {"requests": {"umans": 1}})
    with LockHolder(SqliteLog(sqlite.removeprefix("sqlite://"))), interrupted(0.2):
        gate.__enter__()
    until(lambda: threading.active_count() == before)
    with pytest.raises(fleetgate.FleetgateError, match="closed"):
        gate.status()


def test_Y2_a_thread_interrupted_while_it_follows_events_may_follow_again(store: str) -> None:
    with fleetgate.sync.open_gate(store) as gate:
        with interrupted():
            next(gate.events())
        gate.set_cap("umans", 1)
        assert next(gate.events(since=0))[0] == 1


@pytest.mark.parametrize("failure", [SystemExit, GeneratorExit])
def test_Y2_whatever_ends_the_block_releases(store: str, failure: type[BaseException]) -> None:
    with fleetgate.sync.open_gate(store) as gate:
        gate.set_cap("umans", 1)
        with pytest.raises(failure), gate.lease(CODER):
            raise failure
        nothing_is_left(gate)
