"""What telemetry knows about a run or a proxied call, without prompts, keys, paths or arguments."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.core import events as ev
from fleetgate.core.entities import Ticket
from fleetgate.core.usage import Usage
from fleetgate.gate.liveness.process_identity import host_of


class RunRecord(Struct, frozen=True):
    """A run, job or lease that has ended. Times are wall time in ms."""

    id: str
    kind: str
    model: str  # "" where it has none
    project: str
    ended_ms: int
    waited_ms: int
    held_ms: int
    outcome: str
    program: str = ""
    role: str = ""
    job: bool = False
    exit_code: int | None = None
    signal: int | None = None
    usage: Usage | None = None


class ProxiedCall(Struct, frozen=True):
    """A call that passed through the proxy and has ended."""

    model: str
    project: str
    ended_ms: int
    ms: int
    waited_ms: int
    upstream_ms: int
    attempts: int
    status: int
    outcome: str
    api: str
    server: str  # the provider's host
    client_left: bool = False
    run: str = ""  # the lease of the run that made it
    traceparent: str = ""
    usage: Usage | None = None


class RunningAgents:
    """The programs and hosts of runs that have not ended, by the id of their ticket."""

    MOST = 10_000

    def __init__(self) -> None:
        self._programs: dict[str, str] = {}  # only their names
        self._hosts: dict[str, str] = {}

    def hear_ticket(self, ticket: Ticket | None) -> None:
        if ticket is not None and ticket.spec.kind == "agents":
            if len(self._programs) >= self.MOST:
                self._programs.clear()
            self._programs[ticket.id] = program_of(ticket.command)

    def hear_child(self, ident: str, child: str) -> None:
        """The process of an agent, which says on which host it is."""
        if child:
            if len(self._hosts) >= self.MOST:
                self._hosts.clear()
            self._hosts[ident] = host_of(child)

    def take(self, ident: str) -> tuple[str, str]:
        """The program and the host of a run that has ended; "" for what is not known."""
        return self._programs.pop(ident, ""), self._hosts.pop(ident, "")


def program_of(command: str) -> str:
    """The name of the program of a command line, without its folder and arguments."""
    words = command.split(maxsplit=1)
    name = words[0].rpartition("/")[2] if words else ""
    return name if name.isprintable() and len(name) <= 100 else ""


def run_record(event: ev.Released | ev.Reclaimed, at_ms: int, program: str) -> RunRecord:
    """The record of a run that ended at a wall time."""
    usage = event.total or event.usage
    if isinstance(event, ev.Reclaimed):
        return RunRecord(
            event.id,
            event.kind,
            event.model,
            event.project,
            at_ms,
            0,
            event.held_ms,
            event.cause,
            program,
            job=event.job,
            usage=usage,
        )
    return RunRecord(
        event.id,
        event.kind,
        event.model,
        event.project,
        at_ms,
        event.waited_ms,
        event.held_ms,
        event.outcome,
        program,
        event.role,
        event.job,
        event.exit_code,
        event.signal,
        usage,
    )
