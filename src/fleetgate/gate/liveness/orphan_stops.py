"""The stop of agents whose runner cannot obey the request: it was killed, or is frozen (rule L6).

A runner ends its own agent. Without one, a process of the same machine and user does: `fleetgate stop`, a node, a
worker, the service, or a process that waits in the queue. The log says which process to signal, and a hostile member of
a shared folder may have written it: so only a process is signalled that was started with the lease in its environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING

from fleetgate.gate.liveness import process_identity
from fleetgate.gate.liveness.process_group import KILL_AFTER_S, AgentProcesses

if TYPE_CHECKING:
    import signal

    from fleetgate.core.entities import Lease
else:
    import _signal as signal


class OrphanStops:
    """Ends such agents: TERM at the first step, KILL at the first one 10 s later."""

    def __init__(self) -> None:
        self._ending: dict[int, _SignalledProcess] = {}  # by pid

    def step(self, leases: Iterable[Lease], *, scripts: bool = False) -> None:
        """Signal what is due. With `scripts`, also processes that `acquire --pid` tied a lease to."""
        now = monotonic()
        for lease in leases:
            pid = _target(lease, scripts) if lease.stop_by else None
            if pid is not None and pid not in self._ending:
                self._ending[pid] = _SignalledProcess(now, AgentProcesses(pid) if lease.child else _Script(pid))
                self._ending[pid].processes.signal(signal.SIGTERM, signal.SIGCONT)  # one that is frozen could not obey
        for pid, ending in list(self._ending.items()):
            if not ending.processes.live():
                del self._ending[pid]
            elif now - ending.told_at >= KILL_AFTER_S and not ending.killed:
                ending.killed = True
                ending.processes.signal(signal.SIGKILL)

    @property
    def busy(self) -> bool:
        """Whether a process that was signalled lives, even if its lease is gone."""
        return bool(self._ending)


class _Script:
    """The process of a script, which Fleetgate did not start: only it is signalled, not its group."""

    def __init__(self, pid: int) -> None:
        self._process = process_identity.identify(pid) or ""
        self._pid = pid

    def signal(self, *numbers: int) -> None:
        for number in numbers if self.live() else ():
            try:
                os.kill(self._pid, number)
            except OSError:
                pass

    def live(self) -> bool:
        return process_identity.is_gone(self._process) is False


class _SignalledProcess:
    """A process that got TERM."""

    def __init__(self, told_at: float, processes: AgentProcesses | _Script) -> None:
        self.told_at = told_at
        self.processes = processes
        self.killed = False


def _target(lease: Lease, scripts: bool) -> int | None:
    """The process to signal, if it is for others than its runner to do that."""
    if lease.child:
        pid = process_identity.local_pid(lease.child)
        if pid is None or not has_no_runner(lease) or process_identity.is_gone(lease.child) is not False:
            return None
        return pid if process_identity.has_variable(pid, f"FLEETGATE_LEASE={lease.id}") else None
    if not scripts or not lease.ticket.bound:
        return None
    pid = process_identity.local_pid(lease.ticket.bound)
    if pid is None or process_identity.is_gone(lease.ticket.bound) is not False:
        return None
    return pid if process_identity.owner_of(pid) == os.geteuid() else None


def has_no_runner(lease: Lease) -> bool:
    """Whether a process of this machine holds the lease, and no process that obeys is there to end it."""
    if process_identity.local_pid(lease.lives_with) is None:
        return False
    runner = lease.ticket.holder if lease.child else ""
    pid = process_identity.local_pid(runner)
    return pid is None or process_identity.is_gone(runner) is True or process_identity.is_stopped(pid)
