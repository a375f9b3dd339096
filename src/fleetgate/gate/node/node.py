"""The node: the gate of a host, which decides for its processes over a Unix socket.

It has what each of them would need for itself: the store's connection, a replica, the group commit, the deadlines, and
the checks for dead holders and foreign agents. A waiting process keeps nothing but its mailbox.

The node owns no truth: its decisions and all waiting tickets are in the log. When it dies, another node takes its
place, or the processes go to the store directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Lease, Ticket
from fleetgate.core.errors import FleetgateError
from fleetgate.core.queue.positions import QueueView, TicketView
from fleetgate.core.state.state import State
from fleetgate.core.views.budget_views import budgets_stopping
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.node import protocol
from fleetgate.gate.providers.credentials import marked_accounts
from fleetgate.gate.replica.lost_log_recovery import adoption, is_ours
from fleetgate.gate.replica.replica import Decided
from fleetgate.gate.replica.side_rows import TICKET_NEWS
from fleetgate.gate.slots.direct_gate import (
    backed_off_until,
    has_open_calls,
    has_other_candidate,
    has_stopping_budget,
    is_probe,
)
from fleetgate.gate.slots.slot_gate import unapplied_caps, why_left
from fleetgate.gate.wakeup import mailbox
from fleetgate.gate.wakeup.other_hosts import ALL, mark, message_of

T = TypeVar("T")

LOOK_S = 1.0
_OTHER_HOSTS_EVERY = 5  # how often the checks run for other hosts, too
_VIEWS_S = 0.25  # maximum age of the positions that are shown

_encode = msgspec.json.Encoder().encode


class Node:
    """Answers the processes of its host from one core, and looks after the host."""

    def __init__(self, core: GateCore) -> None:
        core.attach_node(self)
        self._core = core
        self.folder = core.folder  # the state folder
        self.is_shared = core.log.is_shared  # many machines share the store
        self.site = process_identity.this_site()
        self._entering: dict[str, asyncio.Future[Decided]] = {}
        self._views: dict[str, TicketView] = {}
        self._views_until = 0.0
        self._addresses: dict[str, str] = {}  # waiting processes of this host, by their marks
        self._ours: dict[str, Lease] = {}  # of this host, as they were last seen

    # Questions over the socket.

    async def answer(self, call: protocol.Call) -> protocol.Answer:
        """Answer a question. Raises the client's mistake, or the problem of the store."""
        answer = protocol.Answer()
        if isinstance(call, protocol.Enter):
            await self._enter(call, answer)
        elif isinstance(call, protocol.Decide):
            await self._decide_for(call, answer)
        elif isinstance(call, protocol.Look):
            if not (call.granted and await self._claim_for(call.id, answer)):
                await self._look_for(call.id, answer)
        elif isinstance(call, protocol.Side):
            answer.value = await self._value(call)
        elif isinstance(call, protocol.About):
            await self._tell_about(call, answer)
        if not (isinstance(call, protocol.About) and call.beat):
            answer.now = self._core.now()
        return answer

    async def _enter(self, call: protocol.Enter, answer: protocol.Answer) -> None:
        """Like DirectGate.acquire: it first looks for dead holders and other changes of the host."""
        state = await self._core.read_state()
        if not call.told:
            newer = call.file_modified > state.file_modified
            answer.unapplied = unapplied_caps(state, call.rules, call.budgets)
            answer.wants_file = bool(call.file_digest) and call.file_digest != state.file_digest and newer
            answer.accounts = marked_accounts(state) if state.backoffs else []
            if answer.wants_file or answer.accounts:
                return
        command = call.command
        under_way = self._entering.get(command.id)
        if under_way is None:
            under_way = self._begin_to_enter(command, list(call.first))
        decided = await asyncio.shield(under_way)
        if decided.error is not None:
            raise decided.error
        for event in decided.events:
            if isinstance(event, ev.Deferred):
                answer.reason = event.reason
                return
        answer.lease = (await self._core.read_state()).leases.get(command.id)

    def _begin_to_enter(self, command: cmd.Acquire, first: list[cmd.Command]) -> asyncio.Future[Decided]:
        if command.wake:
            self._addresses[mark(self._core.host, command.wake)] = command.wake
        for each in self._core.acquisition.commands_before(command, first):
            self._core.commits.put(each)
        future: asyncio.Future[Decided] = self._core.loop.create_future()
        self._entering[command.id] = future
        future.add_done_callback(lambda _: self._entering.pop(command.id, None))
        self._core.commits.put(command, future)
        return future

    async def _decide_for(self, call: protocol.Decide, answer: protocol.Answer) -> None:
        if not call.wait and self._core.commits.busy:
            answer.busy = True
            return
        if call.side:
            decided = await self._alone(
                lambda: self._core.replica.decide(call.commands, durable=call.durable, side=call.side)
            )
        else:
            futures = [self._post_any(command, call.durable) for command in call.commands]
            decided = [await future for future in futures]
        for one in decided:
            error = None if one.error is None else protocol.wrong(one.error)
            answer.outcomes.append(protocol.CommandResult(msgspec.Raw(_encode(one.events)), error))
        ident = getattr(call.commands[-1], "id", "") if call.commands else ""
        answer.lease = self._core.replica.state.leases.get(ident) if ident and not self._core.commits.busy else None

    def _post_any(self, command: cmd.Command, durable: bool) -> asyncio.Future[Decided]:
        if type(command) is cmd.Acquire:
            return self._entering.get(command.id) or self._begin_to_enter(command, [])
        return self._core.commits.post(command, durable=durable)

    async def _claim_for(self, ident: str, answer: protocol.Answer) -> bool:
        """Claim the grant of a process that was woken for it; whether it has the lease now."""
        decided = await self._core.commits.post(cmd.Claim(ident))
        lease = self._ours.get(ident)
        if lease is None or not any(type(event) is ev.Claimed for event in decided.events):
            return False
        answer.lease = lease
        return True

    async def _look_for(self, ident: str, answer: protocol.Answer) -> None:
        state = await self._core.read_state()
        if self._core.replica.due is not None and self._core.replica.due <= self._core.log.now():
            await self._core.commits.post(cmd.Tick())
        lease, ticket = state.leases.get(ident), state.tickets.get(ident)
        if (lease is not None and not lease.claimed) or (ticket is not None and ticket.away and not ticket.job):
            await self._core.commits.post(cmd.Claim(ident))
            state = await self._core.read_state()
            lease, ticket = state.leases.get(ident), state.tickets.get(ident)
        if lease is not None:
            answer.lease = lease
        elif ticket is not None:
            answer.view = self._view(state, ident)
            answer.accounts = marked_accounts(state) if state.backoffs else []
            queue = state.queue(ticket.spec)
            answer.hopeless = bool(state.backoffs) and self._core.replica.engine.needs_a_person(queue, self._core.now())
        else:
            told = await self._core.read_log(lambda log: log.side_value(TICKET_NEWS, ident))
            answer.left = why_left(told)

    def _view(self, state: State, ident: str) -> TicketView | None:
        """The position of a ticket. All positions are computed together: one costs as much as a thousand."""
        began = self._core.loop.time()
        if ident not in self._views or began >= self._views_until:
            now = self._core.now()
            self._views = {view.ticket.id: view for view in QueueView(state, now).page()}
            ended = self._core.loop.time()
            self._views_until = ended + max(_VIEWS_S, 20 * (ended - began))
        return self._views.get(ident)

    async def _value(self, call: protocol.Side) -> bytes | None:
        found = await self._core.read_log(lambda log: log.side_value(call.table, call.key))
        first = call.first
        if found is None and first is not None:
            return await self._alone(lambda: self._core.replica.set_side_value_once(call.table, call.key, first))
        return found

    async def _tell_about(self, call: protocol.About, answer: protocol.Answer) -> None:
        if call.beat:
            answer.silent_ms = self._core.beats.silent_ms() if self.is_shared else 0
            return  # the store is not asked: it may be away
        state = await self._core.read_state()
        if call.lease:
            lease = answer.lease = state.leases.get(call.lease)
            answer.probe = is_probe(state, call.lease)
            answer.has_calls = has_open_calls(state, call.lease)
            answer.has_stops = has_stopping_budget(state, call.lease)
            answer.stopping = budgets_stopping(state, call.lease, self._core.now())
            answer.stop_by = lease.stop_by if lease is not None else ""
            answer.other = lease is not None and has_other_candidate(state, lease)
        if call.model:
            answer.until = backed_off_until(state, call.model)
        if call.questions:
            wanted = self._core.replica.engine.questions(self._core.now())
            answer.questions = [(pool.kind, pool.id, pool.account) for pool in wanted]

    async def _alone(self, work: Callable[[], T]) -> T:
        """Run something on the log in a thread, outside any shared transaction."""
        while self._core.commits.busy:
            await self._core.read_state()
        future: asyncio.Future[T] = self._core.loop.create_future()

        def done(ended: asyncio.Future[object]) -> None:
            error = ended.exception()
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(ended.result())  # type: ignore[arg-type]
            if error is None:
                self._core.after_commit()

        self._core.commits.run_in_thread(work, done)
        return await future

    # Work for its host that no process asks for.

    def serves_anybody(self) -> bool:
        """Whether this host has any ticket or lease."""
        if self._core.commits.busy or self._core.commits.batch or self._core.replica.loaded is None:
            return any(map(is_ours, self._ours.values()))  # as far as is known: the store may be away
        state = self._core.replica.state
        if any(process_identity.site_of(lease.lives_with) == self.site for lease in state.leases.values()):
            return True
        return any(process_identity.site_of(process) == self.site for process in state.ticket_index.processes)

    def on_commit(self, seen: Sequence[ev.Event], made: Sequence[ev.Event]) -> None:
        """Count agents again that were declared lost while this host was cut off."""
        core = self._core
        for event in (*seen, *made):
            if type(event) is ev.Granted or type(event) is ev.Claimed:
                lease = core.replica.state.leases.get(event.id)
                if lease is not None:
                    self._note(lease)
        for event in seen:
            if type(event) is ev.Reclaimed and event.cause == "lost":
                lost = self._ours.get(event.id)
                if lost is not None and is_ours(lost) and not core.closed:
                    core.commits.put(adoption(lost, core.now(), "cut_off"))

    def _note(self, lease: Lease) -> None:
        process = lease.lives_with
        if process and (process == self._core.me or process_identity.site_of(process) == self.site):
            self._ours[lease.id] = replace(lease)

    def _note_ours(self) -> None:
        state = self._core.replica.state
        leases = state.leases.values()
        self._ours = {}
        for lease in leases:
            self._note(lease)
        held = [lease.ticket for lease in leases]
        here = [
            ids
            for process, ids in state.ticket_index.processes.items()
            if process_identity.site_of(process) == self.site
        ]
        waiting = [state.tickets[ident] for ids in here for ident in ids]
        local = [
            ticket
            for ticket in (*waiting, *held)
            if ticket.wake and process_identity.site_of(ticket.holder) == self.site
        ]
        addresses = [ticket.wake for ticket in local] + mailbox.worker_processes(self._core.folder)
        self._addresses = {mark(self._core.host, address): address for address in addresses}

    def on_notifications(self, notices: Sequence[str]) -> None:
        """Wake the processes of this host for which other hosts have decided something."""
        for notice in notices:
            if notice == ALL:
                for address in self._addresses.values():
                    mailbox.send(address, b"look")
            for word in notice.split():
                if word[1:] in self._addresses:
                    mailbox.send(self._addresses[word[1:]], message_of(word))

    def acts_for(self, ticket: Ticket) -> bool:
        """Whether a process of this host acts first on a deadline; otherwise this node is the backup."""
        return process_identity.site_of(ticket.holder) == self.site

    async def look_after_host(self) -> None:
        """Run the checks once a second while this host has tickets or leases; less often while only other hosts have.

        A host that is gone has no process left that could report it, so the others do.
        """
        looks = 0
        while True:
            await asyncio.sleep(LOOK_S)
            looks += 1
            try:
                state = await self._core.read_state()
                self._note_ours()
                others = looks % _OTHER_HOSTS_EVERY == 0 and bool(state.leases or state.tickets)
                if others or self.serves_anybody():
                    self._core.background.run_checks()
            except (FleetgateError, OSError) as error:
                self._core.outage.failed("node", error)  # requests get that error
            else:
                self._core.outage.worked("node")
