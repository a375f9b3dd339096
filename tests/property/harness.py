"""A gate on a bench: one engine, a clock that moves only when told, and everything checked after every step.

Every step goes the way it goes in production (gate/replica/replica.py): Tick, then the command, at one `now`. A second
engine takes in each batch of events, as another process would, and must then have nothing to add.
"""

from __future__ import annotations

import msgspec

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Lease, Reason, Rule, Spec
from fleetgate.core.invariants import check_invariants, check_settled
from fleetgate.core.state.snapshot_format import Snapshot
from fleetgate.core.state.state import State

START = 1_700_000_000_000
OPUS = "anthropic/claude-opus-4-6"
SONNET = "anthropic/claude-sonnet-4-6"
CODER = "umans/coder"

SECOND = 1_000
MINUTE = 60_000
HOUR = 3_600_000


def through_json(snapshot: Snapshot) -> Snapshot:
    """A snapshot written down and read back."""
    return msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot)


class Bench:
    """Drives an engine in virtual time. `agents` and `requests` are caps of the config file."""

    def __init__(
        self,
        agents: dict[str, int] | None = None,
        requests: dict[str, int] | None = None,
        *,
        rules: tuple[Rule, ...] = (),
        seniority_ms: int | None = None,
        me: str = "",
        has_budgets: bool = False,
    ) -> None:
        self.now = START
        self.has_budgets = has_budgets
        self.engine = Engine(me=me)
        self.other = Engine()
        self.log: list[tuple[ev.Event, int]] = []
        self._ids = 0
        caps = [Rule("agents", selector, cap=cap) for selector, cap in (agents or {}).items()]
        # With `adapt`, the default, calls wait for each other at first: its own tests name it.
        caps += [Rule("requests", selector, cap=cap, on_429="step") for selector, cap in (requests or {}).items()]
        self.file(*caps, *rules, seniority_ms=seniority_ms)

    @property
    def state(self) -> State:
        return self.engine.state

    # Steps.

    def do(self, command: cmd.Command) -> list[ev.Event]:
        """One transaction: Tick, the command, and a look at everything."""
        dues = [engine.next_deadline() for engine in (self.engine, self.other)]
        ticked = self.engine.handle(cmd.Tick(), self.now)
        if any(not isinstance(event, ev.HourClosed) for event in ticked):  # sums of an hour wait for the next command
            woken = [due is not None and due <= self.now for due in dues]
            enough = any(woken) if self.has_budgets else all(woken)
            assert enough, f"nobody was to wake for {ticked}: {dues}"
        self._told(ticked)
        events = self.engine.handle(command, self.now)
        self._told(events)
        self._check()
        return ticked + events

    def _told(self, events: list[ev.Event]) -> None:
        self.log += [(event, self.now) for event in events]
        self.other.replay(events, self.now)

    def _check(self) -> None:
        check_invariants(self.state)
        check_settled(self.state, self.now)
        self._check_second_process()
        due = self.engine.next_deadline()
        assert due is None or due > self.now, f"due {due} at {self.now}"

    def _check_second_process(self) -> None:
        """It adds nothing, but for one thing: a request that waits in a budget behind another one (rule V4) is looked
        at when the budget changes. If the other one waits for a pool as well by now, a process that looks afresh lets
        it in at once.
        """
        added = self.other.handle(cmd.Tick(), self.now)
        waited = [event for event in added if isinstance(event, ev.Granted) and event.ticket is None]
        behind = [event for event in waited if self.state.queue(self.state.tickets[event.id].spec).parked_budgets]
        assert len(added) == (len(behind) if self.has_budgets else 0), f"a second process would add {added}"
        if added:
            self.other = Engine(State.restore(through_json(self.state.export(self.now))))
            return
        check_settled(self.other.state, self.now)
        assert self.other.state.export(self.now) == self.state.export(self.now)

    def wait(self, ms: int) -> list[ev.Event]:
        """Let time pass, waking up at every deadline on the way, as a gate does."""
        end = self.now + ms
        events: list[ev.Event] = []
        while True:
            due = self.engine.next_deadline()
            if due is None or due > end:
                break
            self.now = due
            events += self.do(cmd.Tick())
        self.now = end
        return events + self.do(cmd.Tick())

    # What people and processes do.

    def file(self, *rules: Rule, seniority_ms: int | None = None) -> list[ev.Event]:
        self._ids += 1
        name = str(self._ids)
        return self.do(cmd.LoadFile("config.toml", name, self._ids, tuple(rules), seniority_ms))

    def cap(self, kind: str, selector: str, cap: int) -> list[ev.Event]:
        on_429 = "step" if kind == "requests" else None
        return self.do(cmd.SetRule(Rule(kind, selector, cap=cap, on_429=on_429)))

    def spec(self, *models: str, **said: object) -> Spec:
        return Spec(models=models, host=str(said.pop("host", "h1")), **said)  # type: ignore[arg-type]

    def ask(self, ident: str, spec: Spec, **said: object) -> list[ev.Event]:
        """Acquire; the holder is a process named after the request unless `holder` says otherwise."""
        holder = str(said.pop("holder", f"p-{ident}"))
        return self.do(cmd.Acquire(ident, spec, holder, **said))  # type: ignore[arg-type]

    def agent(self, ident: str, *models: str, **said: object) -> str:
        """Ask for an agents slot; what became of it. What is not a field of Spec goes into Acquire."""
        own = {name: said.pop(name) for name in list(said) if name in Spec.__struct_fields__}
        self.ask(ident, self.spec(*models, **own), **said)
        return self.fate(ident)

    def call(self, ident: str, *models: str, **said: object) -> str:
        """Ask for a requests slot."""
        return self.agent(ident, *models, kind="requests", **said)

    def release(self, ident: str, outcome: str = "ok", retry_after_ms: int | None = None) -> list[ev.Event]:
        return self.do(cmd.Release(ident, outcome, retry_after_ms))

    # What can be seen.

    def fate(self, ident: str) -> str:
        if ident in self.state.leases:
            return "granted" if self.state.leases[ident].claimed else "offered"
        if ident in self.state.tickets:
            return "away" if self.state.tickets[ident].away else "waits"
        ends = (ev.Released, ev.Reclaimed, ev.Cancelled, ev.Expired, ev.Dropped, ev.Deferred)
        last = [event for event, _ in self.log if isinstance(event, ends) and event.id == ident]
        return type(last[-1]).__name__.lower() if last else "unknown"

    def lease(self, ident: str) -> Lease:
        return self.state.leases[ident]

    def running(self) -> list[str]:
        return sorted(self.state.leases)

    def reason(self, ident: str) -> Reason:
        """Why a request was queued or deferred."""
        for event, _ in reversed(self.log):
            if isinstance(event, ev.Queued) and event.ticket.id == ident:
                return event.reason
            if isinstance(event, ev.Deferred) and event.id == ident:
                return event.reason
        raise LookupError(ident)

    def of(self, *types: type) -> list[ev.Event]:
        """All events of these types so far."""
        return [event for event, _ in self.log if isinstance(event, types)]

    def used(self, pool: str, kind: str = "agents") -> int:
        return self.state.pools[f"{kind} {pool}"].used

    def limit(self, pool: str, kind: str = "agents") -> int:
        return self.state.pools[f"{kind} {pool}"].limit

    # Starting again.

    def replayed(self) -> State:
        """A state made from the log alone."""
        state = State()
        for event, at in self.log:
            state.apply(event, at)
        return state

    def restart(self) -> None:
        """Go on with an engine made from a snapshot, as after a crash."""
        self.engine = Engine(State.restore(through_json(self.state.export())), me=self.engine.me)
        assert self.engine.handle(cmd.Tick(), self.now) == []
        self._check()
