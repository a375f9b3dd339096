"""Background tasks of an open gate: the backstop poll, upkeep of the store, and the beat of this host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from fleetgate.core import commands as cmd
from fleetgate.core.errors import FleetgateError
from fleetgate.gate.liveness.orphan_stops import OrphanStops
from fleetgate.gate.observation import commands_first
from fleetgate.gate.replica.replica import maintain_for
from fleetgate.log.host_beats import BEAT_S
from fleetgate.log.protocol import Log, LogReplaced, Stored

if TYPE_CHECKING:
    from fleetgate.gate.library.gate_core import GateCore

POLL_S = 1.0
UPKEEP_S = 10.0
_OVERDUE_MS = 300  # no process has acted on a deadline for this long


class BackgroundTasks:
    """The periodic work of one gate. It never raises, and ends when its tasks are cancelled."""

    def __init__(self, core: GateCore) -> None:
        self._core = core
        self._orphan_stops = OrphanStops()

    def start(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[None]]:
        """Start all of them."""
        return [loop.create_task(each) for each in (self._poll(), self._upkeep(), self._beat())]

    async def _poll(self) -> None:
        """The backstop: once a second while a request waits here, every other second while a lease is held here.

        The latter only checks that the log is still the one that granted it (gate/replica/lost_log_recovery.py).
        """
        core = self._core
        checks_leases = False
        while True:
            await asyncio.sleep(POLL_S)
            if core.commits.busy or not (core.requests.waiting or core.requests.has_failed_releases):
                checks_leases = not checks_leases and bool(core.requests.held)
                if checks_leases and not core.commits.busy:
                    core.read_mail()
                continue
            if core.log.is_shared:
                try:
                    await core.commits.catch_up_in_thread()
                except FleetgateError as error:
                    core.outage.failed("reads", error)
                    continue
                except LogReplaced:
                    continue
                core.outage.worked("reads")
            self.run_checks()

    def run_checks(self) -> None:
        """Read what others decided; reclaim from dead processes, count foreign agents, act on overdue deadlines.

        And end agents that are to be stopped and have no runner.
        """
        core = self._core
        if core.commits.busy or core.closed:
            return
        try:
            if not core.log.is_shared:
                core.catch_up()
            core.requests.compare_with_state()
            news = core.credentials.news(core.replica.state)
            for command in commands_first(
                lambda: core.replica.state, core.host, news=news, observer=core.observer, beats=core.beats
            ):
                core.commits.put(command)
            self._orphan_stops.step(core.replica.state.leases.values())
            due = core.replica.due
            if core.requests.has_failed_releases or (due is not None and core.log.now() - due > _OVERDUE_MS):
                core.commits.put(cmd.Tick())
        except (FleetgateError, OSError) as error:
            core.outage.failed("reads", error)  # requests get that error; the poll goes on

    async def _upkeep(self) -> None:
        """Snapshots and pruning; and the release of leases in our name that no request here has."""
        core = self._core
        while True:
            await asyncio.sleep(UPKEEP_S)
            if core.commits.busy:
                continue
            if core.log.is_shared:
                core.commits.run_in_thread(self._maintain, self._after_upkeep)
            else:
                await self._maintain_apart(core.log.connect)

    async def _maintain_apart(self, connect: Callable[[], Log]) -> None:
        """With a connection of its own: decisions wait until the state was read, and not for the disk."""
        core = self._core
        read: asyncio.Future[Stored | None] = core.loop.create_future()

        def was_read(done: asyncio.Future[object]) -> None:
            if not read.done():
                read.set_result(done.result() if done.exception() is None else None)  # type: ignore[arg-type]
            self._after_upkeep(done)

        core.commits.run_in_thread(self._read_due_snapshot, was_read)
        due = await read
        try:
            await core.loop.run_in_executor(None, self._write_snapshot, connect, due)
        except LogReplaced:
            return  # next time
        except (FleetgateError, OSError) as error:
            core.outage.failed("upkeep", error)
        else:
            core.outage.worked("upkeep")

    def _read_due_snapshot(self) -> Stored | None:
        replica = self._core.replica
        replica.catch_up()
        return replica.due_snapshot()

    def _write_snapshot(self, connect: Callable[[], Log], due: Stored | None) -> None:
        log = connect()
        try:
            if due is not None:
                log.save_snapshot(due.data, due.position)
            settings = self._core.settings
            maintain_for(log, settings.keep_ms, settings.keep_bytes, settings.usage_keep_ms, UPKEEP_S / 2)
        finally:
            log.close()

    def _maintain(self) -> None:
        core = self._core
        core.replica.catch_up()
        settings = core.settings
        core.replica.maintain(settings.keep_ms, settings.keep_bytes, settings.usage_keep_ms)

    def _after_upkeep(self, done: asyncio.Future[object]) -> None:
        core = self._core
        failed = done.exception()
        if core.closed:
            return
        if isinstance(failed, FleetgateError | OSError):
            core.outage.failed("reads", failed)
        elif failed is None:
            core.outage.worked("reads")
        try:
            if core.log.is_shared:
                core.after_commit()  # the thread has read it
            else:
                core.catch_up()
        except FleetgateError as error:
            core.outage.failed("reads", error)
            return
        core.requests.release_unknown_leases()

    async def _beat(self) -> None:
        """Record that this host is alive, where other hosts go by that."""
        core = self._core
        while True:
            await asyncio.sleep(BEAT_S / 4)
            try:
                if core.log.is_shared:
                    await self._exchange_beats()
                elif not core.commits.busy and core.beats.is_due(core.replica.state):
                    core.commits.run_in_thread(core.beats.beat, self._after_beat)
            except (FleetgateError, OSError) as error:
                core.outage.failed("beats", error)

    async def _exchange_beats(self) -> None:
        """Write our beat and read those of other hosts; on a second connection while the first waits for the lock."""
        core = self._core
        if core.commits.busy:
            await core.read_in_thread(self._exchange_on)
            core.outage.worked("beats")
            return
        done = asyncio.Event()

        def after(future: asyncio.Future[object]) -> None:
            self._after_beat(future)
            done.set()

        core.commits.run_in_thread(lambda: self._exchange_on(core.log), after)
        await done.wait()

    def _after_beat(self, future: asyncio.Future[object]) -> None:
        error = future.exception()  # the next beat is soon
        if isinstance(error, FleetgateError | OSError):
            self._core.outage.failed("beats", error)
        elif error is None:
            self._core.outage.worked("beats")

    def _exchange_on(self, log: Log) -> None:
        engine = self._core.replica.loaded
        self._core.beats.look_up(log, engine.state if engine is not None else None)
