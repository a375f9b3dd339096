"""What a waiting `fleetgate run` prints where nothing is a terminal: a line for each reason, then one a minute."""

from __future__ import annotations

import pytest

from fleetgate.cli.run import wait_progress
from fleetgate.cli.run.wait_progress import Progress
from fleetgate.core.entities import Reason, Spec, Ticket
from fleetgate.core.views.pool_and_lease_views import TicketView

BACKED_OFF = Reason("backoff", "x/y is backed off: rate_limited", until=121_000, model="x/y", cause="rate_limited")


def view(reason: Reason = BACKED_OFF, position: int = 1) -> TicketView:
    return TicketView(Ticket("t1", Spec(), "me", 0, 1, 0, 0, 0), position, reason, (1000, 61_000))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    printed: list[str] = []
    monkeypatch.setattr(wait_progress, "say", printed.append)
    monkeypatch.setattr("os.isatty", lambda fd: False)
    return printed


def test_a_reason_is_told_once_and_then_once_a_minute_however_its_numbers_change(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(wait_progress, "monotonic", lambda: now)
    waits = Progress(quiet=False)
    for second in range(121):  # the last two minutes of a backoff
        now = 1000.0 + second
        waits.show(view(position=1 + second % 5), now=1000 * second)
    assert len(lines) == 2, lines
    assert "for 2m" in lines[0]
    assert "for 60s" in lines[1] or "for 1m" in lines[1] or "for 59s" in lines[1], lines[1]


def test_another_reason_is_told_at_once(lines: list[str]) -> None:
    waits = Progress(quiet=False)
    waits.show(view(), now=0)
    waits.show(view(Reason("full", "3 of 3 slots of x/y are taken", "x/y")), now=0)
    waits.show(view(Reason("full", "3 of 3 slots of host:vm are taken", "host:vm")), now=0)
    waits.show(view(Reason("full", "4 of 4 slots of host:vm are taken", "host:vm")), now=0)
    assert len(lines) == 3, lines


def test_a_quiet_run_prints_nothing(lines: list[str]) -> None:
    Progress(quiet=True).show(view(), now=0)
    assert not lines
