"""Group commit: the commands of one process share its transactions.

Commands that come while a transaction is under way go into the next one together; a single one is committed at once.
After several came together, the loop looks for more once before the next transaction: a transaction has a fixed cost.
The transaction runs inline when the lock is free, since a hop to a thread costs more than it does. When another process
has the lock, the transaction is tried again in a moment, with what has come meanwhile; after a few times a thread waits
for the lock, so that the loop never does. While a thread is at work (`busy`), nothing else in this process touches the
log or the state. On a shared log, every transaction runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from fleetgate.core import commands as cmd
from fleetgate.gate.change_author import sign
from fleetgate.gate.replica.replica import Decided, Replica

RETRY_S = 0.001  # another process has the lock for less than this, usually
RETRIES = 3

Batch = list[tuple[cmd.Command, "asyncio.Future[Decided] | None"]]


class CommitListener(Protocol):
    """The owner of a group commit, which gets the results."""

    def commands_decided(self, batch: Batch, decided: list[Decided]) -> None:
        """These commands were decided and committed."""

    def commands_failed(self, batch: Batch, error: BaseException) -> None:
        """These commands were not committed, as far as is known."""

    def after_commit(self) -> None:
        """The replica has read what other processes committed."""

    def all_finished(self) -> None:
        """After `finish`: the last transaction is over."""


class GroupCommit:
    """The transactions of one replica, one after another."""

    def __init__(self, replica: Replica, listener: CommitListener) -> None:
        self.batch: Batch = []  # for the next transaction
        self.busy = False  # a thread is at work on the log
        self.scheduled = False
        self.must_catch_up = False  # others have committed something: read it, even if there is nothing to decide
        self.on_batch: Callable[[int], None] = lambda _: None  # called with the number of commands of each transaction
        self._replica = replica
        self._listener = listener
        self._durable = False
        self._readers: list[asyncio.Future[None]] = []  # done when what others committed was read
        self._ending = self._ended = False
        self._retries = 0  # in a row
        self._last_size = 0  # commands in the last transaction
        self.loop: asyncio.AbstractEventLoop

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def post(self, command: cmd.Command, *, durable: bool = False) -> asyncio.Future[Decided]:
        """Have a command decided; the future gets the result. With `durable` it is on disk by then."""
        sign((command,), self._replica.me)  # here, in the context of the caller
        future: asyncio.Future[Decided] = self.loop.create_future()
        self._durable = self._durable or durable
        self.put(command, future)
        return future

    def put(self, command: cmd.Command, future: asyncio.Future[Decided] | None = None) -> None:
        """Have a command decided."""
        self.batch.append((command, future))
        self.schedule()

    def put_now(self, command: cmd.Command) -> None:
        """Have a command decided now: before this returns, if the lock is free."""
        self.batch.append((command, None))
        self.flush()

    def put_later(self, command: cmd.Command) -> None:
        """Have a command decided with the next transaction, which the caller schedules."""
        self.batch.append((command, None))

    def catch_up_in_thread(self) -> asyncio.Future[None]:
        """Have a thread read what others committed, when its turn comes. The caller need not wait for it."""
        reader: asyncio.Future[None] = self.loop.create_future()
        self._readers.append(reader)
        self.schedule()
        return reader

    def schedule(self) -> None:
        """Start the next transaction soon. One that is under way starts the next when it ends."""
        if not self.scheduled and not self.busy:
            self.scheduled = True
            self.loop.call_soon(self._gather)

    def _gather(self) -> None:
        """Decide; under load, let the loop first look for more commands that can share the transaction."""
        if self._last_size > 1:
            self.loop.call_soon(self.flush)
        else:
            self.flush()

    def flush(self) -> None:
        """Decide what has gathered, now."""
        self.scheduled = False
        if self.busy or self._ended:
            return
        batch, readers = self.batch, self._readers
        if readers and not batch:
            self._readers = []
            self.run_in_thread(self._replica.catch_up, lambda done: self._caught_up(readers, done))
            return
        durable = self._durable
        commands = [command for command, _ in batch]
        self.batch, self._readers, self._durable, self.must_catch_up = [], [], False, False
        try:
            decided = self._replica.try_decide(commands, durable=durable)
            if decided is None:
                if self._retries < RETRIES and not self._replica.decides_in_thread and not self._ending:
                    self.batch, self._readers, self._durable = batch, readers, durable
                    self._retry()
                    return
                self._count(commands)
                self.run_in_thread(
                    lambda: self._replica.decide(commands, durable=durable),
                    lambda done: self._decided(batch, done, readers),
                )
                return
        except Exception as error:
            self._listener.commands_failed(batch, error)
            _answer(readers, error)
        else:
            self._count(commands)
            self._listener.commands_decided(batch, decided)
            _answer(readers, None)
        finally:
            self._schedule_next()

    def _retry(self) -> None:
        """Another process has the lock: try again in a moment."""
        self._retries += 1
        self.scheduled = True
        self.loop.call_later(RETRY_S, self.flush)

    def _count(self, commands: list[cmd.Command]) -> None:
        self._retries = 0
        self._last_size = len(commands)
        if commands:
            self.on_batch(len(commands))

    def run_in_thread(self, work: Callable[[], object], done: Callable[[asyncio.Future[object]], None]) -> None:
        """Do something with the log that may have to wait for its lock."""
        self.busy = True

        def back(future: asyncio.Future[object]) -> None:
            self.busy = False
            try:
                done(future)
            finally:
                self._schedule_next()

        try:
            self.loop.run_in_executor(None, work).add_done_callback(back)
        except BaseException:
            self.busy = False
            raise

    def finish(self, error: BaseException) -> None:
        """Decide what is in the batch, and then nothing more. Futures of `catch_up_in_thread` get the error."""
        self._ending = True
        readers, self._readers = self._readers, []
        _answer(readers, error)
        if not self.busy:
            if self.batch:
                self.flush()
            else:
                self._schedule_next()

    def _decided(self, batch: Batch, done: asyncio.Future[object], readers: list[asyncio.Future[None]]) -> None:
        error = done.exception()
        if error is not None:
            self._listener.commands_failed(batch, error)
        else:
            self._listener.commands_decided(batch, done.result())  # type: ignore[arg-type]
        _answer(readers, error)

    def _caught_up(self, readers: list[asyncio.Future[None]], done: asyncio.Future[object]) -> None:
        error = done.exception()
        if error is None:
            self._listener.after_commit()
        _answer(readers, error)

    def _schedule_next(self) -> None:
        """After a transaction: the next one, if there is anything to do; or the end."""
        if self.batch or self._readers or (self.must_catch_up and not self._ending):
            self.schedule()
        elif self._ending and not self.busy and not self._ended:
            self._ended = True
            self._listener.all_finished()


def _answer(readers: list[asyncio.Future[None]], error: BaseException | None) -> None:
    for reader in readers:
        if reader.done():
            continue
        if error is None:
            reader.set_result(None)
        else:
            reader.set_exception(error)
            reader.exception()  # so that asyncio does not complain when the caller does not wait for it
