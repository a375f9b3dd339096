"""The gate of `fleetgate run` and the other commands: one process, no asyncio, with the store open.

`DirectGate.decide` is the whole interface for changes: commands in, events out. The log's connection may be one of the
host's node (gate/node/pooled_connection.py); that makes no difference here. A process that only requests a slot lets
the node decide instead (gate/slots/node_gate.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic, sleep, time_ns
from typing import TYPE_CHECKING

import msgspec

from fleetgate.config.file import Loaded
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Lease, Reason
from fleetgate.core.errors import FleetgateError
from fleetgate.core.model_names import parse_model
from fleetgate.core.pools.backoff import concerns
from fleetgate.core.state.state import State
from fleetgate.core.views.budget_views import budgets_stopping
from fleetgate.core.views.pool_and_lease_views import TicketView, ticket_view
from fleetgate.gate.change_author import sign
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.liveness.host_beats import HostBeats
from fleetgate.gate.liveness.host_observer import HostObserver, first_look
from fleetgate.gate.liveness.turns import Turns
from fleetgate.gate.observation import commands_first, would_be_refused
from fleetgate.gate.providers.credentials import Credentials
from fleetgate.gate.providers.usage_questions import UsageQuestions, UsageSources, Wanted
from fleetgate.gate.replica.lost_log_recovery import adoption, is_ours
from fleetgate.gate.replica.replica import Decided, Replica, Side
from fleetgate.gate.replica.side_rows import TICKET_NEWS
from fleetgate.gate.slots.base_gate import BaseSlotGate
from fleetgate.gate.slots.slot_gate import (
    UNUSED,
    QueuedTicket,
    StopRequest,
    TicketWait,
    load_file,
    unapplied_caps,
    with_own_host_cap,
)
from fleetgate.gate.wakeup import mailbox as wakeup_mailbox
from fleetgate.gate.wakeup.other_hosts import Wake
from fleetgate.log.protocol import Log, LogReplaced, StoreMoved

if TYPE_CHECKING:
    from fleetgate.gate.liveness.orphan_stops import OrphanStops

_OVERDUE_MS = 300
_SOON_S = 0.5  # how long to try for the lock if the work is not worth a longer wait
_AGAIN_S = 0.01
_UPKEEP_S = 10.0


class DirectGate(BaseSlotGate):
    """Decisions on a store, by this process."""

    def __init__(self, log: Log, loaded: Loaded | None = None, folder: str = "") -> None:
        self.log = log
        self.replica = Replica(log, process_identity.this_process(), self._wake)
        super().__init__(loaded, folder, self.replica)
        self.observer = HostObserver(self.settings, folder)
        self.questions = UsageQuestions(self, self.usage, self._questions)
        self.beats = HostBeats(log, folder)
        mark = process_identity.site_mark(self.beats.site)  # processes in another container see other processes
        self.turns = Turns(f"{folder}/looked.{mark}" if folder else "")
        self._orphan_stops: OrphanStops | None = None
        self._unreachable: list[str] = []
        self._upkeep_at = 0.0
        self._news: bytes | None = None  # about the lease of the agent that is running

    def use(self, loaded: Loaded) -> None:
        """Go by a config file that was read again. Its caps are in force with the next decision."""
        self.loaded, self.settings = loaded, loaded.settings
        self.credentials = Credentials(self.settings, self.replica)
        self.usage = UsageSources(self.settings)
        self.observer = HostObserver(self.settings, self.folder)
        self.questions = UsageQuestions(self, self.usage, self._questions)

    def __repr__(self) -> str:
        return f"<DirectGate on {self.log!r}>"

    @property
    def state(self) -> State:
        return self.replica.state

    @property
    def address(self) -> str:
        """Where this process is woken."""
        return self.replica.address

    @address.setter
    def address(self, address: str) -> None:
        self.replica.address = address

    def lock_owner(self) -> int | None:
        return self.log.lock_owner()

    def now(self) -> int:
        """The log's time."""
        return max(self.log.now(), self.state.at)

    def wall_offset_ms(self) -> int:
        """What to add to a log time to get wall time, for display."""
        return time_ns() // 1_000_000 - self.log.now()

    def decide(self, commands: Sequence[cmd.Command], *, durable: bool = False, side: Side = ()) -> list[Decided]:
        """Run commands in one transaction; the config file's caps come first if they are new.

        `side` is written beside the log in it, whatever the results are, unless it is a function of the results.
        """
        prelude = self.news()
        skipped = len(prelude)
        writes = (lambda decided: side(decided[skipped:])) if callable(side) else side
        sign([*prelude, *commands], self.me)
        with self.lock_wait():
            decided = self.replica.decide([*prelude, *commands], durable=durable, side=writes)
        self._reclaim_from_unreachable()
        return decided[len(prelude) :]

    def try_decide(self, commands: Sequence[cmd.Command]) -> bool:
        """The same without waiting: False if the lock is held."""
        return self.replica.try_decide(commands) is not None

    def decide_soon(self, commands: Sequence[cmd.Command]) -> bool:
        """The same for commands that are not worth a long wait: False if the lock was not free soon."""
        return self.decide_within(_SOON_S, commands) is not None

    def decide_within(
        self, patience_s: float, commands: Sequence[cmd.Command], *, durable: bool = False
    ) -> list[Decided] | None:
        """The results; None when the lock could not be taken in that time, and nothing was decided."""
        deadline = monotonic() + patience_s
        while (decided := self.replica.try_decide(commands, durable=durable)) is None:
            if monotonic() > deadline:
                return None
            sleep(_AGAIN_S)
        self._reclaim_from_unreachable()
        return decided

    def one(self, command: cmd.Command, *, durable: bool = False) -> list[ev.Event]:
        """Run one command; raises its error."""
        (decided,) = self.decide([command], durable=durable)
        if decided.error is not None:
            raise decided.error
        return decided.events

    def read(self) -> State:
        """The current state, to read; it includes the config file's caps."""
        state = self.replica.catch_up()
        if self.news():
            self.decide([])
        return state if not self.news() else self.replica.state

    def news(self) -> list[cmd.Command]:
        """The config file, if the gate does not have it yet; a shared gate takes no machine's file.

        With it, or if it is set otherwise, the value of `host = "auto"` on this host.
        """
        loaded, state = self.loaded, self.replica.state
        if loaded is None or self.log.is_shared:
            return [*first_look(self.settings, (), state, self.host)]
        if loaded.digest == state.file_digest or loaded.mtime_ms <= state.file_modified:
            return [*first_look(self.settings, (), state, self.host)]
        return [load_file(loaded), *first_look(self.settings, loaded.settings.rules, state, self.host)]

    def caps_not_in_force(self) -> list[str]:
        """The selectors of the config file's caps, and its budgets, that are not in force in a shared gate."""
        if self.loaded is None or not self.log.is_shared:
            return []
        return unapplied_caps(self.replica.state, self.settings.rules, self.settings.budgets)

    # Requesting a slot.

    def acquire(self, command: cmd.Acquire) -> Lease | Reason | None:
        """Request once: the lease, the reason for a refusal, or None if the ticket is waiting now.

        Holders of the same pools are checked first: dead processes hold no slots.
        """
        if self.log.is_shared:
            command = msgspec.structs.replace(command, spec=with_own_host_cap(command.spec, self.loaded))
        decided = self.decide([*self.commands_before(command), command])[-1]
        self.unapplied = self.caps_not_in_force()
        if decided.error is not None:
            raise decided.error
        for event in decided.events:
            if isinstance(event, ev.Deferred):
                return event.reason
        return self.state.leases.get(command.id)

    def commands_before(self, command: cmd.Acquire) -> list[cmd.Command]:
        """The commands before a request, in the same transaction (gate/observation.py)."""
        return commands_first(
            self.replica.catch_up,
            self.host,
            news=self.credentials.news(self.replica.catch_up()),
            observer=self.observer if command.spec.kind == "agents" else None,
            beats=self.beats,
            is_refused=would_be_refused(self.replica.engine, command, self.now()),
        )

    def commands_before_offer(self) -> list[cmd.Command]:
        """The same for a worker that offers to run a job: it looks at foreign agents only."""
        return commands_first(self.replica.catch_up, self.host, observer=self.observer)

    def observations(self, *, dead: bool = True) -> list[cmd.Command]:
        """The same without a request: everything that has changed; with `dead`, also the holders that have ended."""
        news = self.credentials.news(self.replica.catch_up())
        beats = self.beats if dead else None
        return commands_first(self.replica.catch_up, self.host, news=news, observer=self.observer, beats=beats)

    def waiter(self, ticket: QueuedTicket) -> TicketWait:
        from fleetgate.gate.slots.waiter import Waiter

        return Waiter(self, ticket)

    # Looking.

    def lease(self, ident: str) -> Lease | None:
        return self.state.leases.get(ident)

    def view(self, ident: str) -> TicketView | None:
        return ticket_view(self.replica.catch_up(), ident, self.now())

    def is_hopeless(self, view: TicketView) -> bool:
        return self.replica.engine.needs_a_person(self.state.queue(view.ticket.spec), self.now())

    def backed_off_until(self, model: str) -> int:
        return backed_off_until(self.state, model)

    def has_other_candidate(self, lease: Lease) -> bool:
        return has_other_candidate(self.state, lease)

    def cap_selectors(self) -> list[str]:
        return [selector for kind, selector in self.state.rules.caps if kind == "agents"]

    def is_probe(self, ident: str) -> bool:
        return is_probe(self.state, ident)

    def has_open_calls(self, ident: str) -> bool:
        return has_open_calls(self.replica.catch_up(), ident)

    def side_value(self, table: str, key: str) -> bytes | None:
        return self.log.side_value(table, key)

    def act_if_overdue(self) -> None:
        """Act on a deadline that has passed, if no other process did and there is no node."""
        head = None if self.log.upkept_by_node else self.log.head()
        if head is not None and head.due is not None and self.log.now() - head.due > _OVERDUE_MS:
            self.decide([])

    def run_checks(self) -> None:
        """The work of one waiting process every second (`turns`): beat, observe what has changed, stop orphans."""
        self.beats.beat_if_due(self.replica.catch_up())
        commands = self.observations()
        if commands:
            self.decide(commands)
        self.orphan_stops.step(self.state.leases.values())
        self.questions.ask_if_due()
        self.replica.announce_due()

    @property
    def orphan_stops(self) -> OrphanStops:
        """What ends agents of this host that have no runner; made when it is needed first."""
        if self._orphan_stops is None:
            from fleetgate.gate.liveness.orphan_stops import OrphanStops

            self._orphan_stops = OrphanStops()
        return self._orphan_stops

    def _questions(self) -> list[Wanted]:
        return [(pool.kind, pool.id, pool.account) for pool in self.replica.engine.questions(self.now())]

    def leave(self, ident: str, outcome: str = "ok") -> None:
        """Give up whatever an id stands for by now, a place in the queue or a lease; for a process that is about to
        end.

        If another process keeps the lock, this waits only for what would outlive this process: the rest is reclaimed.
        """
        state = self.replica.catch_up()
        lease = state.leases.get(ident)
        if lease is not None and lease.claimed:
            release = [cmd.Release(ident, outcome, usage=UNUSED)]
            if lease.lives_with != self.me:
                self.decide(release)
            else:
                self.decide_soon(release)
        elif lease is not None or ident in state.tickets:
            self.decide_soon([cmd.Cancel(ident)])

    # Waking others.

    def _wake(self, message: Wake) -> None:
        if wakeup_mailbox.send(message.address, message.message) is False:
            self._unreachable.append(message.holder)

    def _reclaim_from_unreachable(self) -> None:
        """A wake-up reached no process: if its receiver is gone, its grant goes to the next ticket at once."""
        while self._unreachable:
            gone = tuple(sorted(holder for holder in set(self._unreachable) if process_identity.is_gone(holder)))
            self._unreachable.clear()
            if gone:
                self.replica.decide([cmd.Lost(gone)])

    def tick(self, lease: Lease) -> None:
        """Check, now and then while an agent is running, that its lease still exists."""
        try:
            if self._may_be_forgotten(lease):
                state = self.replica.catch_up()
                if lease.id not in state.leases and is_ours(lease):
                    self._claim_again(lease)
                elif self.replica.recovery.wanted:
                    self.replica.try_decide([])
            self.beats.beat_if_due(self.state)
            if self.settings.on_cutoff == "end" and self.log.is_shared:
                self.beats.hear()
        except StoreMoved:
            raise  # the owner of this gate may follow it
        except (FleetgateError, LogReplaced, OSError):
            return
        if monotonic() > self._upkeep_at:
            self._upkeep_at = monotonic() + _UPKEEP_S
            self.maintain()

    def stop_request(self, lease: Lease, *, told: bool = False) -> StopRequest | None:
        if self._news != b"stop" and not told:
            return None
        try:
            state = self.replica.catch_up()
            held = state.leases.get(lease.id)
            if held is not None and held.stop_by:
                return StopRequest(by=held.stop_by)
            budget = budgets_stopping(state, lease.id, self.now())
        except (FleetgateError, LogReplaced, OSError):
            return None  # the next time
        return StopRequest(budget=budget) if budget else None

    def silent_ms(self) -> int:
        return self.beats.silent_ms() if self.log.is_shared else 0

    def _may_be_forgotten(self, lease: Lease) -> bool:
        """Whether the lease may be lost, or the log replaced. Reads two rows, not all that was decided since."""
        self._news = self.log.side_value(TICKET_NEWS, lease.id)
        if self._news == b"lost":
            return True
        try:
            self.log.read(self.replica.position, 1)
        except LogReplaced:
            return True
        return self.replica.recovery.wanted

    def _claim_again(self, lease: Lease) -> None:
        """Count a lease again that was not released and whose agent is running, unless a person took it back."""
        why = "log_lost"
        if not self.replica.recovery.wanted:
            taken = [
                event for _, _, event in self.log.history(lease.granted_seq) if getattr(event, "id", "") == lease.id
            ]
            if taken and not (isinstance(taken[-1], ev.Reclaimed) and taken[-1].cause == "lost"):
                return
            why = "cut_off" if taken else why
        self.replica.try_decide([adoption(lease, self.now(), why)])

    def maintain(self) -> None:
        """Upkeep of the store, while nothing waits for this process. After an error, the next process does it."""
        if self.log.upkept_by_node:
            return
        try:
            settings = self.settings
            written = self.replica.maintain(settings.keep_ms, settings.keep_bytes, settings.usage_keep_ms)
            if written and self.folder:
                wakeup_mailbox.sweep(wakeup_mailbox.runtime_folder(self.folder))
                self._sweep_sessions()
        except (FleetgateError, LogReplaced, OSError):
            return

    def _sweep_sessions(self) -> None:
        from fleetgate.gate import agent_sessions

        if side := agent_sessions.outdated(self.log):
            self.replica.decide([], side=side)

    def close(self) -> None:
        self.log.close()


