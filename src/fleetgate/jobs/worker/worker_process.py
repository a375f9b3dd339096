"""One process of a worker: it offers to run jobs, waits until one is admitted, runs it, and repeats (rule J2).

It offers for the first job of each kind at once, as any of them may be admitted first. When one is, the other offers
are withdrawn, and a second grant of the same instant returns to its place. While it runs a job it offers nothing. So a
job asks for a slot only when a process is ready to run it.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from time import monotonic

from msgspec import Struct

from fleetgate.config.file import ConfigWatch
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease, Spec, Ticket
from fleetgate.core.errors import FleetgateError
from fleetgate.core.model_names import glob
from fleetgate.core.state.state import State
from fleetgate.gate.outage_log import Trouble
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.gate.wakeup import mailbox
from fleetgate.jobs import job_store, state_machine, unattended_ends
from fleetgate.jobs.job_owner import Owners
from fleetgate.jobs.retry_policy import HAND_BACK
from fleetgate.jobs.worker.attempt import TAPS, Attempt, NotOurs
from fleetgate.log.protocol import LogReplaced, StoreMoved
from fleetgate.runner.child import CannotRun, Child

POLL_S = 1.0
_MOST_OFFERS = 32  # kinds of jobs that one process offers for at a time
_TROUBLE_S = 1.0


class Wants(Struct, frozen=True):
    """Which jobs a worker runs. Empty: all."""

    projects: tuple[str, ...] = ()
    models: tuple[str, ...] = ()  # globs
    only: str = ""  # this one, and no other
    users: tuple[str, ...] = ()  # empty: only jobs of this process's own user

    def takes(self, ticket: Ticket, host: str, owners: Owners) -> bool:
        spec = ticket.spec
        if (spec.host and spec.host != host) or not owners.may_run(spec.user):
            return False
        if self.only:
            return ticket.id == self.only
        if self.projects and spec.project not in self.projects:
            return False
        return not self.models or any(glob(pattern, model) for pattern in self.models for model in spec.models)


class WorkerProcess:
    """Runs in a process of its own. `life` is a pipe whose end is the end of the worker; -1: there is none."""

    def __init__(
        self,
        gate: DirectGate,
        wants: Wants,
        life: int,
        say: Callable[[str], None],
        config: ConfigWatch | None = None,
    ) -> None:
        self.gate = gate
        self._config = None if config is None else ConfigWatch(config.path, gate.loaded, _unheard)
        self.finishing = False
        self._wants = wants
        self._owners = Owners(wants.users, gate.folder, shared_log=gate.log.is_shared)
        self._life = life
        self._say = say
        self._attempt: Attempt | None = None
        self._spare: Child | None = None  # forked while there was nothing to do
        self._mailbox = _mailbox(gate.folder)
        gate.replica.address = "" if self._mailbox is None else self._mailbox.address
        self._alarm: float | None = None
        self._next_poll = 0.0
        self._offers: dict[str, Spec] = {}  # jobs that we offer for, and what kind each is

    # Waiting for a job.

    def work(self) -> None:
        """Run jobs until the worker stops, or the one wanted job has finished."""
        trouble = Trouble(self._say)
        while not self.finishing:
            try:
                lease = self.next_lease()
                trouble.worked()
                if lease is not None:
                    self.run(lease)
            except StoreMoved:
                self.finishing = True  # the worker says so
            except (FleetgateError, LogReplaced) as error:
                trouble.failed(error)
                self._rest(_TROUBLE_S)
            if self._wants.only and self._is_over():
                break
        self.close()

    def close(self) -> None:
        try:
            self._withdraw()
        except (FleetgateError, LogReplaced):
            pass  # they end with this process
        if self._mailbox is not None:
            self._mailbox.close()
        if self._spare is not None and self._spare.lives():
            self._spare.abandon()

    def next_lease(self) -> Lease | None:
        """The lease of the next job; None when the worker stops, or none was admitted in time."""
        gate = self.gate
        self._read_mail()
        self._look_for_the_worker()
        if self.finishing:
            return None
        self._follow_config()
        self._see_to_deadlines()
        state = gate.replica.catch_up()
        lease = self._granted(state) or self._offer(state)
        if lease is not None:
            self._withdraw(but=lease.id)
            return lease
        self._get_ready()
        self._rest(POLL_S)
        return None

    def _follow_config(self) -> None:
        """Go by a config file that has changed; the worker itself says so, and what is wrong with it."""
        loaded = self._config.news() if self._config is not None else None
        if loaded is not None:
            self.gate.use(loaded)

    def _get_ready(self) -> None:
        """Fork a spare child while there is nothing else to do."""
        if self._spare is None or not self._spare.lives():
            self._spare = None
            try:
                self._spare = Child.spare(own_group=True, taps=TAPS)
            except CannotRun:
                pass  # the attempt reports it, if it still fails then

    def _granted(self, state: State) -> Lease | None:
        mine = [lease for lease in state.leases.values() if lease.ticket.job and lease.ticket.holder == self.gate.me]
        return min(mine, key=lambda lease: lease.granted_seq, default=None)

    def _offer(self, state: State) -> Lease | None:
        """Offer for the first job of each kind. Returns the first that is admitted."""
        gate = self.gate
        if gate.host in state.draining:
            return None
        self._offers = {ident: spec for ident, spec in self._offers.items() if self._still_offers(state, ident)}
        tried: set[str] = set()
        while (ticket := self._to_offer(gate.state, tried)) is not None:
            tried.add(ticket.id)
            asks = gate.usage.accounts(ticket.spec.models)
            offer = cmd.Offer(ticket.id, gate.me, gate.host, gate.replica.address, asks)
            gate.decide([*gate.commands_before_offer(), offer])
            if self._still_offers(gate.state, ticket.id):
                self._offers[ticket.id] = ticket.spec
            lease = self._granted(gate.state)
            if lease is not None:
                return lease
        gate.questions.ask_if_due()
        return self._granted(gate.state)

    def _to_offer(self, state: State, tried: set[str]) -> Ticket | None:
        """The first job of a kind that we do not offer for yet; another process may take it before us."""
        only = state.tickets.get(self._wants.only)
        heads = state.waiting_jobs.heads(self.gate.now()) if not self._wants.only else [] if only is None else [only]
        kinds = set(self._offers.values())
        if len(kinds) >= _MOST_OFFERS:
            return None
        wanted = (head for head in heads if head.away and head.spec not in kinds and head.id not in tried)
        return next((head for head in wanted if self._wants.takes(head, self.gate.host, self._owners)), None)

    def _still_offers(self, state: State, ident: str) -> bool:
        ticket = state.tickets.get(ident)
        return ticket is not None and ticket.holder == self.gate.me

    def _withdraw(self, but: str = "") -> None:
        """Withdraw all offers; any other job that was admitted meanwhile returns to its place."""
        gate = self.gate
        state = gate.replica.catch_up()
        leases = [lease.id for lease in state.leases.values() if lease.ticket.job and lease.ticket.holder == gate.me]
        commands = [cmd.Withdraw(ident, gate.me) for ident in {*self._offers, *leases} - {but}]
        self._offers = {}
        if commands:
            gate.decide(commands)

    def _is_over(self) -> bool:
        try:
            return job_store.view(self.gate, self._wants.only).state in state_machine.FINAL
        except FleetgateError:
            return True

    # Time and mail.

    def _rest(self, longest_s: float) -> None:
        """Wait for a message, or until it is time to look."""
        until = monotonic() + longest_s
        if self._alarm is not None:
            until = min(until, self._alarm)
        due = self.gate.state.waiting_jobs.next_due()
        if due is not None:
            until = min(until, monotonic() + max(due - self.gate.now(), 1) / 1000)
        files = (self._life, -1 if self._mailbox is None else self._mailbox.fileno())
        fds = [fd for fd in files if fd >= 0]
        select.select(fds, [], [], max(until - monotonic(), 0))

    def _look_for_the_worker(self) -> None:
        """Whether the worker has closed its end of the pipe: it stops, or is gone. Works without a mailbox."""
        if self._life >= 0 and select.select([self._life], [], [], 0)[0]:
            self.finishing = True

    def _read_mail(self) -> None:
        for message in self._mailbox.drain() if self._mailbox is not None else []:
            if message == b"due":
                head = self.gate.log.head()
                if head is not None and head.due is not None:
                    self._alarm = monotonic() + max(head.due - self.gate.log.now(), 0) / 1000
            elif message in (b"finish", b"now"):
                self.finishing = True
                if message == b"now" and self._attempt is not None:
                    self._attempt.wish(HAND_BACK)
            elif message == b"stop" and self._attempt is not None:
                self._attempt.look_for_wishes()

    def _see_to_deadlines(self) -> None:
        """Act on deadlines and look for dead holders now and then, like every waiting process."""
        now, gate = monotonic(), self.gate
        if self._alarm is not None and now >= self._alarm:
            self._alarm = None
            gate.decide([])
        if now < self._next_poll:
            return
        self._next_poll = now + POLL_S
        if gate.turns.take():
            gate.run_checks()
            unattended_ends.see_to_ends(gate)
        gate.act_if_overdue()

    # Running it.

    def run(self, lease: Lease) -> None:
        """Run the job of a lease that is ours, to the end of this attempt."""
        gate = self.gate
        job = job_store.find(gate.log, lease.id)
        if job is None:  # its row is gone, and with it the command
            gate.decide([cmd.Release(lease.id, "local_error", evidence="no such job", holder=gate.me)])
            return
        spare, self._spare = self._spare, None
        self._attempt = Attempt(gate, lease, job, self._say, spare, self._owners)
        try:
            self._attempt.run(None if self._mailbox is None else self._mailbox.fileno(), self._read_mail)
        except NotOurs:
            self._say(f"job {lease.id} is no longer ours")
        finally:
            self._attempt = None
            if spare is not None:
                spare.abandon()  # if it was not used
        gate.maintain()


def _unheard(text: str) -> None:
    """The worker says it."""


def _mailbox(folder: str) -> mailbox.Mailbox | None:
    """A mailbox for messages; without one, polling must do."""
    try:
        place = f"{mailbox.runtime_folder(folder)}/{mailbox.WORKERS}"
        try:
            os.mkdir(place, 0o700)
        except FileExistsError:
            pass
        mailbox.sweep(place)
        return mailbox.Mailbox(place)
    except OSError:
        return None
