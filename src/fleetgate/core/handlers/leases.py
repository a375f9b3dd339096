"""Commands about leases: claim, renew, release, reclaim, and processes that were lost."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.budgets.amounts import MOST, can_be
from fleetgate.core.deadlines import keep_ms, renewal_counts
from fleetgate.core.entities import Lease
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.events import Released
from fleetgate.core.handlers.backoffs import BackoffHandler
from fleetgate.core.handlers.budgets import BudgetHandler
from fleetgate.core.handlers.rate_limits import RateLimitHandler
from fleetgate.core.handlers.usage_answers import UsageAnswerHandler
from fleetgate.core.model_names import shown
from fleetgate.core.pools import blame
from fleetgate.core.pools.backoff import CAUSES
from fleetgate.core.pools.usage_gate import WITHDRAWN
from fleetgate.core.state.state import State
from fleetgate.core.ticket_states import PASSED_OVER
from fleetgate.core.usage import ESTIMATE, RECORD, RESPONSE, Usage

_NOTHING = Usage(source=RESPONSE)


class LeaseHandler:
    """The leases of one state."""

    def __init__(
        self,
        state: State,
        record: Callable[[ev.Event], None],
        rate_limits: RateLimitHandler,
        backoffs: BackoffHandler,
        usage_answers: UsageAnswerHandler,
        budgets: BudgetHandler,
    ) -> None:
        self._state = state
        self._record = record
        self._rate_limits = rate_limits
        self._backoffs = backoffs
        self._usage_answers = usage_answers
        self._budgets = budgets

    def claim(self, command: cmd.Claim, now: int) -> None:
        lease = self._state.leases.get(command.id)
        if lease is None:
            ticket = self._state.tickets.get(command.id)
            if ticket is None or ticket.job:
                raise NotFound(f"no lease {command.id}: it was reclaimed or never granted")
            if ticket.state == PASSED_OVER:
                self._record(ev.Asked(command.id))
        elif command.holder and command.holder != lease.ticket.holder:
            raise NotFound(f"no lease {command.id} of this process: another process has it now")
        elif not lease.claimed or (command.child and command.child != lease.child):
            self._record(ev.Claimed(command.id, command.child))

    def renew(self, command: cmd.Renew, now: int) -> None:
        """A client gave a sign of life. Recorded when half of its time is over, or another process speaks for it."""
        lease = self._state.leases.get(command.id)
        ticket = lease.ticket if lease is not None else self._state.tickets.get(command.id)
        if ticket is None:
            raise NotFound(f"no lease or ticket {shown(command.id)}: it was taken back, released or never granted")
        if not ticket.renew_ms:
            raise BadRequest(f"{command.id} lives as long as its process: there is nothing to renew")
        other = bool(command.holder) and (command.holder, command.wake) != (ticket.holder, ticket.wake)
        if other or renewal_counts(ticket, now):
            holder, wake = (command.holder, command.wake) if other else ("", "")
            self._record(ev.Renewed(command.id, now + keep_ms(ticket.renew_ms), holder, wake))

    def release(self, command: cmd.Release, now: int) -> None:
        state, ident, outcome = self._state, command.id, command.outcome
        lease = state.leases.get(ident)
        if lease is None or (command.holder and command.holder != lease.ticket.holder):
            return
        ticket = lease.ticket
        spec = ticket.spec
        if outcome == "ok":
            if state.backoffs:
                self._backoffs.probe_succeeded(ident)
        else:
            self._failed(command, lease, now)
            if command.keeps:
                return
        if command.readings and not command.refused_rate:
            self._budgets.observe(lease, command.readings, now)
        usage, spent = command.usage, lease.spent
        if usage is not None or ticket.estimate is not None:
            usage = _final_usage(lease, usage, outcome)
        total = spent if spent is None or usage is None else spent.plus(usage)
        self._record(
            Released(  # by position, as in `new_ticket`
                ident,
                outcome,
                lease.model,
                lease.waited_ms,
                now - lease.granted_at,
                spec.kind,
                spec.project,
                command.exit_code,
                command.signal,
                command.activity,
                ticket.role,
                ticket.session,
                command.evidence,
                ticket.job,
                usage,
                total,
                ticket.run,
                ticket.name,
                spec.access_key,
            )
        )

    def _failed(self, command: cmd.Release, lease: Lease, now: int) -> None:
        """Act on an outcome other than ok: it says something about a pool or a model."""
        held = self._state.lease_candidates[command.id]
        if command.outcome not in CAUSES or held.name is None:
            return
        if lease.ticket.spec.kind != "requests":
            self._backoffs.observed(command, held.name, now)
        elif command.refused_rate and self._budgets.refused(command, lease, now):
            return  # only that rate is emptied (rule V8)
        elif command.outcome == "server_error" and blame.narrowest(held) is not None:
            return  # the caller gets it; it says nothing about the limit
        elif command.outcome != "rate_limited" or not self._rate_limits.refused(command, lease, now):
            self._backoffs.observed(command, held.name, now, call=True)

    def settle(self, command: cmd.Settle, now: int) -> None:
        if command.id not in self._state.leases:
            raise NotFound(f"no lease {shown(command.id)}: it was taken back, released or never granted")
        if not can_be(command.usage):
            raise BadRequest(f"usage: each number is 0 to {MOST}")
        self._record(ev.Settled(command.id, command.usage))

    def reclaim(self, command: cmd.Reclaim, now: int) -> None:
        lease = self._state.leases.get(command.id)
        if lease is None:
            raise NotFound(f"no lease {shown(command.id)}: see `fleetgate ps`")
        if command.cause not in ("forced", "unrenewed"):
            raise BadRequest(f"cause {shown(command.cause)}: valid are forced and unrenewed")
        self.take_back(lease, command.cause, now, command.by)

    def stop(self, command: cmd.Stop, now: int) -> None:
        """Recorded once: the first to request it is named."""
        lease = self._state.leases.get(command.id)
        if lease is None:
            raise NotFound(f"no lease {shown(command.id)}: see `fleetgate ps`")
        if lease.ticket.renew_ms:
            raise BadRequest(f"{command.id} belongs to an HTTP client, which no gate can stop")
        if not lease.stop_by:
            self._record(ev.StopRequested(command.id, command.by))

    def take_back(self, lease: Lease, cause: str, now: int, by: str = "", silent: str = "") -> None:
        ticket = lease.ticket
        spec = ticket.spec
        held_ms = now - lease.granted_at
        usage = _final_usage(lease, None, "")
        self._record(
            ev.Reclaimed(
                lease.id,
                cause,
                lease.model,
                held_ms,
                by,
                spec.kind,
                spec.project,
                ticket.job,
                silent,
                usage,
                lease.spent,
                ticket.run,
                ticket.name,
                bool(lease.gives_way_to),
                spec.access_key,
            )
        )

    def lost(self, command: cmd.Lost, now: int) -> None:
        state = self._state
        gone, silent = set(command.processes), set(command.silent)
        for ident in state.ticket_index.of_processes(gone):
            ticket = state.tickets[ident]
            if ticket.renew_ms:
                continue  # its client may still be there, and come back through another process
            why = "silent" if ticket.holder in silent else ""
            self._record(ev.Withdrawn(ident) if ticket.job else ev.Dropped(ident, why))
        for lease in list(state.leases.values()):
            unclaimable = not lease.claimed and not lease.ticket.renew_ms and lease.ticket.holder in gone
            if unclaimable or lease.lives_with in gone:
                if lease.ticket.job and not lease.child:
                    self._record(ev.Returned(lease.id))  # it never ran
                else:
                    whose = lease.lives_with or lease.ticket.holder
                    host = whose.partition("|")[0] if whose in silent else ""
                    self.take_back(lease, "lost", now, lease.stop_by, host)
        for pool in state.gates:
            if pool.usage_gate.asked_by in gone:
                self._usage_answers.answered(pool, None, WITHDRAWN, now)


def _final_usage(lease: Lease, usage: Usage | None, outcome: str) -> Usage | None:
    """What counts as used when a lease ends, beside what was settled before (rules U2, V3)."""
    ticket, spent = lease.ticket, lease.spent
    if usage is not None and can_be(usage):
        counted_twice = spent is not None and usage.source == RECORD
        return None if counted_twice else usage  # the calls of the run were counted: its record repeats them
    if spent is not None or ticket.estimate is None:
        return None
    if outcome == "rate_limited" and ticket.spec.kind == "requests":
        return _NOTHING
    return replace(ticket.estimate, source=ESTIMATE)
