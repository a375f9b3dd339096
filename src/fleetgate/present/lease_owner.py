"""The processes that may release a lease without force: the agent that it belongs to, and its descendants.

Anyone else would free the slot of an agent that is still running, and two would run where the cap allows one. A lease
of `acquire` is a script's: the script that has it, what it started, and the process that called it may release it. A
lease that an HTTP client renews belongs to that client, which is known only by the lease's id.
"""

from __future__ import annotations

from fleetgate.core.entities import Lease
from fleetgate.gate.liveness import process_identity
from fleetgate.present.name_lookup import whose


def still_runs(lease: Lease) -> bool:
    """Whether the process of a lease runs, as far as that can be seen from here."""
    return bool(lease.lives_with) and process_identity.is_gone(lease.lives_with) is not True


def why_not_to_release(lease: Lease, caller: int | None = None) -> str:
    """Why this caller may not release a lease; "" if it may. `caller` is None for an HTTP client."""
    if not still_runs(lease):
        return ""
    if caller is not None and _is_in_tree(lease, caller):
        return ""
    pid, where = process_identity.pid_of(lease.lives_with), process_identity.host_of(lease.lives_with)
    text = f"{lease.id} belongs to {whose(lease)}, which is still running"
    if lease.ticket.job:
        return f"{text}. `fleetgate cancel {lease.id}` stops the job"
    end = f"`kill {pid}`" if where == process_identity.host_name() else f"`kill {pid}` on {where}"
    return f"{text}. {end} stops it and frees the slot; --force frees the slot and lets it continue, beyond the cap"


def what_force_breaks(lease: Lease) -> str:
    """What follows from taking a lease back by force; "" if its process has ended."""
    if not lease.lives_with or process_identity.is_gone(lease.lives_with) is not False:
        return ""
    pid = process_identity.pid_of(lease.lives_with)
    return (
        f"process {pid} is still running and no longer counts: one more than the cap allows may run now; "
        f"stop it with `kill {pid}`"
    )


def _is_in_tree(lease: Lease, caller: int) -> bool:
    """Whether the caller is the lease's process or runs under it; of a script's lease also whether it called that."""
    ticket = lease.ticket
    own = [process for process in (lease.child, ticket.bound, ticket.holder) if process]
    pids = {
        pid
        for process in own
        if (pid := process_identity.local_pid(process)) and process_identity.is_gone(process) is False
    }
    if not pids.isdisjoint(_with_ancestors(caller)):
        return True
    script = process_identity.local_pid(ticket.bound) if ticket.bound and not lease.child else None
    return script is not None and process_identity.parent_of(caller) in _with_ancestors(script)


def _with_ancestors(pid: int) -> set[int]:
    """A process and those above it. The tree changes while it is read, so it may even have a loop."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        pid = process_identity.parent_of(pid)
    return found
