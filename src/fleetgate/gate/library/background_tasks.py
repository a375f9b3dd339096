"""What an open gate does by itself, again and again: it looks at what others did, beats, and writes down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from fleetgate.core import commands as cmd
from fleetgate.core.errors import FleetgateError
from fleetgate.gate.replica.replica import tend
from fleetgate.log.host_beats import BEAT_S
from fleetgate.log.protocol import Log, LogReplaced, Stored

if TYPE_CHECKING:
    from fleetgate.gate.library.gate import Gate

POLL_S = 1.0
UPKEEP_S = 10.0
_OVERDUE_MS = 300  # a deadline that nobody has acted on for so long


class BackgroundTasks:
    """The rounds of one gate; they never raise, and end with their tasks."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def begin(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[None]]:
        """All of them, until they are cancelled."""
        return [loop.create_task(each) for each in (self._poll(), self._upkeep(), self._beat())]

    async def _poll(self) -> None:
        """The backstop: once a second while anybody waits here, every other second while anybody holds a lease.

        The latter only looks whether the log is still the one that lent it (gate/replica/lost_log_recovery.py).
        """
        gate = self._gate
        holds = False
        while True:
            await asyncio.sleep(POLL_S)
            if gate._commits.busy or not (gate._requests.waiting or gate._requests.in_doubt):
                holds = not holds and bool(gate._requests.mine)
                if holds and not gate._commits.busy:
                    gate._on_mail()
                continue
            if gate._log.is_shared:
                try:
                    await gate._commits.follow()
                except (FleetgateError, LogReplaced):
                    continue  # the store is in trouble
            self.look_around()

    def look_around(self) -> None:
        """Take in what others decided; take back what the dead hold, count the foreign, do what is overdue."""
        gate = self._gate
        if gate._commits.busy or gate._closed:
            return
        try:
            if not gate._log.is_shared:
                gate._take_in()
            gate._requests.compare()
            gone = gate._beats.lost(gate._replica.state)
            if gone is not None:
                gate._commits.put(gone)
            observed = gate._surroundings.observe(lambda: gate._replica.state, gate.host)
            if observed is not None:
                gate._commits.put(observed)
            for changed in gate._credentials.news(gate._replica.state):
                gate._commits.put(changed)
            due = gate._replica.due
            if gate._requests.in_doubt or (due is not None and gate._log.now() - due > _OVERDUE_MS):
                gate._commits.put(cmd.Tick())
        except (FleetgateError, OSError):
            return  # the store is in trouble: those who ask are told; the poll goes on

    async def _upkeep(self) -> None:
        """Snapshots and pruning; and leases in our name that nobody here holds are given back."""
        gate = self._gate
        while True:
            await asyncio.sleep(UPKEEP_S)
            if gate._commits.busy:
                continue
            if gate._log.is_shared:
                gate._commits.in_thread(self._maintain, self._maintained)
            else:
                await self._upkeep_apart(gate._log.connect)

    async def _upkeep_apart(self, connect: Callable[[], Log]) -> None:
        """With a connection of its own: decisions wait until the state was read, and not for the disk."""
        gate = self._gate
        read: asyncio.Future[Stored | None] = gate._loop.create_future()

        def was_read(done: asyncio.Future[object]) -> None:
            if not read.done():
                read.set_result(done.result() if done.exception() is None else None)  # type: ignore[arg-type]
            self._maintained(done)

        gate._commits.in_thread(self._read_state, was_read)
        due = await read
        try:
            await gate._loop.run_in_executor(None, self._write_down, connect, due)
        except (FleetgateError, LogReplaced, OSError):
            return  # the store is in trouble, or the log was replaced: next time

    def _read_state(self) -> Stored | None:
        gate = self._gate
        gate._replica.catch_up()
        return gate._replica.due_snapshot()

    def _write_down(self, connect: Callable[[], Log], due: Stored | None) -> None:
        log = connect()
        try:
            if due is not None:
                log.save_snapshot(due.data, due.position)
            settings = self._gate._settings
            tend(log, settings.keep_ms, settings.keep_bytes, UPKEEP_S / 2)
        finally:
            log.close()

    async def _beat(self) -> None:
        """Say that this host is there, where others go by that."""
        gate = self._gate
        while True:
            await asyncio.sleep(BEAT_S / 4)
            try:
                if gate._log.is_shared:
                    await self._look_at_hosts()
                elif not gate._commits.busy and gate._beats.is_due(gate._replica.state):
                    gate._commits.in_thread(gate._beats.beat, _collect)
            except (FleetgateError, OSError):
                continue  # the store is in trouble

    async def _look_at_hosts(self) -> None:
        """Busy or not, since whoever waits for the lock is there: then with another connection."""
        gate = self._gate
        if gate._commits.busy:
            async with gate._reader_lock:
                await gate._loop.run_in_executor(None, gate._read_elsewhere, self._look_through)
            return
        looked = asyncio.Event()
        gate._commits.in_thread(lambda: self._look_through(gate._log), lambda done: _collect(done, looked))
        await looked.wait()

    def _look_through(self, log: Log) -> None:
        gate = self._gate
        engine = gate._replica.loaded
        gate._beats.look_up(log, engine.state if engine is not None else None)

    def _maintain(self) -> None:
        gate = self._gate
        gate._replica.catch_up()
        gate._replica.maintain(gate._settings.keep_ms, gate._settings.keep_bytes)

    def _maintained(self, done: asyncio.Future[object]) -> None:
        gate = self._gate
        done.exception()  # the store is in trouble, or the log was replaced: next time
        if gate._closed:
            return
        try:
            if gate._log.is_shared:
                gate._after()  # the thread has taken it in
            else:
                gate._take_in()
        except FleetgateError:
            return
        gate._requests.leave_strangers()


def _collect(done: asyncio.Future[object], told: asyncio.Event | None = None) -> None:
    done.exception()  # whatever came of it: the next one is soon
    if told is not None:
        told.set()
