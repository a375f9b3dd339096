"""What the choice of an account adds to a decision: a set of eight accounts beside one account.

A decision is an acquire and a release of a model call. The kinds of decisions take turns, so that a slow moment of the
machine hits all of them, and the best round of each counts, by processor time. In a busy gate every account is full
and calls wait: each release admits the next.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from tempfile import TemporaryDirectory
from time import process_time

from benchmarks.report import Row
from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.entities import AccountSet, Rule, Spec
from fleetgate.gate.request_ids import new_id
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log import open_log

PAIRS = 2_000
ROUNDS = 12
ACCOUNTS = tuple(f"a{number}" for number in range(8))
CAPS = (
    Rule("requests", "host", cap=1_000_000, on_429="fixed", cooldown_ms=0),
    Rule("requests", "x", cap=8, on_429="fixed", cooldown_ms=0),
    Rule("requests", "x/y", cap=8, on_429="fixed", cooldown_ms=0),
)
TALKS = 64


class Gate:
    """An engine, with a set of so many accounts."""

    def __init__(self, accounts: int, busy: bool) -> None:
        self._engine = Engine(me="p")
        sets = (AccountSet("x", ACCOUNTS[:accounts]),)
        self._engine.handle(cmd.LoadFile("f", "d", 1, CAPS, account_sets=sets), 1_000)
        self._spec = Spec(("x/y",), "requests", host="h", project="web")
        self._number = 0
        self._running: list[str] = []
        for _ in range((16 if busy else 2) * accounts):  # busy: all slots are taken, and as many calls wait
            self._ask("")

    def _ask(self, talk: str) -> str:
        self._number += 1
        ident = str(self._number)
        self._engine.handle(cmd.Acquire(ident, self._spec, "p", conversation=talk), self._engine.state.at)
        return ident

    def decide(self, talks: bool) -> None:
        """Calls one after the other, each of a conversation that has its account, or of none."""
        engine, now = self._engine, self._engine.state.at
        for number in range(PAIRS):
            now += 1
            engine.handle(cmd.Tick(), now)
            ident = self._ask(f"t{number % TALKS}" if talks else "")
            engine.handle(cmd.Release(ident), now)

    def keep_busy(self) -> None:
        """Each release admits the call that waits longest, and another one comes."""
        engine, now = self._engine, self._engine.state.at
        leases = engine.state.leases
        for _ in range(PAIRS):
            now += 1
            engine.handle(cmd.Tick(), now)
            self._ask("")
            engine.handle(cmd.Release(next(iter(leases))), now)


class Store:
    """A gate on SQLite, as `fleetgate acquire` has it: each command is one transaction."""

    def __init__(self, folder: str, accounts: int) -> None:
        os.makedirs(folder)
        self._gate = DirectGate(open_log(f"sqlite://{folder}"), folder=folder)
        self._gate.decide([cmd.LoadFile("f", "d", 1, CAPS, account_sets=(AccountSet("x", ACCOUNTS[:accounts]),))])
        self._spec = Spec(("x/y",), "requests", host="h", project="web")
        for _ in range(2 * accounts):
            self._gate.decide([cmd.Acquire(new_id(), self._spec, self._gate.me)])

    def decide(self) -> None:
        for _ in range(PAIRS):
            ident = new_id()
            self._gate.decide([cmd.Acquire(ident, self._spec, self._gate.me)])
            self._gate.decide([cmd.Release(ident)])


def _took_us(work: Callable[[], None]) -> float:
    start = process_time()
    work()
    return (process_time() - start) / PAIRS * 1e6


def measure() -> list[Row]:
    with TemporaryDirectory() as folder:
        return _measure(Store(f"{folder}/one", 1), Store(f"{folder}/eight", 8))


def _measure(store_one: Store, store_eight: Store) -> list[Row]:
    one, eight, busy_one, busy_eight = Gate(1, False), Gate(8, False), Gate(1, True), Gate(8, True)
    kinds: dict[str, Callable[[], None]] = {
        "one": lambda: one.decide(False),
        "eight": lambda: eight.decide(False),
        "home": lambda: eight.decide(True),
        "busy one": busy_one.keep_busy,
        "busy eight": busy_eight.keep_busy,
        "store one": store_one.decide,
        "store eight": store_eight.decide,
    }
    best = dict.fromkeys(kinds, float("inf"))
    for _ in range(ROUNDS):
        for name, work in kinds.items():
            best[name] = min(best[name], _took_us(work))
    return [
        _row("a decision on SQLite, with its transaction: 8 accounts", best["store eight"], best["store one"]),
        _plain("engine: a call that chooses among 8 accounts", best["eight"], best["one"]),
        _plain("engine: a call of a conversation that has its account, of 8", best["home"], best["one"]),
        _row(
            "engine: the same in a busy gate, where calls wait for 8 full accounts",
            best["busy eight"],
            best["busy one"],
        ),
    ]


def _row(what: str, took_us: float, plain_us: float) -> Row:
    return Row(
        what, f"{took_us:.1f} µs, {took_us / plain_us:.2f} times", "at most 1.3 times", f"{plain_us:.1f} µs with 1"
    )


def _plain(what: str, took_us: float, plain_us: float) -> Row:
    return Row(what, f"{took_us:.1f} µs, {took_us / plain_us:.2f} times", "", f"{plain_us:.1f} µs with 1")
