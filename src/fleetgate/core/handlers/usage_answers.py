"""Questions to providers about their usage, and what an answer admits (rules G1 to G5; core/pools/usage_gate.py)."""

from __future__ import annotations

from collections.abc import Callable

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.deadlines import Deadlines
from fleetgate.core.entities import Ticket
from fleetgate.core.errors import BadRequest
from fleetgate.core.pools.effective_caps import UNLIMITED
from fleetgate.core.pools.pool import Pool
from fleetgate.core.pools.usage_gate import WITHDRAWN
from fleetgate.core.queue.admission import Admission
from fleetgate.core.state.state import State


class UsageAnswerHandler:
    """The usage gates of one state."""

    def __init__(
        self, state: State, deadlines: Deadlines, admission: Admission, record: Callable[[ev.Event], None]
    ) -> None:
        self._state = state
        self._deadlines = deadlines
        self._admission = admission
        self._record = record

    def questions(self, now: int) -> list[Pool]:
        """The pools whose provider should be asked now."""
        return [pool for pool in self._state.gates if pool.usage_gate.wants(now) and pool.gated]

    def askers(self, now: int) -> list[Ticket]:
        """The tickets whose processes should ask them."""
        return [ticket for pool in self.questions(now) if (ticket := self._deadlines.first_asker(pool)) is not None]

    def ask(self, command: cmd.AskUsage, now: int) -> None:
        if any((pool.kind, pool.id) == (command.kind, command.pool) for pool in self.questions(now)):
            self._record(ev.UsageAsked(command.kind, command.pool, command.by))

    def answer(self, command: cmd.AnswerUsage, now: int) -> None:
        if command.count is not None and command.count < 0:
            raise BadRequest(f"{command.count} in flight at the provider: valid is 0 or more")
        for pool in self._state.gates:
            if (pool.kind, pool.id, pool.usage_gate.asked_by) == (command.kind, command.pool, command.by):
                self.answered(pool, command.count, command.error, now)

    def answered(self, pool: Pool, count: int | None, error: str, now: int) -> None:
        """Below the limit, one waiting ticket enters; without an answer, those that find slots (rules G1, G2, G4)."""
        self._record(ev.UsageAnswered(pool.kind, pool.id, pool.limit, count, error))
        if error == WITHDRAWN:
            return
        pool.usage_gate.room = UNLIMITED if count is None else max(pool.limiter.with_probe(now) - count, 0)
        self._state.recheck_pool(pool)
        self._admission.admit_waiting(now)
        pool.usage_gate.room = 0

    def due(self, pool: Pool, now: int) -> None:
        """The deadline of a pool has come: go on without an answer, or look again later."""
        if now >= pool.usage_gate.lapses_at():
            self.answered(pool, None, _unanswered(pool), now)
        else:
            self._deadlines.watch_usage(pool, now)


def _unanswered(pool: Pool) -> str:
    return "no answer within 6 s" if pool.usage_gate.asked_by else "no process asked within 6 s"
