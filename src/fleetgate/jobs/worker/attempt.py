"""One attempt of a job under its lease: its start, its supervision, the verdict on its end, and what follows from it.

The runner is that of `fleetgate run`: the child waits until its pid is committed, together with the row that makes the
job `running`. The end of the attempt and the job's next state are one transaction too. If another process has taken the
lease meanwhile, nothing is written: that process decides about the job. If the log itself lost the lease
(gate/replica/lost_log_recovery.py), it is claimed again, with the row.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import random
from time import sleep, time_ns

from msgspec.structs import replace

from fleetgate.config.environment import Environment
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Lease
from fleetgate.core.errors import BadRequest, FleetgateError
from fleetgate.core.views.budget_views import budgets_stopping
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.providers.credentials import HeldCredential
from fleetgate.gate.replica.replica import Decided
from fleetgate.gate.replica.side_rows import JOB_ENDS
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.gate.slots.slot_gate import UNUSED, StopRequest
from fleetgate.jobs import job_record, state_machine
from fleetgate.jobs.job_owner import Owners
from fleetgate.jobs.job_record import Job, JobSpec
from fleetgate.jobs.output_files import OutputWriter
from fleetgate.jobs.retry_policy import BUDGET, CANCEL, GIVE_WAY, HAND_BACK, AttemptEnd, verdict
from fleetgate.jobs.sealed_files import OwnerUnproven, unseal
from fleetgate.log.protocol import LogReplaced, SideWrite, StoreError
from fleetgate.runner.agent_run import SILENCE_S, AgentRun
from fleetgate.runner.child import CannotRun, Child
from fleetgate.runner.early_stop import EarlyStop
from fleetgate.runner.launch import environment_for, in_sandbox, limit_subagents
from fleetgate.runner.session_resume import SessionResume
from fleetgate.runner.supervisor import STOPPED, ProcessEnd, supervise
from fleetgate.signals.agents import agent_for, with_model
from fleetgate.signals.agents.placeholders import filled_in

TICK_S = 2.0
TAPS = [(1,), (2,)]
_UPKEEP_TICKS = 5
_CANNOT_ENTER = 126
_USAGE = 64


class NotOurs(Exception):
    """The lease belongs to another process now, or is gone."""


class _JudgedTooSoon(Exception):
    """A user has cancelled the job since its end was judged, or may have: the log was reloaded."""


class Wishes(EarlyStop):
    """Stops a job early: when its agent hangs (runner/early_stop.py), and when a user or the worker requests it."""

    __slots__ = ("wish",)

    def __init__(self, watch: AgentRun, silence_ms: int) -> None:
        reader = watch.reader
        assert reader is not None, "a job's output is always read"
        records_read = reader.mode == "stream"
        silence_s = silence_ms / 1000 if silence_ms else SILENCE_S if records_read else None
        if records_read:
            super().__init__(reader, silence_s=silence_s, patience=watch.patience)
        else:
            super().__init__(reader, early_s=None, record_s=None, silence_s=silence_s)
        self.wish = ""

    def next_deadline(self) -> float:
        return 0 if self.wish else super().next_deadline()

    def verdict(self, now_ms: float) -> str:
        return self.wish or super().verdict(now_ms)


class Attempt:
    """One attempt. `say` prints a line for the user of the worker."""

    def __init__(
        self,
        gate: DirectGate,
        lease: Lease,
        job: Job,
        say: Callable[[str], None],
        spare: Child | None = None,
        owners: Owners | None = None,
    ) -> None:
        self.id = lease.id
        self.by = ""  # the user who requested its end
        self._gate = gate
        self._lease = lease
        self._job = job
        self._owners = owners or Owners((), gate.folder, shared_log=gate.log.is_shared)
        self.spec = job.spec  # replaced by the owner's own, once that is proved
        self._say = say
        self._spare = spare
        self._ticks = 0
        self._reloads = 0  # of the replica, when our lease was last seen in what it loaded
        self._wishes: Wishes | None = None
        self._watch: AgentRun | None = None
        self._output = OutputWriter(gate.folder, lease.id, gate.settings.jobs.output_bytes)

    def wish(self, what: str, by: str = "") -> None:
        """End it early, for this reason."""
        if self._wishes is not None and not self._wishes.wish:
            self._wishes.wish, self.by = what, by

    def look_for_wishes(self) -> None:
        """Look whether the job was cancelled, or its slot taken back."""
        try:
            self._gate.replica.catch_up()
            if self._gate.replica.reloads != self._reloads:
                self._say_again()
            lease = self._gate.state.leases.get(self.id)
        except (FleetgateError, OSError):
            return
        if lease is None or lease.ticket.holder != self._gate.me:
            self.wish(HAND_BACK)  # nothing is written then: see `settle`
        elif lease.stop_by:
            self.wish(CANCEL, lease.stop_by)
        elif lease.gives_way_to:
            self._give_way()
        elif self._watch is not None and (budget := budgets_stopping(self._gate.state, self.id, self._gate.now())):
            self._watch.stop = StopRequest(budget=budget)
            self.wish(BUDGET)

    def _give_way(self) -> None:
        """End it for interactive work: the job's row says first, on disk, that it returns to the queue (rule W5)."""
        if not self._job.gives_way:
            self._job.gives_way = True
            try:
                self._say_again(durable=True)
            except (FleetgateError, OSError):
                self._job.gives_way = False
                return  # it is tried again in a moment
        self.wish(GIVE_WAY)

    def _say_again(self, *, durable: bool = False) -> None:
        """Claim the lease again with the row: the log was reloaded, and may have lost both; or the row has changed."""

        def rows(decided: list[Decided]) -> list[SideWrite]:
            if decided[0].error is not None:
                return []  # it is no longer ours
            return [SideWrite(JOB_ENDS, self.id, None), job_record.write(self.id, self._job)]

        self._gate.decide([cmd.Claim(self.id, self._lease.child, self._gate.me)], durable=durable, side=rows)
        self._reloads = self._gate.replica.reloads

    def run(self, fd: int | None, on_readable: Callable[[], str | None]) -> None:
        """The whole attempt. Requests arrive at `fd`, and `on_readable` reads them. Raises NotOurs."""
        try:
            self._run(fd, on_readable)
        finally:
            self._output.close()

    def _run(self, fd: int | None, on_readable: Callable[[], str | None]) -> None:
        lease = self._lease
        try:
            spec = self.spec = self._proved_spec()
        except OwnerUnproven as error:
            self._begin("")
            self._cannot(_CANNOT_ENTER, str(error))
            return
        command = self._command()
        if command is None:
            return
        agent = agent_for(command, spec.classify)
        session = None
        if spec.session:
            session = SessionResume(self._gate, lease, agent, fresh=False)
            command = session.resuming(command)
        credential = self._gate.credentials.used_for(lease.model)
        began_wall_ms = time_ns() // 1_000_000
        child = self._started(command)
        if child is None:
            return
        watch = self._watch = _JobRun(self, command, session, credential, began_wall_ms, child.pid)
        self._wishes = Wishes(watch, spec.silence_ms)
        self.look_for_wishes()
        supervise(
            child,
            ends_in_s=self._ends_in_s(),
            every_s=TICK_S,
            on_tick=lambda: self._tick(watch),
            fd=fd,
            on_readable=on_readable,
            on_bytes=lambda stream, data: self._take(watch, stream, data),
            ends=self._wishes,
            on_lingering=watch.lingers,
            on_end=watch.ended,
        )

    def _proved_spec(self) -> JobSpec:
        """The job's specification, proved. The model is checked too, since it becomes part of the command."""
        spec = unseal(self._gate.folder, self.id, self._job, self._owners)
        model = self._lease.model
        if self._job.sealed and model not in (spec.models or ("",)):
            raise OwnerUnproven(f"it was not submitted with the model {model}: submit it again")
        return spec

    def environment(self) -> dict[str, str]:
        """The variables of the agent, with the login of the account that its slot is of."""
        return environment_for(self._lease, self._gate.settings, self.spec.variables_to_set())

    def _command(self) -> list[str] | None:
        """The command with the model of the slot; None if there is none, which is then recorded."""
        spec, model = self.spec, self._lease.model
        command = filled_in(spec.words_to_run(), model)
        if not model:
            return command
        try:
            command, changed = with_model(command, model, self.environment(), spec.cwd, add=len(spec.models) > 1)
        except BadRequest as error:
            self._begin("")
            self._cannot(_USAGE, str(error))
            return None
        if changed:
            self._output.note(changed)
        return command

    def _started(self, command: list[str]) -> Child | None:
        """The running child, with its row and its lease; None if it cannot be run, which is then recorded."""
        gate, lease, job = self._gate, self._lease, self._job
        env = self.environment()
        env |= {"FLEETGATE_JOB": lease.id, "FLEETGATE_ATTEMPT": str(job.attempt + 1)}
        try:
            os.chdir(self.spec.folder_to_enter())
        except OSError as error:
            self._begin("")
            self._cannot(_CANNOT_ENTER, f"cannot enter {self.spec.cwd}: {error.strerror}")
            return None
        child = None
        try:
            command = limit_subagents(command, env, gate.settings)
            child = self._child(in_sandbox(command, lease, gate.settings, Environment.read()), env)
            self._begin(process_identity.identify(child.pid) or "")
            child.start()
        except CannotRun as error:
            if child is None:
                self._begin("")
            self._cannot(error.exit_code, str(error))
            return None
        except BaseException:
            if child is not None:
                child.abandon()
            raise
        finally:
            os.chdir("/")
        return child

    def _child(self, command: list[str], env: dict[str, str]) -> Child:
        """A child that waits for its command: the spare one, if it is still alive."""
        spare = self._spare
        if spare is None or not spare.lives():
            return Child.prepare(command, env, own_group=True, taps=TAPS)
        try:
            spare.give(command, env, self.spec.folder_to_enter())
        except CannotRun:
            spare.abandon()
            raise
        return spare

    def _begin(self, child: str) -> None:
        """Record that the attempt is running, and in which process."""
        gate, job = self._gate, self._job
        job.state = state_machine.next_state(state_machine.QUEUED, "start")
        job.attempt += 1
        job.started_at, job.finished_at = time_ns() // 1_000_000, 0
        job.model = self._lease.model
        job.exit_code = job.signal = None
        job.outcome = job.why = ""
        job.gives_way = False

        def rows(decided: list[Decided]) -> list[SideWrite]:
            if decided[0].error is not None:
                raise NotOurs
            return [job_record.write(self.id, job)]

        gate.decide([cmd.Claim(self.id, child or gate.me, gate.me)], side=rows)
        self._lease = gate.state.leases[self.id]
        self._reloads = gate.replica.reloads
        with_model = f" on {job.model}" if job.model else ""
        self._output.note(f"attempt {job.attempt} began{with_model}")
        self._say(f"job {self.id} began, attempt {job.attempt}{with_model}: {job.title[:80]}")

    def _cannot(self, code: int, why: str) -> None:
        release = cmd.Release(self.id, "local_error", exit_code=code, evidence=why, holder=self._gate.me)
        release.usage = UNUSED
        self.settle(release, AttemptEnd("local_error", why, code, hopeless=True), [])

    def _ends_in_s(self) -> float | None:
        lease, timeout_ms = self._lease, self.spec.timeout_ms
        limits = [(lease.ends_at - self._gate.now())] if lease.ends_at else []
        if timeout_ms:
            limits.append(timeout_ms)
        return min(limits) / 1000 if limits else None

    def _take(self, watch: AgentRun, stream: int, data: bytes) -> None:
        self._output.write(stream, data)
        watch.feed(stream, data)

    def _tick(self, watch: AgentRun) -> str:
        """Now and then; the wish that the job is to be ended for, also while it is frozen by SIGSTOP."""
        self._ticks += 1
        self.look_for_wishes()
        watch.hold_back_others()
        watch.look_at_records()
        if self._ticks % _UPKEEP_TICKS == 0 or self._gate.settings.on_cutoff == "end":
            why = watch.tick()
            if why:  # cut off from the store: another host runs it again
                self.wish(BUDGET if why == BUDGET else CANCEL if why == STOPPED else HAND_BACK, watch.stop.by)
        return self._wishes.wish if self._wishes is not None else ""

    def settle(self, release: cmd.Release, ended: AttemptEnd, side: list[SideWrite]) -> None:
        """Release the slot and move the job to its next state, in one transaction."""
        while True:
            try:
                self._settle(release, ended, side)
                return
            except _JudgedTooSoon:
                continue

    def _settle(self, release: cmd.Release, ended: AttemptEnd, side: list[SideWrite]) -> None:
        gate, job = self._gate, replace(self._job)  # a copy: if the store is away, this is done again
        held = gate.replica.catch_up().leases.get(self.id, self._lease)
        by, reloads = held.stop_by or ended.by, gate.replica.reloads
        job.finished_at = time_ns() // 1_000_000
        job.exit_code, job.signal, job.outcome = ended.exit_code, ended.signal, ended.outcome
        found = verdict(job, AttemptEnd(*ended[:-1], by), random())
        commands = state_machine.follow(self.id, job, found, gate.now())
        gone = SideWrite(JOB_ENDS, self.id, None)

        def rows(decided: list[Decided]) -> list[SideWrite]:
            released = next((event for event in decided[0].events if isinstance(event, ev.Released)), None)
            if released is None:
                raise NotOurs
            if bool(held.stop_by) > bool(by) or gate.replica.reloads != reloads:
                raise _JudgedTooSoon
            job_record.add_usage(job, released.total or released.usage)
            return [*side, gone, job_record.write(self.id, job)]

        gate.decide([release, *commands], durable=True, side=rows)
        lost = f"; {self._output.lost} bytes of output could not be kept" if self._output.lost else ""
        self._output.note(f"attempt {job.attempt}: {job.why or job.state}{lost}")
        became = "is queued again" if job.state == state_machine.QUEUED else job.state
        self._say(f"job {self.id} {became}{f' ({job.why})' if job.why else ''}{lost}")


