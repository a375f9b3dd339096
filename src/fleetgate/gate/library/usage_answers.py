"""The usage gate's questions to providers, as tasks of an open gate's loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fleetgate.core import commands as cmd

if TYPE_CHECKING:
    from fleetgate.gate.library.gate_core import GateCore


class UsageAnswers:
    """Asks providers how much is in flight, one question a pool at a time, and sends the answers to the gate."""

    def __init__(self, core: GateCore) -> None:
        self._core = core
        self._under_way: set[tuple[str, str]] = set()  # kind and id of pools
        self._tasks: set[asyncio.Task[None]] = set()

    def ask_where_wanted(self) -> None:
        """Start a question for every pool that wants one and that this process can ask for."""
        core = self._core
        for pool in core.usage.wanted(core.replica.engine, core.now()):
            if (pool.kind, pool.id) not in self._under_way:
                self._under_way.add((pool.kind, pool.id))
                task = core.loop.create_task(self._ask(pool.kind, pool.id, pool.account))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """End all questions: the gate is about to close."""
        for task in self._tasks:
            task.cancel()

    async def _ask(self, kind: str, pool: str, account: str) -> None:
        core = self._core
        try:
            decided = await core.commits.post(cmd.AskUsage(kind, pool, core.me))
            if decided.events:
                count, error = await core.usage.answer(account)
                self._under_way.discard((kind, pool))
                await core.commits.post(cmd.AnswerUsage(kind, pool, core.me, count, error))
        except Exception as error:
            core.outage.failed("commits", error)  # waiting requests get that error
        finally:
            self._under_way.discard((kind, pool))
