"""The gate of a long-running service, which looks after its host and speaks for clients that are elsewhere.

What a client holds is its own, and not this process's: it stays when the service ends, and is judged by the client's
renewals (docs/decisions/0005).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import time_ns
from typing import TypeVar

from msgspec.structs import replace

from fleetgate.config.file import Loaded
from fleetgate.config.settings import Settings
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease
from fleetgate.core.errors import FleetgateError
from fleetgate.core.state.state import State
from fleetgate.gate.library.gate import Gate
from fleetgate.gate.library.lease_handles import Deferred, checked
from fleetgate.gate.liveness.dead_holders import Observer
from fleetgate.gate.providers.credentials import Credentials
from fleetgate.gate.providers.usage_questions import Usage
from fleetgate.gate.replica.lost_log_recovery import adoption
from fleetgate.gate.replica.replica import Decided
from fleetgate.gate.slots.direct_gate import load_file
from fleetgate.log.protocol import Commit, Log, Position

T = TypeVar("T")

_TRIES = 10  # to find the store free of a thread


class ServiceGate(Gate):
    """A gate that others are served through."""

    @property
    def me(self) -> str:
        """This process."""
        return self._me

    @property
    def address(self) -> str:
        """Where this gate is woken."""
        return self._replica.address

    @property
    def folder(self) -> str:
        """Where the store is; "" when it is nowhere but in memory."""
        return self._folder

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def credentials(self) -> Credentials:
        """What is known of the accounts' credentials here."""
        return self._credentials

    def now(self) -> int:
        """The log's time."""
        return self._now()

    def wall_offset_ms(self) -> int:
        """What to add to a log time to get wall time, for display."""
        return time_ns() // 1_000_000 - self._log.now()

    async def read(self) -> State:
        """The state, to look at: it goes on changing at the next `await`."""
        return await self._current()

    async def decide(self, *commands: cmd.Command, durable: bool = False) -> list[Decided]:
        """Run commands in one transaction, which others may share. Not for `Acquire`: see `acquire`."""
        self._check_open()
        futures = [self._commits.post(checked(command), durable=durable) for command in commands]
        return [await future for future in futures]

    def enter(self, command: cmd.Acquire) -> asyncio.Future[Lease | Deferred]:
        """Ask for a client that renews (`renew_ms`): what it gets stays when this gate closes.

        Nobody need wait for it: it goes on without. Who cancels it leaves the queue.
        """
        self._check_open()
        future: asyncio.Future[Lease | Deferred]
        if self._must_look(command):
            future = self._loop.create_task(self._wait_for(command))
        else:
            future = self._requests.add(command)
            self._commits.put(command)
        future.add_done_callback(partial(self._entered, command.id))
        return future

    def _entered(self, ident: str, future: asyncio.Future[Lease | Deferred]) -> None:
        """Whatever was not to be is given up: nobody may know what the store has of it."""
        if future.cancelled() or future.exception() is not None:
            self._requests.leave(ident)

    def can_ask(self, models: tuple[str, ...]) -> tuple[str, ...]:
        """The accounts of these models whose usage this process can ask for."""
        return self._usage.accounts(models) if self._usage else ()

    async def commits(self, after: Position, most: int) -> list[Commit]:
        """What was committed after a position, oldest first; LogReplaced when the log is another one."""
        return await self._reading(lambda log: log.read(after, most))

    async def adopt_forgotten(self, ident: str) -> Lease | None:
        """Speak for a client whose lease the log has lost, and another service knew: it was just heard of."""
        lost = self._replica.recovery.forgotten(ident)
        if lost is None:
            return None
        ours = replace(lost, ticket=replace(lost.ticket, holder=self.me, wake=self.address))
        await self.decide(adoption(ours, self.now(), "log_lost"))
        return (await self.read()).leases.get(ident)

    def another_log(self) -> Log | None:
        """The same log for another thread; None when it is nowhere but in memory."""
        return self._log.connect() if self._folder else None

    async def with_log(self, read: Callable[[Log], T]) -> T:
        """What `read` makes of the log, while nobody else here is at it. It holds up everybody else: be quick."""
        return await self._reading(read)

    async def position(self) -> Position:
        """How far this gate has read."""
        await self._current()
        return self._replica.position

    async def wait_for_change(self, most_s: float) -> None:
        """Until something was committed or taken in here, or time is up."""
        try:
            async with asyncio.timeout(most_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def use(self, loaded: Loaded) -> None:
        """Go by a config file that was read anew."""
        self._loaded, self._settings = loaded, loaded.settings
        self._usage = Usage(self._settings, None)
        self._credentials = Credentials(self._settings, self._replica)
        self._surroundings = Observer(self._settings, self._folder)
        if not self._log.is_shared:
            await self._ask(load_file(loaded), durable=True)

    async def look_around(self) -> None:
        """Take in what others decided; take back what the dead hold, count the foreign, do what is overdue."""
        try:
            for _ in range(_TRIES):
                await self._current()
                if not self._commits.busy:
                    break  # else a thread is at the store, and it would be passed over
        except (FleetgateError, OSError):
            return  # the store is in trouble: those who ask are told
        self._rounds.look_around()

    def count_batches(self, count: Callable[[int], None]) -> None:
        """Have `count` told how many commands go into each transaction."""
        self._commits.on_batch = count
