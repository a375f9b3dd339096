"""Start the candidates that fit now, and report why the others do not (rule J6).

Each candidate is an acquire request that does not wait. One that fits becomes a job, run by a worker process of its own
until it has finished. One that does not fit is deferred at no cost; offer it again next time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import time_ns

import msgspec
from msgspec import Struct

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Reason
from fleetgate.core.errors import FleetgateError
from fleetgate.core.state.state import State
from fleetgate.gate.replica.replica import Decided
from fleetgate.gate.request_ids import new_id
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs import job_record, state_machine
from fleetgate.jobs.job_owner import must_seal, name_owner
from fleetgate.jobs.job_record import Job, JobSpec
from fleetgate.jobs.sealed_files import remove, seal
from fleetgate.jobs.worker.worker import OpenGate, start_worker_process
from fleetgate.jobs.worker.worker_process import Wants, WorkerProcess
from fleetgate.log.protocol import SideWrite


class DispatchAnswer(Struct, omit_defaults=True):
    """The result for one candidate: started with a model, deferred for a reason, or invalid."""

    id: str = ""
    model: str = ""
    reason: Reason | None = None
    error: str = ""


def rehearse(gate: DirectGate, specs: list[JobSpec]) -> list[DispatchAnswer]:
    """The result for each candidate, in order, without starting or recording anything."""
    now = gate.now()
    engine = Engine(State.restore(gate.read().export()))
    for command in gate.observations():
        engine.handle(command, now)
    engine.handle(cmd.Tick(), now)
    return [_answer(spec, lambda command: Decided(engine.handle(command, now))) for spec in specs]


def start(open_gate: OpenGate, spec: JobSpec, by: str) -> DispatchAnswer:
    """Start one candidate if it fits now, in a process that outlives this one."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_fd)
            wants = Wants(only=new_id())
            start_worker_process(
                open_gate, wants, None, None, lambda process: _first(process, wants.only, spec, by, write_fd)
            )
        finally:
            os._exit(0)  # so the worker process has no parent that waits for it
    os.close(write_fd)
    os.waitpid(pid, 0)
    with os.fdopen(read_fd, "rb") as file:
        told = file.read()
    if not told:
        raise FleetgateError("the process that was to start it has died: see `fleetgate doctor`")
    return msgspec.json.decode(told, type=DispatchAnswer)


def _first(process: WorkerProcess, ident: str, spec: JobSpec, by: str, write_fd: int) -> bool:
    """The first step of a process that was started for one candidate: acquire its slot and report the result."""
    gate = process.gate
    answer = DispatchAnswer(error="internal error")
    try:
        spec = name_owner(spec, gate.folder, shared_log=gate.log.is_shared)
        job = Job(spec, state_machine.QUEUED, gate.now(), time_ns() // 1_000_000, by)
        if must_seal(gate.folder, shared_log=gate.log.is_shared):
            job = seal(gate.folder, ident, job)

        def ask(command: cmd.Acquire) -> Decided:
            command.holder, command.wake = gate.me, gate.replica.address
            first = gate.commands_before(command)
            commands = [*first, command]
            return gate.decide(commands, durable=True, side=lambda decided: _rows(ident, job, decided[-1]))[-1]

        answer = _answer(spec, ask, ident, job)
    except FleetgateError as error:
        answer = DispatchAnswer(error=str(error))
    finally:
        if answer.error or answer.reason is not None:
            remove(gate.folder, ident)  # it does not run, so nothing is kept of it
        os.write(write_fd, msgspec.json.encode(answer))
        os.close(write_fd)
    return not answer.error and answer.reason is None


def _rows(ident: str, job: Job, decided: Decided) -> list[SideWrite]:
    granted = any(isinstance(event, ev.Granted) and event.id == ident for event in decided.events)
    return [job_record.write(ident, job)] if granted else []


def _answer(
    spec: JobSpec, ask: Callable[[cmd.Acquire], Decided], ident: str = "", job: Job | None = None
) -> DispatchAnswer:
    ident = ident or new_id()
    command = job_record.acquire_command(ident, job or Job(spec, state_machine.QUEUED, 0, 0))
    command.wait, command.since, command.confirm = False, None, False
    command.spec = msgspec.structs.replace(command.spec, host=spec.host)
    try:
        decided = ask(command)
    except FleetgateError as error:
        return DispatchAnswer(error=str(error))
    if decided.error is not None:
        return DispatchAnswer(error=str(decided.error))
    for event in decided.events:
        if isinstance(event, ev.Deferred) and event.id == ident:
            return DispatchAnswer(ident, reason=event.reason)
        if isinstance(event, ev.Granted) and event.id == ident:
            return DispatchAnswer(ident, event.model)
    return DispatchAnswer(error="it was neither started nor deferred")
