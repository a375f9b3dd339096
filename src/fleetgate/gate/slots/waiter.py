"""Waiting in the queue without asyncio: a socket to be woken through, a slow poll behind it, deadlines without
stampede.

- A grant comes as a datagram. The backstop poll, once a second, reads one row.
- A deadline (a cooldown ends, a ticket expires) is armed by whoever is told to, the head of the queue; the others look
  a little later whether somebody has acted.
- Where the provider is asked for its usage, whoever has the key and is told to asks, in a thread
  (gate/providers/usage_questions.py).
- Processes gone and foreign agents are looked for once a second, by whoever finds that nobody has.
- Whoever is at position p looks for its own position every p seconds: a thousand waiters together only a few times a
  second.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease
from fleetgate.core.views.pool_and_lease_views import TicketView, ticket_view
from fleetgate.gate.replica.replica import TOLD
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.gate.slots.slot_gate import Left, why_left
from fleetgate.gate.wakeup import other_hosts
from fleetgate.gate.wakeup.mailbox import Mailbox
from fleetgate.log.protocol import Listener, StoreError, StoreMoved

POLL_S = 1.0
_SLOWEST_LOOK_S = 30.0
_BACKUP_MS = 300  # a deadline that nobody has acted on for so long is acted on by whoever sees it


class Waiter:
    """One ticket of this process."""

    def __init__(
        self,
        gate: DirectGate,
        ident: str,
        mailbox: Mailbox | None,
        *,
        on_view: Callable[[TicketView], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        self._gate = gate
        self._id = ident
        self._mailbox = mailbox
        self._on_view = on_view
        self._on_trouble = on_trouble
        self._listener: Listener | None = None
        self._mark = ""
        self._position = 1
        self._alarm: float | None = None  # when to act on a deadline
        self._next_poll = 0.0
        self._next_look = 0.0

    def wait(self, until: float | None, wakeup_fd: int, stopped: Callable[[], bool]) -> Lease | Left | None:
        """Until the lease is ours, the ticket has left, `stopped()` says so or `until` has come (None)."""
        with self._listening():
            return self._wait(until, wakeup_fd, stopped)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """On a log that many machines share, hear those on the others."""
        shared = self._gate.replica.shared
        if shared is None or self._mailbox is None:
            yield
            return
        self._mark = other_hosts.mark(self._gate.host, self._mailbox.address)
        self._listener = shared.listen()
        try:
            yield
        finally:
            self._listener.close()
            self._listener = None

    def _wait(self, until: float | None, wakeup_fd: int, stopped: Callable[[], bool]) -> Lease | Left | None:
        while not stopped():
            try:
                ended = self._step()
            except StoreMoved:
                raise  # it does not pass
            except StoreError as error:
                self._on_trouble(str(error))
                ended = None
            if ended is not None:
                return ended
            if until is not None and monotonic() >= until:
                return None
            self._sleep(until, wakeup_fd)
        return None

    def _sleep(self, until: float | None, wakeup_fd: int) -> None:
        moments = [self._next_poll, self._next_look]
        if self._alarm is not None:
            moments.append(self._alarm)
        if until is not None:
            moments.append(until)
        fds = [wakeup_fd] if self._mailbox is None else [wakeup_fd, self._mailbox.fileno()]
        if self._listener is not None:
            fds.append(self._listener.fileno())
        ready, _, _ = select.select(fds, [], [], max(0.0, min(moments) - monotonic()))
        if wakeup_fd in ready:
            os.read(wakeup_fd, 512)  # some signal came; unread it would wake us for ever

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
        """Whether it is decided; a grant is claimed here, at once where we were told of it."""
        state = self._gate.state if granted else self._gate.replica.catch_up()
        lease = state.leases.get(self._id)
        ticket = state.tickets.get(self._id)
        if granted or (lease is not None and not lease.claimed) or (ticket is not None and ticket.away):
            self._gate.decide([cmd.Claim(self._id)])  # or, passed over: we are here, ask again
            lease, ticket = self._gate.state.leases.get(self._id), self._gate.state.tickets.get(self._id)
        if lease is not None:
            return lease
        if self._gate.questions.ask_if_due():
            return self._settled()
        self._arm_from_state()
        return None if ticket is not None else Left(self._why())

    def _why(self) -> str:
        told = self._gate.log.side_value(TOLD, self._id)
        if told is not None:
            self._gate.replica.forget_told([self._id])
        return why_left(told)

    def _poll(self) -> bool:
        """One row: were we told something? Is it our turn to look around? Is a deadline overdue that nobody acts on?"""
        if self._gate.log.side_value(TOLD, self._id) is not None:
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
        """Where in the queue are we?"""
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
        """We decided last and are first to act: nobody else will tell us."""
        first = self._gate.replica.engine.first_to_act()
        if first is not None and first.id == self._id:
            self._arm()