def backed_off_until(state: State, model: str) -> int:
    """When the last backoff that concerns a model ends; 0: there is none."""
    name = parse_model(model)
    return max((each.until for each in state.backoffs.values() if concerns(each.key, name)), default=0)


def has_other_candidate(state: State, lease: Lease) -> bool:
    """Whether another model than the lease's may be used now."""
    queue = state.queue(lease.ticket.spec)
    usable = state.usable_now(queue, state.at)
    if queue.has_sets:
        return any(each.model != lease.model and not each.is_paused(state.at) for each in usable)
    if not usable:
        return False
    taken = usable[0] if lease.ticket.spec.any_candidate else usable[-1]
    return taken.model != lease.model and not taken.is_paused(state.at)


def is_probe(state: State, ident: str) -> bool:
    """Whether a lease was granted to find out if a backoff is over."""
    return any(backoff.probing == ident for backoff in state.backoffs.values())


def has_open_calls(state: State, ident: str) -> bool:
    """Whether a model call of this run waits in the queue, or is in flight."""
    waits = any(ticket.client == ident for ticket in state.tickets.values())
    return waits or any(lease.ticket.client == ident for lease in state.leases.values())


def has_stopping_budget(state: State, ident: str) -> bool:
    """Whether a budget of this lease stops agents when it is used up (rule V7)."""
    candidate = state.lease_candidates.get(ident)
    return candidate is not None and any(budget.rule.when_empty == "stop" for budget in candidate.budgets)
