"""Processes that hold a slot or a place in the queue and have ended."""

from __future__ import annotations

from collections.abc import Callable

from fleetgate.core import commands as cmd
from fleetgate.core.state.state import State
from fleetgate.gate.liveness import process_identity


def _certainly(process: str) -> bool:
    return process_identity.is_gone(process) is True


def lost(state: State, judge: Callable[[str], bool] = _certainly) -> cmd.Lost | None:
    """The holders that are gone; None if all are alive or cannot be judged from here.

    An agent whose wrapper is alive is left out: only the wrapper can say how the agent ended, and it will.
    """
    judged: dict[str, bool] = {}

    def is_gone(process: str) -> bool:
        known = judged.get(process)
        if known is None:
            known = judged[process] = judge(process)
        return known

    gone = set()
    for lease in state.leases.values():
        if lease.ticket.renew_ms:
            continue  # judged by its client's renewals
        if is_gone(lease.lives_with) and not (lease.child and _speaks(lease.ticket.holder)):
            gone.add(lease.lives_with)
    gone.update(pool.usage_gate.asked_by for pool in state.gates if is_gone(pool.usage_gate.asked_by))
    for process, tickets in state.ticket_index.processes.items():
        if is_gone(process) and not all(state.tickets[ident].renew_ms for ident in tickets):
            gone.add(process)
    return cmd.Lost(tuple(sorted(gone))) if gone else None


def _speaks(process: str) -> bool:
    """Whether a process is alive and not stopped."""
    pid = process_identity.local_pid(process)
    return pid is not None and process_identity.is_gone(process) is False and not process_identity.is_stopped(pid)
