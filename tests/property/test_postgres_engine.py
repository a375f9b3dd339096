"""The engine against the model, as in test_core_engine.py, by two processes that share a PostgreSQL log.

Each decision is a transaction of a real server, and each process knows of the other's only what it reads there. Their
connections break, they start anew from snapshots, and the log behind these is pruned. A few examples with the others;
FLEETGATE_SOAK=20 looks at many, and at new ones.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.gate.replica.replica import Replica, _encode
from fleetgate.log.postgres import PostgresLog
from tests.postgres_server import Server
from tests.postgres_stores import admin, fresh_store
from tests.property.harness import START
from tests.property.test_core_engine import Gate

SOAK = int(os.environ.get("FLEETGATE_SOAK", "0"))

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(3_600 if SOAK else 300)]


class Decider(Replica):
    """One process, with a connection of its own, in virtual time."""

    def __init__(self, url: str, gate: OnPostgres, name: str) -> None:
        self.store = PostgresLog(url, lambda: gate.now)
        super().__init__(self.store, name)

    def break_connection(self, url: str) -> None:
        """As an operator, a pooler or a failing network does."""
        conn = self.store._link._conn
        if conn is not None:
            with admin(url) as operator:
                operator.execute("SELECT pg_terminate_backend(%s, 5000)", (conn.pgconn.backend_pid,))


class OnPostgres(Gate):
    """Two processes on one PostgreSQL log, and the model that watches them."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.now = START
        self.url = fresh_store(server)
        self.deciding, self.following = (Decider(self.url, self, name) for name in ("me", "other"))
        self._look()

    def _look(self) -> None:
        """A replica that failed, or was replaced, has another engine."""
        self.engine, self.other = self.deciding.engine, self.following.engine

    def decide(self, command: cmd.Command) -> list[ev.Event]:
        if isinstance(command, cmd.Tick):  # which comes before every command
            self.deciding.decide([])
            self._look()
            return self.deciding.made
        (decided,) = self.deciding.decide([command])
        self._look()
        if decided.error is not None:
            assert not self.deciding.made, "an illegal command left something in the log"
            raise decided.error
        assert self.deciding.made == decided.events
        return decided.events

    def pass_on(self, events: list[ev.Event]) -> None:
        self.following.catch_up()
        self._look()

    def start_the_other_anew(self) -> None:
        self.deciding.log.save_snapshot(_encode(self.engine.state.export()), self.deciding.position)
        self.following.log.close()
        self.following = Decider(self.url, self, self.following.me)
        self._look()

    def take_turns(self) -> None:
        self.deciding, self.following = self.following, self.deciding
        self._look()

    @precondition(lambda self: self.log)
    @rule(mine=st.booleans())
    def a_connection_breaks(self, mine: bool) -> None:
        (self.deciding if mine else self.following).break_connection(self.url)

    @precondition(lambda self: self.log)
    @rule()
    def what_is_old_is_pruned(self) -> None:
        for _ in range(2):  # of two snapshots the older one stays behind, with what follows it
            self.deciding.log.save_snapshot(_encode(self.engine.state.export()), self.deciding.position)
            self.look_again()
        self.deciding.log.maintain(0)

    def look_again(self) -> None:
        """Something that is written down, and changes nothing."""
        self.do(cmd.Bypass("p1"))

    def teardown(self) -> None:
        try:
            super().teardown()
            newcomer = Decider(self.url, self, "new")
            assert newcomer.catch_up().export(self.now) == self.engine.state.export(self.now)
            newcomer.log.close()
        finally:
            self.deciding.log.close()
            self.following.log.close()


def test_A1_L2_two_processes_on_postgresql_decide_as_the_model_says(postgres: Server) -> None:
    looks = settings(max_examples=10 * SOAK, derandomize=False) if SOAK else settings(max_examples=5)
    run_state_machine_as_test(lambda: OnPostgres(postgres), settings=looks)  # type: ignore[arg-type]
