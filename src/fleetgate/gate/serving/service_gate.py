"""The gate of a long-running service, which acts for clients on other machines.

A client's lease belongs to the client, and not to this process: it stays when the service ends, and lasts as long as
the client renews it (docs/decisions/0005).
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import time_ns

from msgspec.structs import replace

from fleetgate.config.settings import Settings
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease
from fleetgate.core.errors import FleetgateError
from fleetgate.core.state.state import State
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.library.lease_handles import Deferred, checked
from fleetgate.gate.providers.credentials import Credentials
from fleetgate.gate.replica.lost_log_recovery import adoption
from fleetgate.gate.replica.replica import Decided
from fleetgate.log.protocol import Commit, Position

_TRIES = 10  # to find no thread at work on the log


class ServiceGate:
    """A gate that serves clients."""

    def __init__(self, core: GateCore) -> None:
        self.core = core
        self.me, self.host = core.me, core.host  # this process, and its machine
        self.folder = core.folder  # the state folder; "" when the store is in memory

    @property
    def address(self) -> str:
        """Where this gate is woken."""
        return self.core.address

    @property
    def settings(self) -> Settings:
        return self.core.settings

    @property
    def credentials(self) -> Credentials:
        """What this process knows about the credentials of accounts."""
        return self.core.credentials

    def now(self) -> int:
        """The log's time."""
        return self.core.now()

    def wall_offset_ms(self) -> int:
        """What to add to a log time to get wall time, for display."""
        return time_ns() // 1_000_000 - self.core.log.now()

    async def read(self) -> State:
        """The state, to look at: it goes on changing at the next `await`."""
        return await self.core.read_state()

    async def decide(self, *commands: cmd.Command, durable: bool = False) -> list[Decided]:
        """Run commands in one transaction, which others may share. Not for `Acquire`: see `enter`."""
        self.core.check_open()
        futures = [self.core.commits.post(checked(command), durable=durable) for command in commands]
        return [await future for future in futures]

    def enter(self, command: cmd.Acquire) -> asyncio.Future[Lease | Deferred]:
        """Acquire a slot for a client that renews (`renew_ms`): what it gets stays when this gate closes.

        The request goes on whether or not the caller waits for the future. Cancelling the future leaves the queue.
        """
        core = self.core
        core.check_open()
        future: asyncio.Future[Lease | Deferred]
        if core.acquisition.must_look_first(command):
            future = core.loop.create_task(core.acquisition.wait_for(command))
        else:
            future = core.requests.add(command)
            core.commits.put(command)
        future.add_done_callback(partial(self._give_up_failed, command.id))
        return future

    def _give_up_failed(self, ident: str, future: asyncio.Future[Lease | Deferred]) -> None:
        """After an error it is not known what the store has of a request: give it up."""
        if future.cancelled() or future.exception() is not None:
            self.core.requests.give_up(ident)

    async def commits(self, after: Position, limit: int) -> list[Commit]:
        """What was committed after a position, oldest first; LogReplaced when the log is another one."""
        return await self.core.read_log(lambda log: log.read(after, limit))

    async def adopt_forgotten(self, ident: str) -> Lease | None:
        """Take over the lease of a client that has just renewed it, which the log has lost and this process knows."""
        lost = self.core.replica.recovery.forgotten(ident)
        if lost is None:
            return None
        ours = replace(lost, ticket=replace(lost.ticket, holder=self.me, wake=self.address))
        await self.decide(adoption(ours, self.now(), "log_lost"))
        return (await self.read()).leases.get(ident)

    async def position(self) -> Position:
        """How far this gate has read."""
        await self.core.read_state()
        return self.core.replica.position

    async def wait_for_change(self, timeout_s: float) -> None:
        """Wait until something was committed, by this process or another, or time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.core.changed.wait()
        except TimeoutError:
            pass

    async def run_checks(self) -> None:
        """Read what others decided; reclaim from dead processes, count foreign agents, act on overdue deadlines."""
        try:
            for _ in range(_TRIES):
                await self.core.read_state()
                if not self.core.commits.busy:
                    break  # else a thread works on the log, and the checks would do nothing
        except (FleetgateError, OSError) as error:
            self.core.outage.failed("reads", error)  # requests get that error
            return
        self.core.background.run_checks()
