"""The clients of a service: they wait for a slot by long-polling, renew their leases, and may vanish (rule H2).

Two clocks judge a client (docs/decisions/0005). This process keeps the short one in memory: the grace time between two
polls of a ticket, and the time that the client named between two renewals of a lease. The long one is in the log,
`renew_by`: it is minutes away, moves rarely, and counts when no service is running. A service that starts takes over
the clients of one that is gone, and restarts the short clock of each.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.deadlines import renewal_counts
from fleetgate.core.entities import Lease, Ticket
from fleetgate.core.errors import FleetgateError, NotFound
from fleetgate.core.model_names import shown
from fleetgate.gate.library.lease_handles import Deferred, NotAdmitted
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.serving.service_gate import ServiceGate

GRACE_S = 15.0
SWEEP_S = 1.0
_TURNS = 3
_MAX_ENDS = 10_000  # requests whose end is remembered

_GONE = "its client did not come back"

Stop = Callable[[], object]
WatchConnection = Callable[
    [Callable[[], None]], Stop
]  # calls a function when a client's connection ends, until stopped


class StillQueued(NamedTuple):
    """The answer to a poll that ended before there was a slot: the ticket is still in the queue."""

    id: str


def not_in_project(ident: str, project: str) -> NotFound:
    """For a client that may know of one project: the same words for a request of another one as for none."""
    return NotFound(f"no ticket or lease {shown(ident)} of the project {project}")


class Gone(FleetgateError):
    """The ticket or lease has ended. `cause`: released, cancelled, expired, dropped, lost, forced, …"""

    def __init__(self, ident: str, cause: str) -> None:
        super().__init__(f"{ident} has ended: {_ENDS.get(cause, cause)}; send a new request, with another id")
        self.cause = cause


class _End(NamedTuple):
    """How a request ended, and its project; "": this process does not know it."""

    cause: str
    project: str


class _Client:
    """One request: in the queue while `asking` is under way; otherwise held, or taken over and not renewed yet."""

    __slots__ = ("asking", "deadline", "listening", "project", "renew_s")

    def __init__(self, project: str, renew_s: float, deadline: float) -> None:
        self.project = project
        self.asking: asyncio.Future[Lease | Deferred] | None = None
        self.deadline = deadline  # loop time: given up then, unless a poll is open
        self.listening = 0
        self.renew_s = renew_s


class ClientRenewals:
    """All requests of clients that this process holds."""

    def __init__(self, gate: ServiceGate, grace_s: float = GRACE_S) -> None:
        self.grace_s = grace_s
        self.listening = 0
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, _Client] = {}
        self._ends: OrderedDict[str, _End] = OrderedDict()  # how requests ended, oldest first
        self._sweeper: asyncio.Task[None] | None = None
        self._polls: set[asyncio.Future[None]] = set()  # each done when its poll is to be answered
        self._stopping = False

    def __repr__(self) -> str:
        return f"<ClientRenewals: {len(self._known)} known, {self.listening} listening>"

    async def start(self) -> None:
        """Take over from services that are gone, and start to check deadlines."""
        await self._take_over()
        self._sweeper = self._loop.create_task(self._sweep_periodically())

    def answer_polls(self) -> None:
        """The service is about to stop: answer all polls now. Their tickets keep their places."""
        self._stopping = True
        for poll in self._polls:
            _end(poll)

    async def stop(self) -> None:
        """Stop checking deadlines; the gate is closed after this."""
        self.answer_polls()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)

    # Requests of clients.

    async def ask(
        self,
        command: cmd.Acquire,
        wait_s: float,
        hung_up: WatchConnection,
        *,
        new: bool,
        only_project: str = "",
    ) -> Lease | Deferred | StillQueued:
        """Get a slot, or a place in the queue. A request with a known id continues where it was, unless it is `new`.

        `hung_up` reports when the client's connection ends. `only_project`: the client may join no request of another
        project, not even one that is being decided; "": any. Raises Gone, NotFound, and the errors of the command.
        """
        client = self._own_client(command.id, only_project)
        if not new and (client is None or client.asking is None):
            lease = await self._held_already(command.id)
            if lease is not None:
                return lease
            client = self._own_client(command.id, only_project)
        if client is None:
            if not command.wait:
                return self._hold(command.id, await self._gate.enter(command))
            deadline = self._loop.time() + self.grace_s
            client = self._known[command.id] = _Client(command.spec.project, command.renew_ms / 1000, deadline)
        if client.asking is None:
            client.asking = self._gate.enter(command)
        return await self._listen(command.id, client, client.asking, wait_s, hung_up)

    async def renew(self, ident: str) -> Lease:
        """Renew a lease: its client is still alive. Raises Gone or NotFound."""
        lease = (await self._gate.read()).leases.get(ident)
        if lease is None and ident not in self._ends:
            lease = await self._gate.adopt_forgotten(ident)
        if lease is None:
            raise self._ended(ident)
        await self._note_alive(lease.ticket)
        return lease

    def __contains__(self, ident: str) -> bool:
        return ident in self._known

    def has_ended(self, ident: str, project: str = "") -> bool:
        """Whether this process knows that the request has ended; with a project, one of that project."""
        end = self._ends.get(ident)
        return end is not None and project in ("", end.project)

    def _own_client(self, ident: str, only_project: str) -> _Client | None:
        """The client of a request that is known here. NotFound where it is, or was, of another project than that."""
        client = self._known.get(ident)
        known = client or self._ends.get(ident)
        if only_project and known is not None and known.project != only_project:
            raise not_in_project(ident, only_project)
        return client

    def forget(self, ident: str, cause: str) -> None:
        """Forget a request that has just ended, but not how."""
        client = self._known.pop(ident, None)
        if client is not None:
            self._remember(ident, cause, client.project)

    def apply(self, event: ev.Event) -> None:
        """Remember how requests end, for clients that come back later."""
        kind = type(event)
        if kind in _ENDINGS:
            ident: str = event.id  # type: ignore[union-attr]
            client = self._known.get(ident)
            if client is not None or kind is not ev.Released:
                cause = event.cause if isinstance(event, ev.Reclaimed) else str(event.__struct_config__.tag)
                self._remember(ident, cause, getattr(event, "project", "") if client is None else client.project)
            if client is not None and client.asking is None:
                del self._known[ident]

    def _remember(self, ident: str, cause: str, project: str) -> None:
        before = self._ends.get(ident)
        self._ends[ident] = _End(cause, project or (before.project if before is not None else ""))
        if len(self._ends) > _MAX_ENDS:
            self._ends.popitem(last=False)

    def _ended(self, ident: str) -> FleetgateError:
        self._known.pop(ident, None)
        end = self._ends.get(ident)
        return Gone(ident, end.cause) if end is not None else NotFound(f"no lease {ident}: it has ended, or never was")

    # Waiting for a slot.

    async def _held_already(self, ident: str) -> Lease | None:
        """The lease of this id, if there is one. A ticket or lease that another service held is taken over."""
        state = await self._gate.read()
        lease = state.leases.get(ident)
        ticket = lease.ticket if lease is not None else state.tickets.get(ident)
        if ticket is None:
            if ident in self._ends:
                self._known.pop(ident, None)
                raise Gone(ident, self._ends[ident].cause)
            return None
        if not ticket.renew_ms:
            raise NotFound(f"{ident} is the id of a process's own request: use another")
        await self._note_alive(ticket)
        if lease is not None and not lease.claimed:
            await self._gate.decide(cmd.Claim(ident))
        return (await self._gate.read()).leases.get(ident)

    async def _note_alive(self, ticket: Ticket) -> None:
        """Record that a client is alive, if that is due, and that this process holds its request."""
        gate = self._gate
        if not ticket.renew_ms:
            raise NotFound(f"{ticket.id} lives as long as its process: there is nothing to renew")
        if not self._is_ours(ticket) or renewal_counts(ticket, gate.now()):
            (decided,) = await gate.decide(cmd.Renew(ticket.id, gate.me, gate.address))
            if decided.error is not None:
                raise self._ended(ticket.id)
        renew_s = ticket.renew_ms / 1000
        client = self._known.get(ticket.id)
        if client is None:
            client = self._known[ticket.id] = _Client(ticket.spec.project, renew_s, 0.0)
        client.deadline = self._loop.time() + renew_s

    async def _listen(
        self,
        ident: str,
        client: _Client,
        asking: asyncio.Future[Lease | Deferred],
        wait_s: float,
        hung_up: WatchConnection,
    ) -> Lease | Deferred | StillQueued:
        client.listening += 1
        self.listening += 1
        try:
            if not asking.done():
                await self._until_done(asking, wait_s, hung_up)
        finally:
            client.listening -= 1
            self.listening -= 1
            client.deadline = self._loop.time() + self.grace_s
        if not asking.done():
            return StillQueued(ident)
        client.asking = None
        try:
            return self._hold(ident, asking.result(), client)
        except NotAdmitted as error:
            self._known.pop(ident, None)
            raise Gone(ident, error.reason.code) from error
        except BaseException:
            self._known.pop(ident, None)
            raise

    async def _until_done(
        self, asking: asyncio.Future[Lease | Deferred], wait_s: float, hung_up: WatchConnection
    ) -> None:
        """Wait until there is an answer, the client has left, the time is up, or the service stops."""
        for _ in range(_TURNS):  # a request that need not wait is committed within these turns of the loop
            await asyncio.sleep(0)
            if asking.done() or self._stopping:
                return
        poll = self._loop.create_future()

        def end(_: object = None) -> None:
            _end(poll)

        asking.add_done_callback(end)
        timer = self._loop.call_later(wait_s, end)
        stop = hung_up(end)
        self._polls.add(poll)
        try:
            await poll
        finally:
            self._polls.discard(poll)
            stop()
            timer.cancel()
            asking.remove_done_callback(end)

    def _hold(self, ident: str, answer: Lease | Deferred, client: _Client | None = None) -> Lease | Deferred:
        if isinstance(answer, Deferred):
            self._known.pop(ident, None)
            return answer
        if client is None:
            ticket = answer.ticket
            client = self._known[ident] = _Client(ticket.spec.project, ticket.renew_ms / 1000, 0.0)
        client.deadline = self._loop.time() + client.renew_s
        return answer

    # Deadlines.

    async def _sweep_periodically(self) -> None:
        outage = self._gate.core.outage
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self._sweep()
                await self._take_over()
            except FleetgateError as error:
                outage.failed("renewals", error)  # no deadline is checked until the store works again
            else:
                outage.worked("renewals")

    async def _sweep(self) -> None:
        """Give up the tickets and leases of clients that are overdue."""
        now = self._loop.time()
        late = [ident for ident, client in self._known.items() if not client.listening and client.deadline < now]
        if not late:
            return
        state = await self._gate.read()
        commands: list[cmd.Reclaim | cmd.Cancel] = []
        clients: list[_Client] = []
        for ident in late:
            client = self._known.get(ident)
            if client is None or client.listening:
                continue
            lease = state.leases.get(ident)
            ticket = lease.ticket if lease is not None else state.tickets.get(ident)
            if ticket is not None and self._is_ours(ticket):  # else another service holds it by now
                if lease is not None:
                    commands.append(cmd.Reclaim(ident, "fleetgate serve", "unrenewed"))
                else:
                    commands.append(cmd.Cancel(ident, _GONE))
                clients.append(client)
            del self._known[ident]
        if commands:
            decided = await self._gate.decide(*commands)
            for command, client, one in zip(commands, clients, decided, strict=True):
                if one.error is None:
                    cause = "unrenewed" if isinstance(command, cmd.Reclaim) else "cancelled"
                    self._remember(command.id, cause, client.project)

    async def _take_over(self) -> None:
        """Take over the clients of services that are gone, or that this process lost; each gets its full time again."""
        gate = self._gate
        state = await gate.read()
        tickets = [lease.ticket for lease in state.leases.values()]
        for own in state.ticket_index.processes.values():
            tickets += [state.tickets[ident] for ident in own.keys() - self._known.keys()]
        now = self._loop.time()
        commands = []
        for ticket in tickets:
            if not ticket.renew_ms or ticket.id in self._known:
                continue
            ours = self._is_ours(ticket)
            if not ours and process_identity.is_gone(ticket.holder) is not True:
                continue
            renew_s = ticket.renew_ms / 1000
            deadline = now + (renew_s if ticket.id in state.leases else self.grace_s)
            self._known[ticket.id] = _Client(ticket.spec.project, renew_s, deadline)
            if not ours:
                commands.append(cmd.Renew(ticket.id, gate.me, gate.address))
        if commands:
            await gate.decide(*commands)

    def _is_ours(self, ticket: Ticket) -> bool:
        return (ticket.holder, ticket.wake) == (self._gate.me, self._gate.address)


def _end(poll: asyncio.Future[None]) -> None:
    if not poll.done():
        poll.set_result(None)


_ENDINGS = frozenset((ev.Released, ev.Reclaimed, ev.Cancelled, ev.Expired, ev.Dropped))
_ENDS = {
    "released": "it was released",
    "cancelled": "its ticket was taken out of the queue",
    "expired": "its ticket waited in the queue for too long",
    "dropped": "its client did not come back",
    "lost": "its process is gone",
    "forced": "it was released by force",
    "overstayed": "it was held longer than its pool allows",
    "unrenewed": "it was not renewed in time",
}
