"""The actions of the keys of `fleetgate top`. Each returns a sentence that says what was done.

They give the same commands as `fleetgate cancel`, `stop`, `bump`, `pause`, `resume`, `cap set` and `backoff clear`. The
screen may be a second old, so each action reads the state again. It waits for the lock only briefly: the screen stands
still.
"""

from __future__ import annotations

from fleetgate.cli.click_helpers import entered_text, until_text, whoami
from fleetgate.cli.top.selection import Wish
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.pools.backoff import Backoff
from fleetgate.core.views.pool_and_lease_views import LeaseView, PoolView, TicketView, pool_views, ticket_view
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log.protocol import StoreError
from fleetgate.present.lease_owner import why_not_to_stop
from fleetgate.present.name_lookup import whose
from fleetgate.present.text import place as at

PATIENCE_S = 2.0


def perform(gate: DirectGate, wish: Wish) -> str:
    """Perform one action; raises FleetgateError if it is not possible."""
    item = wish.item
    if isinstance(item, TicketView):
        return _cancel(gate, item) if wish.what == "cancel" else _bump(gate, item)
    if isinstance(item, LeaseView):
        return _stop(gate, item)
    if isinstance(item, Backoff):
        return _clear(gate, item)
    view = _now(gate, item)
    if wish.what == "pause":
        return _pause(gate, view) if view.paused_until is None else _resume(gate, view)
    if wish.what == "restore":
        return _restore(gate, view)
    return _change_cap(gate, view, 1 if wish.what == "raise" else -1)


def _decide(gate: DirectGate, command: cmd.Command, *, durable: bool = True) -> list[ev.Event]:
    decided = gate.decide_within(PATIENCE_S, [command], durable=durable)
    if decided is None:
        owner = gate.log.lock_owner()
        who = f"process {owner} ({process_identity.describe(owner)})" if owner else "another process"
        raise StoreError(f"nothing was done: {who} holds the store's lock; try again")
    if decided[0].error is not None:
        raise decided[0].error
    return decided[0].events


# Tickets.


def _cancel(gate: DirectGate, view: TicketView) -> str:
    ident = view.ticket.id
    state = gate.replica.catch_up()
    lease = state.leases.get(ident)
    if lease is not None and lease.claimed:
        raise BadRequest(f"{ident} has started in the meantime: fleetgate stop {ident} stops it")
    if lease is None and ident not in state.tickets:
        raise NotFound(f"{ident} has left the queue in the meantime")
    events = _decide(gate, cmd.Cancel(ident, whoami(gate.host)), durable=False)
    return f"cancelled {ident}: {whose(view.ticket)} left the queue{entered_text(events)}"


def _bump(gate: DirectGate, view: TicketView) -> str:
    ident = view.ticket.id
    if ident not in gate.replica.catch_up().tickets:
        raise NotFound(f"{ident} is no longer in the queue")
    _decide(gate, cmd.Bump(ident), durable=False)
    after = ticket_view(gate.state, ident, gate.now())
    place = "started" if after is None else f"is now at position {at(after.position, after.of, after.pool)}"
    return f"{ident} {place}: {whose(view.ticket)}"


# Leases.


def _stop(gate: DirectGate, view: LeaseView) -> str:
    """Its runner ends it; if that cannot, the loop of `top` does (cli/top/loop.py)."""
    ident = view.lease.id
    lease = gate.replica.catch_up().leases.get(ident)
    if lease is None:
        raise NotFound(f"{ident} has ended in the meantime")
    if why_not := why_not_to_stop(lease):
        raise BadRequest(why_not)
    _decide(gate, cmd.Stop(ident, whoami(gate.host)))
    return f"stopping {ident}: {whose(lease)}"


# Pools.


def _now(gate: DirectGate, view: PoolView) -> PoolView:
    """The pool as it is by now."""
    views = pool_views(gate.replica.catch_up(), gate.now(), gate.host)
    found = next((each for each in views if (each.kind, each.pool) == (view.kind, view.pool)), None)
    if found is None:
        raise NotFound(f"{view.pool} ({view.kind}) no longer has a cap")
    return found


def _pause(gate: DirectGate, view: PoolView) -> str:
    events = _decide(gate, cmd.Pause(view.kind, view.pool))
    until = max((event.until for event in events if isinstance(event, ev.Paused)), default=0)
    running = f"; {view.in_flight} running continue" if view.in_flight else ""
    return f"{view.pool} ({view.kind}): paused {until_text(gate, until)}{running}"


def _resume(gate: DirectGate, view: PoolView) -> str:
    events = _decide(gate, cmd.Resume(view.kind, view.pool))
    still = f"; its limit is still {view.limit} of {view.cap} (r restores)" if view.auto_reduced else ""
    return f"{view.pool} ({view.kind}): resumed{still}{entered_text(events)}"


def _restore(gate: DirectGate, view: PoolView) -> str:
    if not view.auto_reduced or view.auto_reduced_from is None:
        raise BadRequest(f"{view.pool} ({view.kind}) was not auto-reduced: its limit is its cap, {view.cap}")
    return _set_cap(gate, view, view.auto_reduced_from)


def _change_cap(gate: DirectGate, view: PoolView, step: int) -> str:
    """One more or one less than the limit in force: of a pool that was reduced to 2, `-` makes 1 and `+` makes 3."""
    if view.auto:
        raise BadRequest(f"{view.pool} follows free memory: fleetgate cap set {view.selector} N gives it a number")
    cap = (view.limit if view.auto_reduced else view.cap) or 1
    if cap + step < 1:
        raise BadRequest(f"{view.pool} ({view.kind}): the minimum cap is 1; p pauses the pool")
    return _set_cap(gate, view, cap + step)


def _set_cap(gate: DirectGate, view: PoolView, cap: int) -> str:
    events = _decide(gate, cmd.SetRule(Rule(view.kind, view.selector, cap=cap)))
    was = f"auto-reduced to {view.limit} of {view.cap}" if view.auto_reduced else str(view.cap)
    over = f"; {view.in_flight} running, no new ones until below the cap" if view.in_flight > cap else ""
    return f"{view.selector} ({view.kind}): cap {cap}, was {was}{over}{entered_text(events)}"


# Backoffs.


def _clear(gate: DirectGate, backoff: Backoff) -> str:
    if backoff.key not in gate.replica.catch_up().backoffs:
        raise NotFound(f"{backoff.key} is no longer backed off")
    events = _decide(gate, cmd.EndBackoff(backoff.key))
    return f"cleared: {backoff.key}{entered_text(events)}"
