"""The wait in the queue with the store open: woken by a datagram, with a slow poll as a fallback.

- A grant comes as a datagram. A poll once a second, which reads one row, finds what a lost datagram did not bring.
- A deadline (a cooldown ends, a ticket expires) is acted on by the process that is told to, the head of the queue. The
  others check a little later whether that has happened, so that they do not all act at once.
- Where a provider reports its usage, the process that has the key and is told to asks it, in a thread
  (gate/providers/usage_questions.py).
- Once a second, one of the waiting processes looks for dead holders and foreign agents (gate/liveness/turns.py).
- A process at position p looks for its own position every p seconds: a thousand of them together do so only a few times
  a second.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease
from fleetgate.core.views.pool_and_lease_views import ticket_view
from fleetgate.gate.replica.side_rows import TICKET_NEWS
from fleetgate.gate.slots.base_waiter import BaseWaiter
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.gate.slots.slot_gate import Left, QueuedTicket, why_left
from fleetgate.gate.wakeup import other_hosts
from fleetgate.log.protocol import Listener

POLL_S = 1.0
_SLOWEST_LOOK_S = 30.0
_BACKUP_MS = 300  # a deadline that is overdue by this much is acted on by any process that sees it


class Waiter(BaseWaiter):
    """One ticket of this process, on a store that it has open itself."""

    def __init__(self, gate: DirectGate, ticket: QueuedTicket) -> None:
        super().__init__(ticket)
        self._gate = gate
        self._listener: Listener | None = None
        self._mark = ""
        self._position = 1
        self._alarm: float | None = None  # when to act on a deadline
        self._next_poll = 0.0

    def wait(self, until: float | None, wakeup_fd: int, stopped: Callable[[], bool]) -> Lease | Left | None:
        """The same; on a shared log also woken by processes on other machines."""
        shared = self._gate.replica.shared
        if shared is None or self._mailbox is None:
            return super().wait(until, wakeup_fd, stopped)
        self._mark = other_hosts.mark(self._gate.host, self._mailbox.address)
        self._listener = shared.listen()
        try:
            return super().wait(until, wakeup_fd, stopped)
        finally:
            self._listener.close()
            self._listener = None

    def _moments(self) -> list[float]:
        moments = [self._next_poll, self._next_look]
        return moments if self._alarm is None else [*moments, self._alarm]

    def _descriptors(self) -> list[int]:
        return [each.fileno() for each in (self._mailbox, self._listener) if each is not None]

    def _step(self) -> Lease | Left | None:
        messages = self._mailbox.drain() if self._mailbox is not None else []
        if self._listener is not None:
            messages += other_hosts.heard(self._listener.drain(), self._mark)
        if b"due" in messages:
            self._arm()
        now = monotonic()
        told = any(message != b"due" for message in messages)
        if self._alarm is not None and now >= self._alarm:
            self._alarm = None
            self._gate.decide([])
            told = True
        if not told and now >= self._next_poll:
            self._next_poll = now + POLL_S
            told = self._poll()
        if not told and now >= self._next_look:
            self._look()
            told = True
        return self._settled(b"granted" in messages) if told else None

    def _settled(self, granted: bool = False) -> Lease | Left | None:
        """The lease, or why the ticket left, once decided. A grant is claimed here, at once after its datagram."""
        state = self._gate.state if granted else self._gate.replica.catch_up()
        lease = state.leases.get(self._id)
        ticket = state.tickets.get(self._id)
        if granted or (lease is not None and not lease.claimed) or (ticket is not None and ticket.away):
            self._gate.decide([cmd.Claim(self._id)])  # or, if we were passed over: we are here, try us again
            lease, ticket = self._gate.state.leases.get(self._id), self._gate.state.tickets.get(self._id)
        if lease is not None:
            return lease
        if self._gate.questions.ask_if_due():
            return self._settled()
        self._arm_from_state()
        return None if ticket is not None else Left(self._why())

    def _why(self) -> str:
        told = self._gate.log.side_value(TICKET_NEWS, self._id)
        if told is not None:
            self._gate.replica.forget_news([self._id])
        return why_left(told)

    def _poll(self) -> bool:
        """Read one row: is there news for this ticket, is it our turn to run the checks, is a deadline overdue?"""
        if self._gate.log.side_value(TICKET_NEWS, self._id) is not None:
            return True
        if self._gate.turns.take():
            self._gate.run_checks()
            return True
        head = self._gate.log.head()
        if (head.commit if head is not None else 0) < self._gate.replica.position.commit:
            return True  # it is another log
        if head is None or head.due is None:
            return False
        late = self._gate.log.now() - head.due
        if late < _BACKUP_MS + 50 * min(self._position, 20):
            return False
        self._gate.decide([])
        return True

    def _look(self) -> None:
        """Find our position in the queue."""
        self._next_look = monotonic() + POLL_S  # also when the store fails
        view = ticket_view(self._gate.replica.catch_up(), self._id, self._gate.now())
        if view is not None:
            self._position = view.position
            self._on_view(view)
        self._next_look = monotonic() + min(max(POLL_S, float(self._position)), _SLOWEST_LOOK_S)

    def _arm(self) -> None:
        head = self._gate.log.head()
        if head is not None and head.due is not None:
            self._alarm = monotonic() + max(head.due - self._gate.log.now(), 0) / 1000

    def _arm_from_state(self) -> None:
        """Set the alarm if this process decided last and is first to act: no other process will wake it."""
        first = self._gate.replica.engine.first_to_act()
        if first is not None and first.id == self._id:
            self._arm()
