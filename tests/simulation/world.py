"""A simulated machine: processes that decide on one log, die, fail and come back, all from one seed.

Everything happens in one thread and in virtual time, so that a seed always tells the same story. After every step
the log is compared with what its writer wanted and what it was told, and entered into the books (books.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import reduce
from time import monotonic, sleep

import msgspec
import pytest
from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.entities import AccountSet, BudgetRule, Rule, Spec
from fleetgate.core.errors import InternalError
from fleetgate.core.invariants import check_invariants
from fleetgate.core.state.snapshot_format import Snapshot
from fleetgate.core.state.state import State
from fleetgate.core.usage import ESTIMATE, RESPONSE, Reading, Size, Usage
from fleetgate.gate.replica import replica
from fleetgate.gate.replica.replica import Decided, Replica
from fleetgate.gate.replica.side_rows import TICKET_NEWS
from fleetgate.gate.usage_rows import closed_rows
from fleetgate.log.protocol import START, Commit, Log, Position, StoreError
from tests.simulation.books import Books
from tests.simulation.faults import KINDS, FaultyLog, Killed
from tests.simulation.stores import InPostgres, Store

OPUS, SONNET, HAIKU = "anthropic/claude-opus-4-6", "anthropic/claude-sonnet-4-6", "anthropic@work/claude-haiku-4-5"
CODER, CODER_AT_WORK, FAST = "umans/coder", "umans@work/coder", "umans/fast"
OPUS_CAP = "anthropic/claude-opus-*"
SELECTORS = (
    ("agents", "host"),
    ("agents", "project"),
    ("agents", "key"),
    ("agents", OPUS_CAP),
    ("requests", "umans"),
    ("requests", "umans/coder"),
)
SNAPSHOT_EVERY = 25  # events


class Process:
    """One decider. What it believes comes only from what it was told."""

    def __init__(self, name: str, log: FaultyLog) -> None:
        self.name = name
        self.log = log
        self.replica = Replica(log, name, lambda wake: log.step("wake"))
        self.replica.address = f"/run/{name}.wake"
        self.unsure: list[cmd.Acquire] = []  # asked for, and then the store failed

    def __repr__(self) -> str:
        return f"<Process {self.name}>"


class World:
    """The whole of it. `step()` does one thing; `check()` compares everybody with the log."""

    def __init__(self, store: Store, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.store = store
        self.clock = store.clock
        self.random = random.Random(seed)
        # A decider catches up before it takes the lock when it was not fed for a while: by the clock of this world.
        patch.setattr(replica, "monotonic", lambda: self.clock() / 1000)
        patch.setattr(replica, "_SNAPSHOT_EVERY", SNAPSHOT_EVERY)
        self.number = 0
        self.faults = 0
        self.lost_connections = 0  # or processes that ended in the middle of a round trip
        self.alive: list[Process] = []
        self.gone: list[str] = []
        self.started = 0
        self.asked: list[str] = []  # every id, the newest last
        self.archive: list[Commit] = []  # the whole log, also what was pruned
        self.books = Books()
        self.backup: tuple[Callable[[], None], int] | None = None
        self.files = 0
        self.observer: Log = store.open()
        self.position: Position = START
        first = self.start()
        self.decide(first, [self.file()])

    # Processes.

    def start(self) -> Process:
        self.started += 1
        process = Process(f"h|boot|1|{self.started}|{self.started}", FaultyLog(self.store.open()))
        self.alive.append(process)
        return process

    def bury(self, process: Process) -> None:
        process.log.bury()
        self.alive.remove(process)
        self.gone.append(process.name)

    def close(self) -> None:
        for process in list(self.alive):
            self.bury(process)
        self.observer.close()

    # One step.

    def step(self) -> None:
        self.number += 1
        self.clock.advance(self.random.choice((0, 0, 0, 1, 20, 200, 400, 2_000, 11_000)))
        chosen = self.random.random()
        if not self.alive or (len(self.alive) < 6 and chosen < 0.08):
            self.start()
        elif chosen < 0.10:
            self.bury(self.random.choice(self.alive))
        elif chosen < 0.14:
            self.maintain(self.random.choice(self.alive))
        elif chosen < 0.15:
            self.backup = self.store.backup(), len(self.archive)
        elif chosen < 0.16 and self.backup is not None:
            self.restore()
        else:
            process = self.random.choice(self.alive)
            if self.random.random() < 0.35:
                process.log.arm(self.random.randrange(24), self.random.choice(KINDS))
            self.decide(process, self.commands(process))

    def decide(self, process: Process, commands: Sequence[cmd.Command]) -> None:
        """One transaction, by whichever way; then the log is compared with what was told."""
        decide = process.replica.try_decide if self.random.random() < 0.5 else process.replica.decide
        told: list[Decided] | None = None
        try:
            durable = self.random.random() < 0.2
            told = decide(commands, durable=durable)
            until = monotonic() + 60
            while told is None and isinstance(self.store, InPostgres) and monotonic() < until:
                sleep(0.01)  # a server needs a moment to see that one with the lock has died
                told = decide(commands, durable=durable)
            assert told is not None, "the lock is held by nobody, and was not to be had"
        except Killed:
            pass
        except InternalError:
            raise
        except (StoreError, KeyboardInterrupt):
            process.unsure = [command for command in commands if isinstance(command, cmd.Acquire)]
        log = process.log
        self.faults += bool(log.failed_at)
        self.lost_connections += log.failed_at.startswith("trip")
        committed = self.read_on()
        self.compare(log, committed, told)
        log.arm()
        if log.dead or (told is None and process.log.dead):
            self.bury(process)

    def compare(self, log: FaultyLog, committed: list[Commit], told: list[Decided] | None) -> None:
        """All of a batch is in the log, or nothing; and nobody was told what is not in it."""
        assert len(committed) <= 1, "one transaction, and more than one commit"
        in_log = committed[0].events if committed else []
        wanted = log.appended
        if committed:
            assert wanted is not None
            assert in_log == wanted.events, "half a batch was committed"
            for (table, key), value in {(table, key): value for table, key, value in wanted.side}.items():
                assert self.observer.side_value(table, key) == value, f"{key} beside the log did not change with it"
        if told is not None:
            events = [event for one in told for event in one.events]
            assert in_log[len(in_log) - len(events) :] == events, "somebody was told what is not in the log"
            assert committed or wanted is None, "a commit was reported and is not there"
        elif not {"appended", "sql COMMITTED", "trip COMMITTED"} & {*log.steps}:
            assert not committed, f"it failed at {log.failed_at}, and left a trace"

    def read_on(self) -> list[Commit]:
        """Take in what is new in the log: into the archive and into the books."""
        commits = self.observer.read(self.position)
        for commit in commits:
            assert commit.number == len(self.archive) + 1
            self.archive.append(commit)
            for event in commit.events:
                self.books.enter(event, commit.at)
            self.position = commit.position
        return commits

    # Upkeep and its accidents.

    def maintain(self, process: Process) -> None:
        """A snapshot if one is due, and everything behind it pruned; the process may fail in the middle."""
        if self.random.random() < 0.5:
            process.log.arm(self.random.randrange(24), self.random.choice(KINDS))
        try:
            process.replica.catch_up()
            process.replica.maintain(keep_ms=self.random.choice((0, 5_000, 60_000)))
        except (Killed, StoreError, KeyboardInterrupt):
            self.faults += 1
        self.read_on()
        dead = process.log.dead
        process.log.arm()
        if dead:
            self.bury(process)

    def restore(self) -> None:
        """An operator puts an older copy of the store in place, under running processes."""
        assert self.backup is not None
        restore, length = self.backup
        restore()
        del self.archive[length:]
        self.books = Books()
        for commit in self.archive:
            for event in commit.events:
                self.books.enter(event, commit.at)
        self.observer.close()
        self.observer = self.store.open()
        self.position = self.archive[-1].position if self.archive else START

    # Comparing.

    def check(self) -> None:
        """Everybody who catches up has the same picture as a fresh replay of the whole log."""
        fresh = self.replayed()
        now = max(self.clock(), fresh.at)
        check_invariants(fresh)
        expected = picture(fresh, now)
        assert fresh.tickets.keys() == self.books.tickets.keys()
        assert fresh.leases.keys() == self.books.leases.keys()
        rows = list(fresh.usage.rows())
        hour = now // 3_600_000
        rows += [row for _, row in closed_rows(self.observer, hour - 99, hour + 1)]
        counted = reduce(Usage.plus, (row.usage for row in rows), Usage())
        assert replace(counted, source="") == replace(self.books.used, source=""), "usage counts once"
        for ident, lease in fresh.leases.items():
            told = self.observer.side_value(TICKET_NEWS, ident)
            assert (told == b"granted") == (not lease.claimed), f"{ident}: the row for its backstop poll says {told!r}"
        newcomer = Replica(self.store.open(), "h|boot|1|0|0")
        compare("a newcomer, from snapshot and tail", picture(newcomer.catch_up(), now), expected)
        newcomer.log.close()
        for process in self.alive:
            state = process.replica.catch_up()
            check_invariants(state)
            compare(process.name, picture(state, now), expected)

    def replayed(self) -> State:
        engine = Engine()
        for commit in self.archive:
            engine.replay(commit.events, commit.at)
        return engine.state

    def finish(self) -> None:
        """Everybody dies; one who comes later finds out, and nothing is left."""
        self.check()
        for process in list(self.alive):
            self.bury(process)
        last = self.start()
        children = {lease.child for lease in last.replica.catch_up().leases.values() if lease.child}
        self.decide(last, [cmd.Lost((*self.gone, *sorted(children)))])
        state = last.replica.catch_up()
        assert not state.leases, f"leaked: {state.leases}"
        assert not state.tickets, f"left in the queue: {state.tickets}"
        self.clock.advance(86_400_000)
        self.decide(last, [])
        assert all(pool.occupied(self.clock()) == pool.foreign for pool in state.pools.values())
        self.check()
        self.decide(last, [cmd.Bypass(last.name) for _ in range(SNAPSHOT_EVERY + 1)])
        assert last.replica.maintain(keep_ms=0)
        self.read_on()
        assert self.observer.side_items(TICKET_NEWS) == [], "rows for waiters that no process will read"
        self.check()

    # What processes do.

    def commands(self, process: Process) -> list[cmd.Command]:
        """One to four commands; those whose fate is unknown come first, as they were or withdrawn."""
        commands: list[cmd.Command] = []
        for unsure in process.unsure:
            again = self.random.random() < 0.6
            commands += [unsure] if again else [cmd.Release(unsure.id), cmd.Cancel(unsure.id)]
        process.unsure = []
        while len(commands) < 1 or self.random.random() < 0.4:
            commands.append(self.command(process))
        return commands

    def command(self, process: Process) -> cmd.Command:
        make = self.random.choices(
            (
                self.acquire,
                self.release,
                self.claim,
                self.line,
                self.rule,
                self.pause,
                self.report,
                self.backoff,
                self.world,
            ),
            (40, 22, 14, 8, 5, 3, 3, 4, 5),
        )[0]
        return make(process)

    def file(self) -> cmd.LoadFile:
        self.files += 1
        rules = tuple(
            Rule(kind, selector, cap=self.random.randint(1, 3) + (selector in ("project", "key")), on_429="step")
            for kind, selector in SELECTORS
        )
        budgets = (
            BudgetRule("project", "tokens", 4_000, "day"),
            BudgetRule("umans", "calls", self.random.choice((20, 60)), "1m", 60_000),
            BudgetRule("key:ci", "calls", self.random.choice((20, 60)), "1m", 60_000),
        )
        umans = AccountSet("umans", ("default", "work"), ("spare",), patience_ms=self.random.choice((0, 2_000)))
        sets = (umans,) if self.random.random() < 0.7 else ()
        name = f"digest {self.files}"
        return cmd.LoadFile("/etc/fleetgate.toml", name, self.files, rules, budgets=budgets, account_sets=sets)

    def acquire(self, process: Process) -> cmd.Acquire:
        draw = self.random
        kind = draw.choice(("agents", "requests"))
        if kind == "agents":
            models: tuple[str, ...] = draw.choice(((OPUS,), (SONNET,), (OPUS, SONNET), (HAIKU,), ()))
        else:
            models = draw.choice(((CODER,), (CODER_AT_WORK,), (FAST,), (CODER, FAST)))
        own = ((OPUS_CAP, draw.randint(1, 5)),) if kind == "agents" and draw.random() < 0.1 else ()
        spec = Spec(
            models=models,
            kind=kind,
            slots=draw.choice((1, 1, 1, 1, 2)),
            host="h" if kind == "agents" else "",
            project=draw.choice(("default", "blue")),
            any_candidate=draw.random() < 0.3,
            supervisor=draw.random() < 0.05,
            caps=own,
            access_key=draw.choice(("", "", "ci", "bob")),
        )
        ident = f"i{len(self.asked)}"
        self.asked.append(ident)
        return cmd.Acquire(
            ident,
            spec,
            process.name,
            wait=draw.random() < 0.8,
            since=self.clock() - draw.choice((0, 0, 5_000, 600_000)),
            priority=draw.choice((0, 0, 0, 5, -20, 1_000)),
            expires_ms=draw.choice((0, 0, 5_000, 30_000)),
            wake=process.replica.address,
            command=f"agent {ident}",
            key=draw.choice(("", "", "", "nightly")),
            conversation=draw.choice(("", "one", "two", "three")),
            estimate=draw.choice((None, None, Usage(1, draw.randint(0, 300), source=ESTIMATE))),
            size=draw.choice((None, Size(draw.randint(0, 900), 40))),
        )

    def usage(self) -> Usage:
        return Usage(1, self.random.randint(0, 60), output=self.random.randint(0, 60), cost=3, source=RESPONSE)

    def known(self) -> str:
        """An id that waits or is granted, one that was asked for lately and may be gone, or one that never was."""
        current = [*self.books.tickets, *self.books.leases]
        if current and self.random.random() < 0.7:
            return self.random.choice(current)
        return self.random.choice(self.asked[-12:]) if self.asked else "nobody"

    def release(self, process: Process) -> cmd.Command:
        draw = self.random
        outcome = draw.choice(("ok", "ok", "ok", "ok", "local_error", "rate_limited", "auth", "server_error"))
        if draw.random() < 0.1:
            return cmd.Settle(self.known(), self.usage())
        if draw.random() < 0.1:
            return cmd.ObserveRates(self.known(), (Reading("calls", 50, draw.randint(0, 50), 20_000),))
        usage = draw.choice((None, Usage(source=RESPONSE), self.usage(), self.usage()))
        credential = draw.choice(("", "old"))
        return cmd.Release(self.known(), outcome, draw.choice((None, 700)), credential=credential, usage=usage)

    def claim(self, process: Process) -> cmd.Command:
        child = f"h|boot|1|{process.name.split('|')[3]}000|1" if self.random.random() < 0.3 else ""
        return cmd.Claim(self.known(), child)

    def line(self, process: Process) -> cmd.Command:
        draw = self.random
        return draw.choice(
            (
                cmd.Cancel(self.known(), "a person"),
                cmd.Ask(self.known()),
                cmd.Bump(self.known()),
                cmd.Bump(self.known(), draw.choice((-100, 3, 100, 1_000))),
                cmd.Reclaim(self.known(), "a person"),
            )
        )

    def rule(self, process: Process) -> cmd.Command:
        draw = self.random
        kind, selector = draw.choice(SELECTORS)
        cooldown = draw.choice((0, 350, 5_000)) if kind == "requests" else None
        return draw.choice(
            (
                cmd.SetRule(Rule(kind, selector, cap=draw.randint(1, 4), on_429="step")),
                cmd.SetRule(Rule(kind, selector, cooldown_ms=cooldown)),
                cmd.SetRule(Rule(kind, selector, cap=0)),
                cmd.RemoveCap(kind, selector),
                cmd.ResetCap(kind, selector),
                self.file(),
            )
        )

    def pause(self, process: Process) -> cmd.Command:
        kind, selector = self.random.choice(SELECTORS)
        pool = {"host": "host:h", "project": "project:blue", "key": "key:ci"}.get(selector, selector)
        if self.random.random() < 0.5:
            return cmd.Resume(kind, pool)
        return cmd.Pause(kind, pool, self.random.choice((None, 500, 10_000)))

    def report(self, process: Process) -> cmd.Command:
        if self.random.random() < 0.5:
            return cmd.Report(id=self.known(), retry_after_ms=self.random.choice((None, 300, 3_000)))
        return cmd.Report(kind="requests", target=self.random.choice(("umans", CODER, "nobody")), retry_after_ms=900)

    def backoff(self, process: Process) -> cmd.Command:
        draw = self.random
        key = draw.choice((OPUS, "anthropic", "anthropic@work/claude-haiku-*", FAST, "umans@work"))
        return draw.choice(
            (
                cmd.BackOff(key, draw.choice(("quota", "overloaded", "boredom")), draw.choice((None, 900, 10_000))),
                cmd.EndBackoff(key),
                cmd.EndBackoff(key),
                cmd.Active(self.known()),
                cmd.Credential(draw.choice(("anthropic", OPUS)), draw.choice(("old", "new"))),
                cmd.Select((OPUS, SONNET, FAST), "worker"),
            )
        )

    def world(self, process: Process) -> cmd.Command:
        if self.gone and self.random.random() < 0.6:
            return cmd.Lost(tuple(self.gone))
        count = self.random.randint(0, 2)
        seen = ((OPUS, count),) if count else ()
        return self.random.choice((cmd.Observe("h", seen), cmd.Bypass(process.name, (OPUS,), "agent")))


def picture(state: State, now: int) -> Snapshot:
    """All that matters of a state, at this moment.

    Slots that have cooled down are forgotten at the next look, and a project that waits for nothing starts with what
    all have reached by then: of both, replicas remember more or less, to the same effect.
    """
    for pool in state.pools.values():
        pool.occupied(now)
    snapshot = state.export()
    for record in snapshot.pools:
        for project, share in record.shares.items():
            if not state.pools[f"{record.kind} {record.pool}"].shares.projects[project].waiting:
                share.start = max(share.start, record.virtual)
                share.latest = share.latest_at = 0
    for budget in snapshot.budgets:
        for project, share in budget.shares.items():
            if not state.budgets[f"budget {budget.budget}"].shares.projects[project].waiting:
                share.start = max(share.start, budget.virtual)
                share.latest = share.latest_at = 0
    return snapshot


def compare(who: str, seen: Snapshot, expected: Snapshot) -> None:
    """Fail with what is different, and only that."""
    if seen != expected:
        mine, right = msgspec.to_builtins(seen), msgspec.to_builtins(expected)
        other = {key: (mine.get(key), right.get(key)) for key in {**mine, **right} if mine.get(key) != right.get(key)}
        raise AssertionError(f"{who} sees something else than the log says: {other}")
