"""The owner of a lease: which processes may release it without force, and whether its agent can be stopped.

Anyone else would free the slot of an agent that is still running, and two would run where the cap allows one. A lease
of `acquire` is a script's: the script that has it, what it started, and the process that called it may release it. A
lease that an HTTP client renews belongs to that client, which is known only by the lease's id.
"""

from __future__ import annotations

import os

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
    if not why_not_to_stop(lease):
        end = f"`fleetgate stop {lease.id}`"
    else:
        end = f"`kill {pid}`" if where == process_identity.host_name() else f"`kill {pid}` on {where}"
    return f"{text}. {end} stops it and frees the slot; --force frees the slot and lets it continue, beyond the cap"


def why_not_to_stop(lease: Lease, *, here: bool = False) -> str:
    """Why the agent of a lease cannot be stopped (rule L6); "" if it can. `here`: by a command on this machine."""
    ticket, ident = lease.ticket, lease.id
    if ticket.renew_ms:
        return f"{ident} belongs to {whose(lease)}: Fleetgate cannot stop an HTTP client"
    if lease.child or ticket.job:
        return ""
    if ticket.run:
        return f"{ident} is a model call of the run {ticket.run}: stop that"
    pid, where = process_identity.pid_of(lease.lives_with), process_identity.host_of(lease.lives_with)
    if not ticket.bound:
        return f"{ident} is held by a program itself, {whose(lease)}: `kill {pid}` on {where} ends the program"
    local = process_identity.local_pid(ticket.bound)
    if not here or local is None:
        return f"{ident} belongs to a script, {whose(lease)}: `fleetgate stop {ident}` on {where} ends it"
    if process_identity.owner_of(local) not in (os.geteuid(), None):
        return f"{ident} belongs to a script of another user, {whose(lease)}: only that user can stop it"
    return ""


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
