"""Those who wait directly, as `headgate run` does, on a store that many machines share."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from headgate.core import commands as cmd
from headgate.core.records import Lease, Rule, Spec
from headgate.gate import far, processes, waiting, wake
from headgate.gate.direct import DirectGate
from headgate.gate.seats import Left
from headgate.gate.waiting import Waiter
from headgate.log import open_log
from tests.postgres_server import Server
from tests.postgres_stores import fresh_store

pytestmark = [pytest.mark.postgres]

SPEC = Spec(models=("umans/coder",), kind="requests")


@pytest.fixture
def gates(postgres: Server, tmp_path: Path) -> Iterator[tuple[DirectGate, DirectGate]]:
    url = fresh_store(postgres)
    one = DirectGate(open_log(url), folder=str(tmp_path))
    other = DirectGate(open_log(url), folder=str(tmp_path))
    other.me = "elsewhere|boot|1|77|88"  # nobody who can be reached or judged from here
    other.host = "elsewhere"
    one.one(cmd.SetRule(Rule("requests", "umans", cap=1, cooldown_ms=0, on_429="step")))
    yield one, other
    one.close()
    other.close()


def test_a_waiter_on_another_machine_is_woken_by_a_release_and_not_by_its_poll(
    gates: tuple[DirectGate, DirectGate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "POLL_S", 3_600.0)
    monkeypatch.setattr(waiting, "_SLOWEST_LOOK_S", 3_600.0)
    one, other = gates
    one.decide([cmd.Acquire("held", SPEC, one.me)])
    got: list[Lease | Left | None] = []
    with wake.Mailbox(wake.runtime_folder(str(tmp_path))) as mailbox:
        other.replica.address = mailbox.address
        other.decide([cmd.Acquire("next", SPEC, other.me, wake=mailbox.address)])
        waiter = Waiter(other, "next", mailbox, on_view=lambda view: None, on_trouble=pytest.fail)
        ours, theirs = os.pipe()
        thread = threading.Thread(target=lambda: got.append(waiter.wait(monotonic() + 30, ours, lambda: False)))
        thread.start()
        until = monotonic() + 25
        while waiter._listener is None or not waiter._listener.listens.is_set():  # type: ignore[attr-defined]
            assert monotonic() < until, "it does not listen"
            sleep(0.01)
        sleep(0.5)  # what was told when it began to listen is heard by now
        one.decide([cmd.Release("held")])
        released = monotonic()
        thread.join(40)
        took_s = monotonic() - released
        os.close(ours)
        os.close(theirs)
    assert isinstance(got[0], Lease)
    assert took_s < 15, "it was not woken, and found out when its time was up"


def test_only_those_elsewhere_are_told_through_the_store(gates: tuple[DirectGate, DirectGate]) -> None:
    here = far.Wake("/run/a.wake", b"granted", processes.this_process())
    there = far.Wake("/run/a.wake", b"granted", "elsewhere|boot|1|77|88")
    assert far.elsewhere([here, there]) == [there]


def test_a_line_wakes_those_whom_it_names_and_nobody_else() -> None:
    wakes = [far.Wake(f"/run/{number}.wake", b"due", f"h{number}|b|1|2|3") for number in range(3)]
    line = far.written(wakes)
    assert far.heard([line], far.mark("h1", "/run/1.wake")) == [b"due"]
    assert far.heard([line], far.mark("h1", "/run/2.wake")) == []
    assert far.heard(["*"], "whoever") == [b"granted"], "something may have been missed: all look"
    assert far.heard(["", "nonsense", "g"], far.mark("h1", "/run/1.wake")) == []


def test_a_line_that_would_be_too_long_wakes_all() -> None:
    assert far.written(far.Wake(f"/run/{number}.wake", b"left", "h|b|1|2|3") for number in range(1_000)) == far.ALL
