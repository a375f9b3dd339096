"""Group commit: the commands of one process share its transactions (DESIGN.md, "One ordered log").

Commands that come while a transaction is under way go into the next one together; a single one is committed at once.
The transaction runs inline when the lock is free, since a hop to a thread costs more than it does, and in a thread
when somebody else has the lock, so that the loop never waits. While a thread is at work (`busy`), nothing else in this
process touches the log or the state. Where a store is far away, everything is done in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from fleetgate.core import commands as cmd
from fleetgate.gate.replica.replica import Decided, Replica

Batch = list[tuple[cmd.Command, "asyncio.Future[Decided] | None"]]


class Owner(Protocol):
    """Who is told what became of the commands."""

    def _done(self, batch: Batch, decided: list[Decided]) -> None:
        """They were decided and committed."""

    def _failed(self, batch: Batch, error: BaseException) -> None:
        """Nothing of this happened, or nobody knows."""

    def _after(self) -> None:
        """What others decided was taken in."""

    def _let_go(self) -> None:
        """Everything was decided, and nothing more will be: after `end`."""


class GroupCommit:
    """The transactions of one replica, one after another."""

    def __init__(self, replica: Replica, owner: Owner) -> None:
        self.batch: Batch = []  # for the next transaction
        self.busy = False  # a thread is at work on the log
        self.scheduled = False
        self.news = False  # others have committed something: look, even if there is nothing to decide
        self.on_batch: Callable[[int], None] = _nothing  # told how many commands go into a transaction
        self._replica = replica
        self._owner = owner
        self._durable = False
        self._readers: list[asyncio.Future[None]] = []  # who waits for what others decided to be taken in
        self._ending = self._ended = False
        self.loop: asyncio.AbstractEventLoop

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def post(self, command: cmd.Command, *, durable: bool = False) -> asyncio.Future[Decided]:
        """Have a command decided, and say what became of it; with `durable` it is on disk by then."""
        future: asyncio.Future[Decided] = self.loop.create_future()
        self._durable = self._durable or durable
        self.put(command, future)
        return future

    def put(self, command: cmd.Command, future: asyncio.Future[Decided] | None = None) -> None:
        """Have a command decided."""
        self.batch.append((command, future))
        self.schedule()

    def follow(self) -> asyncio.Future[None]:
        """Have what others decided taken in by a thread, when its turn comes; nobody need wait for it."""
        reader: asyncio.Future[None] = self.loop.create_future()
        self._readers.append(reader)
        self.schedule()
        return reader

    def schedule(self) -> None:
        """See to the next transaction, if none is under way: the one that is sees to it itself."""
        if not self.scheduled and not self.busy:
            self.scheduled = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Decide what has gathered, now."""
        self.scheduled = False
        if self.busy or self._ended:
            return
        batch, self.batch = self.batch, []
        readers, self._readers = self._readers, []
        if readers and not batch:
            self.in_thread(self._replica.catch_up, lambda done: self._followed(readers, done))
            return
        durable, self._durable = self._durable, False
        self.news = False
        commands = [command for command, _ in batch]
        if commands:
            self.on_batch(len(commands))
        try:
            decided = self._replica.try_decide(commands, durable=durable)
            if decided is None:
                self.in_thread(
                    lambda: self._replica.decide(commands, durable=durable),
                    lambda done: self._decided(batch, done, readers),
                )
                return
        except Exception as error:
            self._owner._failed(batch, error)
        else:
            self._owner._done(batch, decided)
        finally:
            self._go_on()

    def in_thread(self, work: Callable[[], object], done: Callable[[asyncio.Future[object]], None]) -> None:
        """Do something with the log that may have to wait for its lock."""
        self.busy = True

        def back(future: asyncio.Future[object]) -> None:
            self.busy = False
            try:
                done(future)
            finally:
                self._go_on()

        try:
            self.loop.run_in_executor(None, work).add_done_callback(back)
        except BaseException:
            self.busy = False
            raise

    def end(self, error: BaseException) -> None:
        """Decide what is there, and then nothing more; whoever waits to read gets the error."""
        self._ending = True
        readers, self._readers = self._readers, []
        _tell(readers, error)
        if not self.busy:
            if self.batch:
                self.flush()
            else:
                self._go_on()

    def _decided(self, batch: Batch, done: asyncio.Future[object], readers: list[asyncio.Future[None]]) -> None:
        error = done.exception()
        if error is not None:
            self._owner._failed(batch, error)
        else:
            self._owner._done(batch, done.result())  # type: ignore[arg-type]
        _tell(readers, error)

    def _followed(self, readers: list[asyncio.Future[None]], done: asyncio.Future[object]) -> None:
        error = done.exception()
        if error is None:
            self._owner._after()
        _tell(readers, error)

    def _go_on(self) -> None:
        """After a transaction: the next one, if there is anything to do; or the end."""
        if self.batch or self._readers or (self.news and not self._ending):
            self.schedule()
        elif self._ending and not self.busy and not self._ended:
            self._ended = True
            self._owner._let_go()


def _tell(readers: list[asyncio.Future[None]], error: BaseException | None) -> None:
    for reader in readers:
        if reader.done():
            continue
        if error is None:
            reader.set_result(None)
        else:
            reader.set_exception(error)
            reader.exception()  # whoever does not wait for it need not know


def _nothing(number: int) -> None:
    pass
