"""The four panes: what stands in each, how a line of it reads, and what more there is to say of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from fleetgate.cli.commands.backoff import ends_text
from fleetgate.cli.commands.ps import lease_state
from fleetgate.cli.commands.status import pool_notes
from fleetgate.cli.output.short_reason import short_reason
from fleetgate.cli.output.table import Cell, Column
from fleetgate.cli.read_only_gate import models_shown, pid_shown, session_shown
from fleetgate.cli.top.snapshot import GateView
from fleetgate.core.pools.backoff import Backoff
from fleetgate.core.views.pool_and_lease_views import LeaseView, PoolView, TicketView
from fleetgate.gate.liveness import process_identity
from fleetgate.present.account_set_text import accounts_text
from fleetgate.present.request_text import label
from fleetgate.present.text import printable, span, spans

T = TypeVar("T")
Row = list[str | Cell]


class Pane(Generic[T]):
    """One kind of thing. `key` identifies an item, whatever its position."""

    name = ""
    columns: tuple[Column, ...] = ()
    empty = ""

    def items(self, shot: GateView) -> Sequence[T]:
        raise NotImplementedError

    def key(self, item: T) -> str:
        raise NotImplementedError

    def words(self, item: T) -> str:
        """What a filter looks at."""
        raise NotImplementedError

    def row(self, item: T, shot: GateView, bar: int) -> Row:
        """Its cells; a bar has so many columns at most."""
        raise NotImplementedError

    def detail(self, item: T, shot: GateView) -> list[str]:
        """Sentences about the one that is selected."""
        raise NotImplementedError


class Pools(Pane[PoolView]):
    name = "POOLS"
    columns = (
        Column("POOL", least=14, name=True),
        Column("KIND", spare=True),
        Column("SLOTS"),
        Column("IN USE", right=True),
        Column("WAIT", right=True),
        Column("NOTES", least=12),
    )
    empty = "no caps are set, so every agent starts at once. To set one: fleetgate cap set host 3"

    def items(self, shot: GateView) -> Sequence[PoolView]:
        return shot.pools

    def key(self, item: PoolView) -> str:
        return f"{item.kind} {item.pool}"

    def words(self, item: PoolView) -> str:
        return f"{item.pool} {item.kind} {item.selector} {item.name}"

    def row(self, item: PoolView, shot: GateView, bar: int) -> Row:
        taken = item.in_flight + item.foreign
        limit = item.limit or 0
        paused = item.paused_until is not None
        style = "red" if paused else "yellow" if taken + item.cooling >= limit else "green" if taken else ""
        notes = pool_notes(item, shot.moments)
        if not item.auto_reduced and item.cap is not None and item.cap != limit:
            notes.insert(0, f"cap {item.cap}")
        return [
            Cell(printable(item.pool), "bold"),
            item.kind,
            Cell(slots_bar(item, bar), style),
            Cell(f"{taken}/{limit}", style),
            Cell(str(item.queued) if item.queued else "-", "yellow" if item.queued else "dim"),
            Cell(printable("; ".join(notes)), "red" if paused else ""),
        ]

    def detail(self, item: PoolView, shot: GateView) -> list[str]:
        said = []
        if item.restore is not None:
            said.append(
                f"r restores {item.auto_reduced_from} (auto-reduced to {item.limit}), as does: `{item.restore}`"
            )
        if item.paused_until is not None:
            said.append(f"p opens it, as does: `fleetgate resume '{item.pool}' --kind {item.kind}`")
        notes = [note for note in pool_notes(item, shot.moments) if not note.startswith("auto-reduced")]
        said.append("; ".join([f"{item.pool} ({item.kind}): cap {item.cap}, from {item.source or 'nowhere'}", *notes]))
        return said


class Tickets(Pane[TicketView]):
    name = "QUEUE"
    columns = (
        Column("POS", right=True),
        Column("ID"),
        Column("MODEL", least=12, name=True),
        Column("WHY", least=10),
        Column("WAITS", right=True),
        Column("STARTS", spare=True),
        Column("PROJECT", least=7, spare=True),
        Column("SESSION", spare=True),
        Column("COMMAND", least=10, long=True),
        Column("WHO", least=7, right=True, spare=True),
    )
    empty = "nothing is waiting"

    def items(self, shot: GateView) -> Sequence[TicketView]:
        return shot.tickets

    def key(self, item: TicketView) -> str:
        return item.ticket.id

    def words(self, item: TicketView) -> str:
        ticket = item.ticket
        pools = " ".join(item.reason.pools)
        return (
            f"{ticket.id} {models_shown(ticket.spec.models)} {item.reason.code} {item.reason.pool} {pools} "
            f"{ticket.spec.project} {ticket.spec.agent_session} {label(ticket)} {_who(ticket.holder, '')}"
        )

    def row(self, item: TicketView, shot: GateView, bar: int) -> Row:
        ticket = item.ticket
        gone = process_identity.is_gone(ticket.holder)
        why = Cell("gone", "red") if gone else Cell(printable(short_reason(item.reason, shot.moments)), "yellow")
        return [
            Cell(f"{item.position}/{item.of}" if item.of else "-", "bold"),
            ticket.id,
            models_shown(ticket.spec.models),
            why,
            span(shot.moments.now - ticket.since),
            f"in {spans(*item.estimate_ms)}" if item.estimate_ms is not None else "-",
            "" if ticket.spec.project == "default" else ticket.spec.project,
            session_shown(ticket.spec.agent_session),
            label(ticket),
            _who(ticket.holder, shot.host),
        ]

    def detail(self, item: TicketView, shot: GateView) -> list[str]:
        ticket = item.ticket
        if process_identity.is_gone(ticket.holder):
            return [f"{ticket.id}: its process has ended; the next request drops it from the queue", label(ticket)]
        who = f"process {pid_shown(ticket.holder)} on {process_identity.host_of(ticket.holder)}"
        return [
            f"{item.reason.code}: {item.reason.text}",
            accounts_text(item),
            f"{ticket.id}, {ticket.spec.project}, {who}: {label(ticket)}",
        ]


class Leases(Pane[LeaseView]):
    name = "RUNNING"
    columns = (
        Column("ID"),
        Column("MODEL", least=14, name=True),
        Column("POOLS", least=8, name=True, spare=True),
        Column("AGE", right=True),
        Column("WHO", least=7, right=True),
        Column("STATE"),
        Column("PROJECT", least=7, spare=True),
        Column("SESSION", spare=True),
        Column("COMMAND", least=12, long=True),
    )
    empty = "nothing is running"

    def items(self, shot: GateView) -> Sequence[LeaseView]:
        return shot.leases

    def key(self, item: LeaseView) -> str:
        return item.lease.id

    def words(self, item: LeaseView) -> str:
        ticket = item.lease.ticket
        return (
            f"{item.lease.id} {item.lease.model} {' '.join(item.pools)} {ticket.spec.project} "
            f"{ticket.spec.agent_session} {label(item.lease)} {_who(item.lease.lives_with, '')}"
        )

    def row(self, item: LeaseView, shot: GateView, bar: int) -> Row:
        lease = item.lease
        spec = lease.ticket.spec
        state = lease_state(lease)
        return [
            Cell(lease.id, "bold"),
            f"{lease.model or '-'} x{spec.slots}" if spec.slots > 1 else lease.model or "-",
            ", ".join(item.pools) or "-",
            span(item.age_ms),
            _who(lease.lives_with, shot.host),
            Cell(state, "red" if state == "gone" else "yellow"),
            "" if spec.project == "default" else spec.project,
            session_shown(spec.agent_session),
            label(lease),
        ]

    def detail(self, item: LeaseView, shot: GateView) -> list[str]:
        lease = item.lease
        who = f"process {pid_shown(lease.lives_with)} on {process_identity.host_of(lease.lives_with)}"
        waited = f", waited {span(lease.waited_ms)}" if lease.waited_ms >= 1000 else ""
        said = [
            f"{lease.id}, {lease.ticket.spec.project}, {who}, in {', '.join(item.pools) or 'no pool'}{waited}",
            label(lease),
        ]
        if lease.stop_by:
            said.append(f"being stopped, requested by {lease.stop_by}")
        if lease_state(lease) == "gone":
            said[0] = f"{lease.id}: its process has ended; the next request takes the slot back"
        return said


class Backoffs(Pane[Backoff]):
    name = "BACKOFFS"
    columns = (
        Column("KEY", least=14, name=True),
        Column("SCOPE", spare=True),
        Column("REASON"),
        Column("ENDS", least=8),
        Column("EVIDENCE", least=10),
    )
    empty = "nothing is backed off"

    def items(self, shot: GateView) -> Sequence[Backoff]:
        return shot.backoffs

    def key(self, item: Backoff) -> str:
        return item.key

    def words(self, item: Backoff) -> str:
        return f"{item.key} {item.scope} {item.reason} {item.evidence}"

    def row(self, item: Backoff, shot: GateView, bar: int) -> Row:
        ends = Cell(ends_text(item, shot.moments), "yellow")
        return [Cell(printable(item.key), "bold"), item.scope, item.reason, ends, item.evidence]

    def detail(self, item: Backoff, shot: GateView) -> list[str]:
        by = "set manually" if item.manual else "seen"
        ends = ends_text(item, shot.moments)
        seen = f"{item.reason}, {by} {shot.moments.ago(item.since)}"
        return [f"{item.key} ({item.scope}): {seen}, ends {ends}; x clears it", item.evidence]


PANES: tuple[Pane[Any], ...] = (Pools(), Tickets(), Leases(), Backoffs())
POOLS, TICKETS, LEASES, BACKOFFS = range(4)


def slots_bar(view: PoolView, longest: int) -> str:
    """█ in use, ▓ foreign, ▒ cooling, ░ free: one for each slot of a small pool."""
    limit = view.limit or 0
    if limit < 1:
        return ""
    length = min(limit, longest)
    bar = ""
    upto = 0
    for char, slots in (("█", view.in_flight), ("▓", view.foreign), ("▒", view.cooling)):
        upto += slots
        end = min(max(upto * length // limit, len(bar) + 1 if slots else 0), length)
        bar += char * (end - len(bar))
    return bar + "░" * (length - len(bar))


def _who(process: str, here: str) -> str:
    """`4711`, or `build-02:4711` where it is another machine than this."""
    host = process_identity.host_of(process)
    pid = pid_shown(process)
    return pid if host == here else f"{host}:{pid}"
