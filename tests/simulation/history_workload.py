"""A random workload on a store, in virtual time: a log as a fleet of agents, their calls and a worker leaves it."""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.state.state import State
from fleetgate.gate.replica.replica import Replica
from tests.simulation.stores import Store

ME = "h|b|0|1|1"
MODELS = ("umans/a", "umans/b", "groq/c")


class Workload:
    """Agents that wait for a slot and make calls one after another, jobs, single calls, and people who change caps."""

    def __init__(
        self,
        store: Store,
        seed: int,
        requests: int,
        *,
        on_429: str = "adapt",
        calm: bool = False,
        every_ms: int = 1_500,
    ) -> None:
        self.clock = store.clock
        self.log = store.open()
        self.replica = Replica(self.log, ME)
        self.draw = Random(seed)
        self.calm = calm  # no refusals, and no changes of caps
        self._heap: list[tuple[int, float, cmd.Command]] = []
        self._calls_left: dict[str, int] = {}  # of runs
        self._jobs: dict[str, str] = {}  # job -> worker
        self._granted_now: set[str] = set()
        self._decide(cmd.SetRule(Rule("requests", "umans", cap=6, on_429=on_429, max_hold_ms=0)))
        self._decide(cmd.SetRule(Rule("requests", "groq", cap=2, on_429="step", max_hold_ms=60_000)))
        self._decide(cmd.SetRule(Rule("agents", "host", cap=4)))
        at = self.clock()
        for number in range(requests):
            at += int(self.draw.expovariate(1 / every_ms))
            self._plan_arrival(at, number)

    @property
    def state(self) -> State:
        return self.replica.state

    def _plan(self, at: int, command: cmd.Command) -> None:
        heappush(self._heap, (at, self.draw.random(), command))

    def _plan_arrival(self, at: int, number: int) -> None:
        draw, ident = self.draw, f"r{number}"
        kind = draw.choice(("requests", "requests", "agents"))
        spec = Spec((draw.choice(MODELS),), kind, host="h", project=draw.choice("xyz"))
        job = kind == "agents" and draw.random() < 0.3
        holder = f"h|b|0|{2 + number % 7}|1"
        since = at - draw.randrange(30_000) if draw.random() < 0.1 else None
        self._plan(at, cmd.Acquire(ident, spec, holder, True, since, draw.choice((0, 0, 0, 5)), job=job))
        if job:
            self._jobs[ident] = f"h|b|0|{100 + number % 2}|1"
            self._plan(at + 50, cmd.Offer(ident, self._jobs[ident], "h"))
        elif kind == "agents":
            self._calls_left[ident] = draw.randrange(5)
        if draw.random() < 0.05:
            self._plan(at + draw.randrange(20_000), cmd.Cancel(ident))
        if draw.random() < 0.03:
            self._plan(at + draw.randrange(5_000), cmd.Bump(ident))
        if self.calm:
            return
        if draw.random() < 0.01:
            self._plan(at, cmd.SetRule(Rule("requests", "umans", cap=draw.randrange(4, 9))))
        if draw.random() < 0.01:
            self._plan(at, cmd.Pause("requests", "groq", 5_000))
        if draw.random() < 0.01:
            self._plan(at, cmd.Report(kind="requests", target="umans", retry_after_ms=draw.choice((None, 4_000))))

    def _decide(self, command: cmd.Command) -> None:
        self.replica.decide([command])
        for event in self.replica.made:
            if isinstance(event, ev.Granted) and event.id in self.state.leases:
                self._started(event)
            elif isinstance(event, ev.Released) and event.run in self.state.leases:
                self._after_call(event.run)

    def _started(self, event: ev.Granted) -> None:
        if event.id in self._granted_now:
            return
        self._granted_now.add(event.id)
        now, draw = self.clock(), self.draw
        if not event.claimed:
            self._plan(now + draw.randrange(3), cmd.Claim(event.id))
        if self._calls_left.get(event.id):
            self._after_call(event.id)
            return
        refused = not self.calm and draw.random() < 0.02
        took = draw.randrange(50, 200) if refused else int(draw.lognormvariate(8.3, 1))
        hint = 3_000 if refused and draw.random() < 0.5 else None
        self._plan(now + took, cmd.Release(event.id, "rate_limited" if refused else "ok", hint))
        if draw.random() < 0.5:
            self._plan(now + min(took, 700), cmd.Active(event.id))

    def _after_call(self, run: str) -> None:
        """The agent thinks, and calls again or ends."""
        at = self.clock() + self.draw.randrange(3_000)
        left = self._calls_left[run] = self._calls_left[run] - 1
        if left < 0:
            self._plan(at, cmd.Release(run))
            return
        model = self.state.leases[run].model
        call = cmd.Acquire(f"{run}.{left}", Spec((model,), "requests", host="h"), run, run=run)
        self._plan(at, call)

    def play(self, until: int | None = None) -> None:
        """Everything that is planned; with `until`, only what comes before."""
        while self._heap:
            due = self.replica.engine.next_deadline()
            at = self._heap[0][0] if due is None else min(due, self._heap[0][0])
            if until is not None and at >= until:
                break
            self.clock.advance(max(at - self.clock(), 0))
            self._decide(heappop(self._heap)[2] if self._heap[0][0] <= at else cmd.Tick())
