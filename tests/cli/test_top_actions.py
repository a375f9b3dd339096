"""What the keys of `fleetgate top` do to a gate, and what is said of it (rules A9, A12, B6, P3)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from fleetgate.cli.top import actions
from fleetgate.cli.top.actions import perform
from fleetgate.cli.top.selection import Wish
from fleetgate.cli.top.snapshot import snapshot
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.log import open_log
from fleetgate.log.protocol import StoreError
from tests.cli.command_line import Cli, opened

OPUS = "anthropic/claude-opus-4-6"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        cli.gate.one(cmd.SetRule(Rule("agents", "host", 1)))
        cli.gate.one(cmd.SetRule(Rule("requests", "umans", 4, on_429="step")))
        yield cli


def pool(cli: Cli, name: str) -> Any:
    found = snapshot(cli.gate, cli.state).pools
    return next(view for view in found if view.pool.startswith(name))


def ticket(cli: Cli, ident: str) -> Any:
    return next(view for view in snapshot(cli.gate, cli.state).tickets if view.ticket.id == ident)


def do(cli: Cli, what: str, item: Any) -> str:
    return perform(cli.gate, Wish(what, item))


def test_a9_cancel_takes_the_ticket_out_of_the_queue_and_history_has_who_did_it(cli: Cli) -> None:
    cli.occupy(OPUS)
    ident = cli.stand(OPUS)
    said = do(cli, "cancel", ticket(cli, ident))
    assert said.startswith(f"cancelled {ident}: the test (process ")
    assert ident not in cli.state.tickets
    (event,) = [event for event in cli.events() if isinstance(event, ev.Cancelled)]
    assert (event.id, cli.gate.host in event.by) == (ident, True)


def test_a9_what_has_left_or_entered_meanwhile_is_not_cancelled(cli: Cli) -> None:
    slot = cli.occupy(OPUS)
    first, second = cli.stand(OPUS), cli.stand(OPUS)
    entered, left = ticket(cli, first), ticket(cli, second)
    cli.gate.one(cmd.Cancel(second))
    with pytest.raises(NotFound, match=f"{second} has left the queue in the meantime"):
        do(cli, "cancel", left)
    with pytest.raises(NotFound, match="no longer in the queue"):
        do(cli, "bump", left)
    cli.gate.one(cmd.Release(slot))
    cli.gate.one(cmd.Claim(first))
    with pytest.raises(BadRequest, match=f"fleetgate stop {first}"):
        do(cli, "cancel", entered)
    assert first in cli.state.leases


def test_a9_bump_says_the_new_position(cli: Cli) -> None:
    cli.occupy(OPUS)
    _, last = cli.stand(OPUS), cli.stand(OPUS)
    assert do(cli, "bump", ticket(cli, last)).startswith(
        f"{last} is now at position 1 of 2 for host:{cli.gate.host}: the test"
    )
    assert snapshot(cli.gate, cli.state).tickets[0].ticket.id == last


def test_a12_p_pauses_and_resumes_whoever_waits_enters(cli: Cli) -> None:
    host = pool(cli, "host")
    assert "paused until it is resumed" in do(cli, "pause", host)
    assert pool(cli, "host").paused_until is not None
    cli.stand(OPUS)
    # What is on the screen may be older: it is the state that decides which of the two it is.
    assert "resumed; 1 waiting started" in do(cli, "pause", host)
    assert pool(cli, "host").paused_until is None


def test_a12_plus_and_minus_set_the_cap_and_say_what_it_was(cli: Cli) -> None:
    cli.occupy(OPUS)
    cli.stand(OPUS)
    old = pool(cli, "host")
    assert do(cli, "raise", old) == "host (agents): cap 2, was 1; 1 waiting started"
    assert do(cli, "raise", old) == "host (agents): cap 3, was 2", "pressed twice before anything was drawn"
    assert do(cli, "lower", old) == "host (agents): cap 2, was 3"
    assert do(cli, "lower", old).startswith("host (agents): cap 1, was 2; 2 running, no new ones")
    with pytest.raises(BadRequest, match="the minimum cap is 1; p pauses the pool"):
        do(cli, "lower", old)
    assert cli.limit("agents", f"host:{cli.gate.host}") == 1


def test_p3_r_restores_what_a_rate_limit_took(cli: Cli) -> None:
    with pytest.raises(BadRequest, match="was not auto-reduced"):
        do(cli, "restore", pool(cli, "umans"))
    cli.gate.one(cmd.Report(kind="requests", target="umans", retry_after_ms=1000))
    assert cli.limit("requests", "umans") == 3
    assert do(cli, "restore", pool(cli, "umans")) == "umans (requests): cap 4, was auto-reduced to 3 of 4"
    assert cli.limit("requests", "umans") == 4


@pytest.mark.parametrize(("what", "limit"), [("lower", 2), ("raise", 4)])
def test_p3_of_a_reduced_pool_the_limit_in_force_is_changed(cli: Cli, what: str, limit: int) -> None:
    """One less must never let more in: the cap of 4 less one would be the 3 that are in force."""
    cli.gate.one(cmd.Report(kind="requests", target="umans", retry_after_ms=1000))
    do(cli, what, pool(cli, "umans"))
    assert cli.limit("requests", "umans") == limit


def test_c7_a_cap_that_follows_memory_is_left_alone(cli: Cli) -> None:
    cli.gate.one(cmd.SetRule(Rule("agents", "host", auto=True)))
    with pytest.raises(BadRequest, match="follows free memory: fleetgate cap set host N"):
        do(cli, "raise", pool(cli, "host"))


def test_b6_x_clears_the_backoff_once(cli: Cli) -> None:
    cli.gate.one(cmd.BackOff("openai/gpt-5", "overloaded"))
    (backoff,) = snapshot(cli.gate, cli.state).backoffs
    assert do(cli, "clear", backoff) == "cleared: openai/gpt-5"
    assert not cli.state.backoffs
    with pytest.raises(NotFound, match="no longer backed off"):
        do(cli, "clear", backoff)


def test_a_pool_that_is_gone_is_named(cli: Cli) -> None:
    umans = pool(cli, "umans")
    cli.gate.one(cmd.RemoveCap("requests", "umans"))
    with pytest.raises(NotFound, match=r"umans \(requests\) no longer has a cap"):
        do(cli, "pause", umans)


def test_q2_a_lock_that_somebody_keeps_is_not_waited_for_long(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "PATIENCE_S", 0.05)
    umans = pool(cli, "umans")
    with closing(open_log(f"sqlite://{cli.folder / 's'}")) as other:
        other.lock()
        with pytest.raises(StoreError, match=r"nothing was done: .* holds the store's lock"):
            do(cli, "pause", umans)
    assert pool(cli, "umans").paused_until is None


def test_l6_an_agent_is_stopped_and_a_program_is_not(cli: Cli) -> None:
    ident = cli.occupy(OPUS)
    view = next(view for view in snapshot(cli.gate, cli.state).leases if view.lease.id == ident)
    with pytest.raises(BadRequest, match="is held by a program itself"):
        do(cli, "stop", view)
    cli.gate.one(cmd.Claim(ident, cli.gate.me))
    assert do(cli, "stop", view).startswith(f"stopping {ident}: ")
    assert [event.id for event in cli.events() if isinstance(event, ev.StopRequested)] == [ident]
    cli.gate.one(cmd.Release(ident))
    with pytest.raises(NotFound, match="has ended in the meantime"):
        do(cli, "stop", view)
