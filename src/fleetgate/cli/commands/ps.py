"""`fleetgate ps`: every lease and its process."""

from __future__ import annotations

import click

from fleetgate.cli.output.table import Cell, Column, Screen
from fleetgate.cli.read_only_gate import class_shown, current, opened, pid_shown, say_json, session_shown
from fleetgate.core.entities import Lease
from fleetgate.core.views.pool_and_lease_views import LeaseView, lease_views
from fleetgate.gate.liveness import process_identity
from fleetgate.present.json.state import lease_json
from fleetgate.present.log_time import LogTimes
from fleetgate.present.request_text import label
from fleetgate.present.text import span, spent_cells

_COLUMNS = (
    Column("ID"),
    Column("MODEL", least=16, name=True),
    Column("POOLS", least=8, name=True),
    Column("AGE", right=True),
    Column("TOKENS", right=True, spare=True),
    Column("COST", right=True, spare=True),
    Column("PID", right=True),
    Column("HOST", least=6, spare=True),
    Column("CLASS", spare=True),
    Column("SESSION", spare=True),
    Column("STATE"),
    Column("COMMAND", least=12, long=True),
)


@click.command(short_help="List running agents: where, and since when.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> int:
    """List every lease, the oldest first. PID is that of the agent, or of `fleetgate run` until the agent has started.
    The name of `run --name` precedes the command.

    \b
    fleetgate ps
    fleetgate ps --json | jq '.leases[] | select(.age_s > 3600) | .id'
    """
    with opened() as gate:
        state = current(gate)
        moments = LogTimes(gate)
        views = lease_views(state, moments.now)
        if as_json:
            say_json({"leases": [lease_json(view, moments) for view in views]})
        else:
            _draw(views)
    return 0


def _draw(views: list[LeaseView]) -> None:
    screen = Screen()
    if not views:
        screen.line("nothing is running (to run something: fleetgate run -m MODEL -- COMMAND…)")
        screen.show()
        return
    screen.table(_COLUMNS, [_row(view) for view in views])
    states = {lease_state(view.lease) for view in views}
    if states - {""}:
        screen.line()
    if "gone" in states:
        screen.prose(
            "gone: its process has exited; the next request frees its slot. Or now: fleetgate release ID --force"
        )
    if "unclaimed" in states:
        screen.prose(
            "unclaimed: just granted; if its process does not claim it within 10s, the next in the queue gets the slot"
        )
    screen.show()


def _row(view: LeaseView) -> list[str | Cell]:
    lease = view.lease
    state = lease_state(lease)
    slots = lease.ticket.spec.slots
    return [
        Cell(lease.id, "bold"),
        f"{lease.model or '-'} x{slots}" if slots > 1 else lease.model or "-",
        ", ".join(view.pools) or "-",
        span(view.age_ms),
        *spent_cells(lease.spent),
        "-" if lease.ticket.renew_ms else pid_shown(lease.lives_with),
        lease.ticket.client if lease.ticket.renew_ms else process_identity.host_of(lease.lives_with),
        class_shown(lease.ticket.spec.work_class),
        session_shown(lease.ticket.spec.agent_session),
        Cell(state, "red" if state == "gone" else "yellow"),
        label(lease),
    ]


def lease_state(lease: Lease) -> str:
    """The unusual state of a lease: gone, stopping or unclaimed; "" otherwise."""
    if process_identity.is_gone(lease.lives_with):
        return "gone"
    if lease.stop_by:
        return "stopping"
    return "" if lease.claimed else "unclaimed"
