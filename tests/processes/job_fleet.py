"""Jobs of a fleet: how a test submits them, starts workers for them and reads their state."""

from __future__ import annotations

from typing import Any

from fleetgate.jobs import job_store, state_machine, submit
from fleetgate.jobs.job_record import JobSpec
from fleetgate.jobs.job_store import JobView
from tests.processes.fleet import FLEETGATE, PATIENCE_S, Fleet, Run, children_of


class Jobs:
    """The jobs of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def cli(self, *arguments: str, code: int = 0, within_s: float = PATIENCE_S) -> Run:
        """Run a command to its end; its exit code must be `code`."""
        run = self.fleet.start([*FLEETGATE, *arguments])
        assert run.wait(within_s) == code, run
        return run

    def submit(self, *arguments: str) -> str:
        """`fleetgate submit`; return the job's id."""
        return self.cli("submit", *arguments).out.strip()

    def quickly(self, *argv: str, **said: Any) -> str:
        """Submit without starting a process; return the id."""
        return self.many([list(argv)], **said)[0]

    def many(self, commands: list[list[str]], **said: Any) -> list[str]:
        gate = self.fleet.gate
        specs = [JobSpec(tuple(argv), str(self.fleet.folder), gate.host, **said) for argv in commands]
        return [each.id for each in submit.submit(gate, specs)]

    def worker(self, processes: int, *options: str) -> Run:
        return self.fleet.start([*FLEETGATE, "worker", "-n", str(processes), *options])

    def view(self, ident: str) -> JobView:
        return job_store.view(self.fleet.gate, ident)

    def state(self, ident: str) -> str:
        return self.view(ident).state

    def until(self, ident: str, *wanted: str, within_s: float = PATIENCE_S) -> JobView:
        """The job, once it is in one of these states."""
        self.fleet.until(lambda: self.state(ident) in wanted, within_s, f"{ident} {wanted}, not {self.state(ident)}")
        return self.view(ident)

    def ended(self, ident: str, within_s: float = PATIENCE_S) -> JobView:
        return self.until(ident, *state_machine.FINAL, within_s=within_s)

    def process_of(self, ident: str) -> int:
        """The pid of the worker process that runs a job."""
        from fleetgate.gate.liveness import process_identity

        pid = process_identity.pid_of(self.fleet.state.leases[ident].ticket.holder)
        assert pid is not None
        return pid

    def child_of(self, ident: str) -> int:
        from fleetgate.gate.liveness import process_identity

        pid = process_identity.pid_of(self.fleet.state.leases[ident].child)
        assert pid is not None
        return pid


def processes_of(worker: Run) -> list[int]:
    return children_of(worker.pid)