class _JobRun(AgentRun):
    """The agent of a job. Its slot is released together with the job's next state."""

    def __init__(
        self,
        attempt: Attempt,
        command: list[str],
        session: SessionResume | None,
        credential: HeldCredential,
        began_wall_ms: int,
        pid: int,
    ) -> None:
        spec = attempt.spec
        super().__init__(
            attempt._gate,
            attempt._lease,
            command,
            classify=spec.classify,
            silence_s=SILENCE_S,
            patience_s=attempt._gate.settings.patience_ms / 1000,
            read=True,
            credential=credential,
            began_wall_ms=began_wall_ms,
            pid=pid,
            environ=attempt.environment(),
            folder=spec.folder_to_enter(),
            say=attempt._say,
            session=session,
        )
        self._attempt = attempt
        self.holder = attempt._gate.me

    def give_back(self, release: cmd.Release, end: ProcessEnd, side: list[SideWrite], *, durable: bool) -> None:
        judged = self.outcome
        assert judged is not None
        ended = AttemptEnd(
            judged.kind,
            judged.evidence,
            end.exit_code,
            end.signal,
            end.ended_because,
            judged.wait_ms,
            self._lease.model,
            self.stale_session,
            by=self._attempt.by,
        )
        release.holder = self._gate.me
        for wait_s in (0.1, 1.0, 5.0, 15.0, None):
            try:
                self._attempt.settle(release, ended, side)
                return
            except (StoreError, LogReplaced):
                if wait_s is None:
                    raise
                sleep(wait_s)
