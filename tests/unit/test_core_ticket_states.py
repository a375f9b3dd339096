"""The states of a ticket: the table, the page and the engine agree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.state.state import State
from fleetgate.core.ticket_states import EDGES, GONE, NEW, RUNNING, STATES
from tests.golden.test_state_golden import HERE as GOLDEN
from tests.golden.test_state_golden import read_log

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ticket-states.md").read_text()
TABLE = {
    (source, name, target) for name, (sources, targets, _) in EDGES.items() for source in sources for target in targets
}
MODEL = "anthropic/opus"
SPEC = Spec(models=(MODEL,), host="h")
MINUTE = 60_000
Transition = tuple[str, str, str]


def states_of(state: State) -> dict[str, str]:
    found = {ident: ticket.state for ident, ticket in state.tickets.items()}
    return found | dict.fromkeys(state.leases, RUNNING)


def transitions(state: State, events: list[ev.Event], at: int) -> Iterator[Transition]:
    """What these events change, one by one."""
    for event in events:
        before = states_of(state)
        state.apply(event, at)
        after = states_of(state)
        for ident in before.keys() | after.keys():
            source, target = before.get(ident, NEW), after.get(ident, GONE)
            if source != target:
                yield source, str(event.__struct_config__.tag), target


class Play:
    """A gate with one slot, and what became of its tickets."""

    def __init__(self) -> None:
        self.engine = Engine(me="decider")
        self.copy = State()
        self.now = 1_000
        self.seen: set[Transition] = set()
        self.ids = count(1)
        self.do(cmd.LoadFile("f", "d", 1, (Rule("agents", "host", cap=1),)))

    def do(self, command: cmd.Command) -> None:
        for each in (cmd.Tick(), command):
            self.seen.update(transitions(self.copy, self.engine.handle(each, self.now), self.now))

    def wait(self, ms: int) -> None:
        self.now += ms
        self.do(cmd.Tick())

    def add(self, **said: object) -> str:
        ident = f"t{next(self.ids)}"
        self.do(cmd.Acquire(ident, SPEC, "p", **said))  # type: ignore[arg-type]
        return ident

    def job(self, *, offered: bool = True, **said: object) -> str:
        ident = self.add(job=True, **said)
        if offered:
            self.do(cmd.Offer(ident, "w", "h"))
        return ident

    def passed_over(self, **said: object) -> str:
        """A ticket whose grant was not claimed."""
        runs = self.add()
        ident = self.add(**said)
        self.do(cmd.Release(runs))
        self.wait(11_000)
        assert self.engine.state.tickets[ident].state == "passed_over"
        return ident

    def back_off(self) -> None:
        self.do(cmd.BackOff(MODEL, "overloaded", 10 * MINUTE))

    def free(self) -> None:
        self.do(cmd.EndBackoff(MODEL))


def play_all() -> set[Transition]:
    play = Play()
    # Passed over, and back; granted, released, reclaimed.
    ident = play.passed_over()
    play.do(cmd.Ask(ident))
    play.do(cmd.Claim(ident))
    play.do(cmd.Reclaim(ident, "a person"))
    ident = play.passed_over()
    play.back_off()
    play.do(cmd.Ask(ident))
    play.do(cmd.Cancel(ident))
    play.free()
    for end in ("cancel", "drop", "expire"):
        ident = play.passed_over(expires_ms=MINUTE)
        if end == "cancel":
            play.do(cmd.Cancel(ident))
        elif end == "drop":
            play.do(cmd.Lost(("p",)))
        play.wait(2 * MINUTE)
    # Waiting and stalled: backed off and usable again; each way to leave.
    runs = play.add()
    tickets = [play.add(expires_ms=20 * MINUTE) for _ in range(2)]
    play.back_off()
    tickets.append(play.add())
    play.do(cmd.Cancel(tickets[2]))
    play.free()
    play.do(cmd.Cancel(tickets[0]))
    play.wait(21 * MINUTE)
    play.do(cmd.Release(runs))
    runs = play.add(bound="agent")
    play.add()
    play.do(cmd.Lost(("p",)))
    play.add()
    play.back_off()
    play.do(cmd.Lost(("p",)))
    play.do(cmd.Release(runs))
    play.free()
    # A stalled ticket tries out a backoff.
    play.do(cmd.BackOff(MODEL, "overloaded", 24 * 60 * MINUTE))
    ident = play.add(expires_ms=48 * 60 * MINUTE)
    other = play.job()
    play.wait(6 * 60 * MINUTE)
    play.do(cmd.Claim(ident))
    play.do(cmd.Withdraw(other, "w"))
    play.do(cmd.Cancel(other))
    play.do(cmd.Release(ident))
    # Jobs.
    runs = play.add()
    ident = play.job()
    play.do(cmd.Withdraw(ident, "w"))
    play.do(cmd.Offer(ident, "w", "h"))
    play.do(cmd.Release(runs))
    play.do(cmd.Lost(("w",)))
    play.do(cmd.Cancel(ident))
    play.job(offered=False, expires_ms=MINUTE)
    play.wait(2 * MINUTE)
    for end in ("approve", "cancel", "expire"):
        ident = play.job(confirm=True, expires_ms=MINUTE)
        assert play.engine.state.tickets[ident].state == "held"
        if end != "expire":
            play.do(cmd.Approve(ident) if end == "approve" else cmd.Cancel(ident))
        play.wait(2 * MINUTE)
    play.do(cmd.BackOff(MODEL, "overloaded", 24 * 60 * MINUTE))
    ident = play.job(confirm=True, expires_ms=48 * 60 * MINUTE)
    play.wait(6 * 60 * MINUTE)
    assert play.engine.state.tickets[ident].state == "held"
    return play.seen


def test_the_engine_makes_exactly_the_transitions_of_the_table():
    assert play_all() == TABLE


def test_the_page_draws_the_table():
    drawn = re.findall(r"^    (\S+) --> (\S+): (\S+)$", PAGE, re.MULTILINE)
    assert {(source, name, target) for source, target, name in drawn} == TABLE
    assert len(drawn) == len(TABLE)
    parts = PAGE.split("```mermaid")
    states, events = (dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", part, re.MULTILINE)) for part in parts)
    assert tuple(states) == STATES
    assert events == {name: edge.meaning for name, edge in EDGES.items()}


def test_old_logs_make_no_other_transitions():
    state, seen = State(), set[Transition]()
    for at, events in read_log(GOLDEN / "events-2.jsonl"):
        seen.update(transitions(state, events, at))
    # That log was composed to have every field of a ticket, so one of its jobs begins held.
    assert seen - {(NEW, "queued", "held")} <= TABLE
