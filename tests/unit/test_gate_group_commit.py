"""Group commit: which commands share a transaction, and what happens while another process has the write lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps

from fleetgate.core import commands as cmd
from fleetgate.gate.replica import group_commit
from fleetgate.gate.replica.group_commit import Batch, GroupCommit
from fleetgate.gate.replica.replica import Decided


class LockedReplica:
    """A replica whose lock is taken for so many tries."""

    me = "a process"
    decides_in_thread = False

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.tries = 0
        self.inline: list[cmd.Command] = []
        self.in_thread: list[cmd.Command] = []

    def try_decide(self, commands: Sequence[cmd.Command], *, durable: bool) -> list[Decided] | None:
        self.tries += 1
        if self.tries <= self.refusals:
            return None
        self.inline += commands
        return [Decided([]) for _ in commands]

    def decide(self, commands: Sequence[cmd.Command], *, durable: bool) -> list[Decided]:
        self.in_thread += commands
        return [Decided([]) for _ in commands]


class Listener:
    """Answers the futures, as a gate does."""

    def commands_decided(self, batch: Batch, decided: list[Decided]) -> None:
        for (_, future), one in zip(batch, decided, strict=True):
            if future is not None:
                future.set_result(one)

    def commands_failed(self, batch: Batch, error: BaseException) -> None: ...
    def after_commit(self) -> None: ...
    def all_finished(self) -> None: ...


def in_a_loop(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


def opened(replica: LockedReplica) -> tuple[GroupCommit, list[int]]:
    commits = GroupCommit(replica, Listener())  # type: ignore[arg-type]
    commits.open(asyncio.get_running_loop())
    sizes: list[int] = []
    commits.on_batch = sizes.append
    return commits, sizes


@in_a_loop
async def test_a_transaction_is_tried_again_with_what_has_come_meanwhile() -> None:
    replica = LockedReplica(refusals=2)
    commits, sizes = opened(replica)
    first = commits.post(cmd.Cancel("a", "a person"))
    await asyncio.sleep(0)
    second = commits.post(cmd.Cancel("b", "a person"))
    await asyncio.gather(first, second)
    assert replica.inline == [cmd.Cancel("a", "a person"), cmd.Cancel("b", "a person")]
    assert replica.in_thread == []
    assert sizes == [2]  # a transaction is counted once, however often it was tried


@in_a_loop
async def test_after_commands_that_came_together_the_loop_looks_for_more_before_the_next_transaction() -> None:
    commits, sizes = opened(LockedReplica(refusals=0))
    await asyncio.gather(*(commits.post(cmd.Cancel(ident, "a person")) for ident in "ab"))
    first = commits.post(cmd.Cancel("c", "a person"))
    await asyncio.sleep(0)
    second = commits.post(cmd.Cancel("d", "a person"))  # one turn of the loop later
    await asyncio.gather(first, second)
    assert sizes == [2, 2]


@in_a_loop
async def test_a_command_that_comes_alone_does_not_wait_for_others() -> None:
    commits, sizes = opened(LockedReplica(refusals=0))
    for ident in "ab":
        alone = commits.post(cmd.Cancel(ident, "a person"))
        await asyncio.sleep(0)
        assert alone.done()
    assert sizes == [1, 1]


@in_a_loop
async def test_a_thread_waits_for_a_lock_that_stays_taken() -> None:
    replica = LockedReplica(refusals=100)
    commits, sizes = opened(replica)
    await commits.post(cmd.Cancel("a", "a person"))
    assert replica.tries == group_commit.RETRIES + 1
    assert replica.in_thread == [cmd.Cancel("a", "a person")]
    assert sizes == [1]
    await commits.post(cmd.Cancel("b", "a person"))  # and the next one is tried inline again
    assert replica.tries == 2 * (group_commit.RETRIES + 1)


@in_a_loop
async def test_the_last_transaction_of_a_gate_that_closes_is_not_put_off() -> None:
    replica = LockedReplica(refusals=100)
    commits, _ = opened(replica)
    future = commits.post(cmd.Cancel("a", "a person"))
    commits.finish(RuntimeError("closed"))
    await future
    assert replica.tries == 1
    assert replica.in_thread == [cmd.Cancel("a", "a person")]
