"""Those who wait directly, as `fleetgate run` does, on a store that many machines share."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Lease, Rule, Spec
from fleetgate.gate.liveness import host_beats, process_identity
from fleetgate.gate.replica import replica
from fleetgate.gate.replica.replica import Decided
from fleetgate.gate.slots import waiter as slots_waiter
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.gate.slots.slot_gate import Left, QueuedTicket
from fleetgate.gate.slots.waiter import Waiter
from fleetgate.gate.wakeup import mailbox as wakeup_mailbox
from fleetgate.gate.wakeup import other_hosts
from fleetgate.log import open_log
from fleetgate.log.postgres import sql as sql
from fleetgate.log.postgres.connection import ServerConnection
from fleetgate.log.postgres.log import TAIL_COMMITS
from fleetgate.log.protocol import Commit, StoreError
from tests.postgres_server import Server
from tests.postgres_stores import fresh_store
from tests.timed import within

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

pytestmark = [pytest.mark.postgres]

Outcome = Lease | Left | None

SPEC = Spec(models=("umans/coder",), kind="requests")


@pytest.fixture
def gates(postgres: Server, tmp_path: Path) -> Iterator[tuple[DirectGate, DirectGate]]:
    url = fresh_store(postgres)
    one = DirectGate(open_log(url), folder=str(tmp_path))
    other = DirectGate(open_log(url), folder=str(tmp_path))
    other.me = "elsewhere|boot|1|77|88"  # cannot be reached or judged from here
    other.host = "elsewhere"
    one.one(cmd.SetRule(Rule("requests", "umans", cap=1, cooldown_ms=0, on_429="step")))
    yield one, other
    one.close()
    other.close()


@contextmanager
def waiting_elsewhere(other: DirectGate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Outcome]]:
    """`other` waits for "next", hears what it is told, and never looks by itself; filled when it has an end."""
    monkeypatch.setattr(slots_waiter, "POLL_S", 3_600.0)
    monkeypatch.setattr(slots_waiter, "_SLOWEST_LOOK_S", 3_600.0)
    got: list[Outcome] = []
    with wakeup_mailbox.Mailbox(wakeup_mailbox.runtime_folder(str(tmp_path))) as mailbox:
        other.replica.address = mailbox.address
        other.decide([cmd.Acquire("next", SPEC, other.me, wake=mailbox.address)])
        waiter = Waiter(other, QueuedTicket("next", mailbox, lambda view: None, pytest.fail))
        ours, theirs = os.pipe()
        thread = threading.Thread(target=lambda: got.append(waiter.wait(monotonic() + 30, ours, lambda: False)))
        thread.start()
        try:
            until = monotonic() + 25
            while waiter._listener is None or not waiter._listener.listens.is_set():  # type: ignore[attr-defined]
                assert monotonic() < until, "it does not listen"
                sleep(0.01)
            sleep(0.5)  # what was told when it began to listen is heard by now
            yield got
            thread.join(40)
        finally:
            os.close(ours)
            os.close(theirs)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ServerConnection, str]]:
    """Filled with every round trip from now on: by which connection, and what is asked."""
    asked: list[tuple[ServerConnection, str]] = []
    ask = ServerConnection.ask

    def noting(
        link: ServerConnection, text: str, *, on: int = 0, meanwhile: Callable[[], None] | None = None
    ) -> list[PGresult]:
        answer = ask(link, text, on=on, meanwhile=meanwhile)
        asked.append((link, text))
        return answer

    monkeypatch.setattr(ServerConnection, "ask", noting)
    return asked


def test_a_waiter_on_another_machine_is_woken_by_a_release_and_not_by_its_poll(
    gates: tuple[DirectGate, DirectGate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = gates
    one.decide([cmd.Acquire("held", SPEC, one.me)])
    with waiting_elsewhere(other, tmp_path, monkeypatch) as got:
        one.decide([cmd.Release("held")])
        released = monotonic()
    assert isinstance(got[0], Lease)
    within(monotonic() - released, 15, "s: it was not woken, and found out when its time was up")


def test_between_a_release_and_a_slot_elsewhere_are_four_round_trips_and_one_that_waits_for_the_disk(
    gates: tuple[DirectGate, DirectGate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = gates
    one.decide([cmd.Acquire("held", SPEC, one.me)])
    with waiting_elsewhere(other, tmp_path, monkeypatch) as got:
        asked = noted(monkeypatch)
        one.decide([cmd.Release("held")])
    assert isinstance(got[0], Lease)
    by = {gate: [text for link, text in asked if link is gate.log._link] for gate in gates}  # type: ignore[attr-defined]
    for gate, texts in by.items():
        assert len(texts) == 2, texts
        assert "FOR UPDATE" in texts[0], texts
        assert "COMMIT" in texts[1], texts
        assert ("pg_notify" in texts[1]) == (gate is one), "a waiter is woken with the commit"
        assert (sql.SYNC in texts[1]) == (gate is other), "what is used waits for the disk, and nothing else"


def test_a_waiter_that_is_woken_without_a_grant_waits_on(
    gates: tuple[DirectGate, DirectGate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = gates
    one.decide([cmd.Acquire("held", SPEC, one.me)])
    with waiting_elsewhere(other, tmp_path, monkeypatch) as got:
        ticket = one.replica.catch_up().tickets["next"]
        looked = noted(monkeypatch)
        assert one.replica.shared is not None
        one.replica.shared.notify(other_hosts.written([other_hosts.Wake(ticket.wake, b"granted", ticket.holder)]))
        until = monotonic() + 25
        while not any(link is other.log._link for link, _ in looked):  # type: ignore[attr-defined]
            assert monotonic() < until, "it was not woken"
            sleep(0.01)
        assert got == []
        one.decide([cmd.Release("held")])
    assert isinstance(got[0], Lease)


def test_a_waiter_that_is_woken_for_a_grant_and_was_cancelled_meanwhile_leaves(
    gates: tuple[DirectGate, DirectGate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = gates
    one.decide([cmd.Acquire("held", SPEC, one.me)])
    with waiting_elsewhere(other, tmp_path, monkeypatch) as got:
        monkeypatch.setitem(other_hosts._LETTERS, b"left", "g")
        one.decide([cmd.Cancel("next")])
    assert isinstance(got[0], Left)
    assert got[0].why == "cancelled"


def test_a_decision_that_was_not_committed_wakes_no_process(
    gates: tuple[DirectGate, DirectGate], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = gates
    one.decide([cmd.Acquire("held", SPEC, one.me)])
    other.decide([cmd.Acquire("next", SPEC, other.me, wake="/run/x.wake")])
    listener = other.log.listen()  # type: ignore[attr-defined]
    try:
        assert select.select([listener.fileno()], [], [], 30)[0]
        assert listener.drain() == [other_hosts.ALL]
        with monkeypatch.context() as broken:
            broken.setattr(sql, "ADD", "SELECT 1 / 0; " + sql.ADD)
            with pytest.raises(StoreError):
                one.decide([cmd.Release("held")])
        assert one.replica.shared is not None
        one.replica.shared.notify("next to be heard")
        assert select.select([listener.fileno()], [], [], 30)[0]
        assert listener.drain() == ["next to be heard"]
    finally:
        listener.close()


@pytest.mark.parametrize("commit", ["is made", "fails"])
def test_a_waiter_of_this_machine_is_woken_while_the_commit_is_on_its_way_and_waits_for_it(
    gates: tuple[DirectGate, DirectGate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str
) -> None:
    one, other = gates
    other.me = one.me
    one.decide([cmd.Acquire("held", SPEC, one.me)])
    other.decide([cmd.Acquire("next", SPEC, other.me, wake="/run/x.wake")])
    claimed: list[list[Decided]] = []

    def claim(woken: other_hosts.Wake) -> None:
        assert woken.message == b"granted"
        thread.start()

    thread = threading.Thread(target=lambda: claimed.append(other.decide([cmd.Claim("next")])))
    monkeypatch.setattr(one.replica, "_send", claim)
    add = sql.ADD
    if commit == "fails":
        monkeypatch.setattr(sql, "ADD", "SELECT pg_sleep(0.3), 1 / 0; " + add)
        with pytest.raises(StoreError):
            one.decide([cmd.Release("held")])
    else:
        monkeypatch.setattr(sql, "ADD", "SELECT pg_sleep(0.3); " + add)
        one.decide([cmd.Release("held")])
    monkeypatch.setattr(sql, "ADD", add)
    thread.join(30)
    assert not thread.is_alive()
    held = {ident: lease.claimed for ident, lease in one.replica.catch_up().leases.items()}
    assert held == ({"next": True} if commit == "is made" else {"held": True})
    assert bool(claimed[0][0].events) == (commit == "is made")


def test_who_has_much_to_read_reads_it_without_the_lock(
    gates: tuple[DirectGate, DirectGate], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = gates
    other.replica.catch_up()
    for number in range(TAIL_COMMITS + 10):
        one.decide([cmd.SetRule(Rule("requests", "umans", cap=1 + number % 7, cooldown_ms=0, on_429="step"))])
    monkeypatch.setattr(replica, "_FAR_STALE_S", 3_600.0)  # as if all that had been within a moment
    other.replica._fed_at = monotonic()
    with_lock: list[int] = []
    feed = other.replica._feed

    def noting(engine: Engine, commits: list[Commit]) -> None:
        if other.log.session.is_locked:  # type: ignore[attr-defined]
            with_lock.append(len(commits))
        feed(engine, commits)

    monkeypatch.setattr(other.replica, "_feed", noting)
    other.decide([cmd.Acquire("late", SPEC, other.me)])
    assert "late" in one.replica.catch_up().leases
    assert sum(with_lock) <= 10, "others waited while it read"


def test_only_waiters_on_other_hosts_are_woken_through_the_store(gates: tuple[DirectGate, DirectGate]) -> None:
    here = other_hosts.Wake("/run/a.wake", b"granted", process_identity.this_process())
    there = other_hosts.Wake("/run/a.wake", b"granted", "elsewhere|boot|1|77|88")
    assert other_hosts.elsewhere([here, there]) == [there]


def test_a_notification_wakes_the_waiters_that_it_names_and_no_other() -> None:
    wakes = [other_hosts.Wake(f"/run/{number}.wake", b"due", f"h{number}|b|1|2|3") for number in range(3)]
    line = other_hosts.written(wakes)
    assert other_hosts.heard([line], other_hosts.mark("h1", "/run/1.wake")) == [b"due"]
    assert other_hosts.heard([line], other_hosts.mark("h1", "/run/2.wake")) == []
    assert other_hosts.heard(["*"], "any") == [b"look"], "something may have been missed: all look"
    assert other_hosts.heard(["", "nonsense", "g"], other_hosts.mark("h1", "/run/1.wake")) == []


def test_a_notification_that_would_be_too_long_wakes_all() -> None:
    assert (
        other_hosts.written(other_hosts.Wake(f"/run/{number}.wake", b"left", "h|b|1|2|3") for number in range(1_000))
        == other_hosts.ALL
    )


def test_l2_a_host_that_was_heard_of_after_it_was_looked_for_loses_nothing(
    gates: tuple[DirectGate, DirectGate], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = gates
    monkeypatch.setattr(host_beats, "LOST_MS", 300)
    other.decide([cmd.Acquire("theirs", SPEC, other.me)])
    site = process_identity.site_of(other.me)
    one.log.beat(site)
    until = monotonic() + 20
    while (judged := one.beats.lost(one.replica.catch_up())) is None:
        assert monotonic() < until, "it is never called silent"
        one.log.beat("another host")  # so that time counts
        sleep(0.02)
    assert judged.silent == (other.me,)
    other.log.beat(site)
    one.decide([judged])
    assert "theirs" in one.state.leases, "it had been heard of when that was decided"
    while "theirs" in one.state.leases:
        assert monotonic() < until, "one that stays silent keeps its slot"
        one.log.beat("another host")
        one.decide([judged])
        sleep(0.02)
