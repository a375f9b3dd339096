"""`fleetgate queue`: the waiting requests with position, reason and estimate."""

from __future__ import annotations

import click

from fleetgate.cli.commands.backoff import clear_hint, draw_backoffs
from fleetgate.cli.output.pages import Part, limit_option, offset_option, read_part, screen_rest
from fleetgate.cli.output.short_reason import short_reason
from fleetgate.cli.output.table import Cell, Column, Screen
from fleetgate.cli.read_only_gate import class_shown, current, models_shown, opened, pid_shown, say_json, session_shown
from fleetgate.core.model_names import parse_model
from fleetgate.core.pools.backoff import Backoff, concerns
from fleetgate.core.queue.positions import QueueView
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import TicketView
from fleetgate.gate.liveness import process_identity
from fleetgate.present.account_set_text import sets_of
from fleetgate.present.json import listings
from fleetgate.present.json.state import ticket_json
from fleetgate.present.log_time import LogTimes
from fleetgate.present.request_text import label
from fleetgate.present.text import spans

_COLUMNS = (
    Column("POS", right=True),
    Column("FOR", least=10, spare=True, name=True),
    Column("ID"),
    Column("MODEL", least=18, name=True),
    Column("WHY", least=13),
    Column("SINCE"),
    Column("STARTS"),
    Column("PROJECT", least=7, spare=True),
    Column("CLASS", spare=True),
    Column("SESSION", spare=True),
    Column("COMMAND", least=10, long=True),
    Column("HOST", least=6, spare=True),
    Column("PID", right=True, spare=True),
)
_MOST_REASONS = 5


@click.command(short_help="What is waiting, and why.")
@limit_option
@offset_option
@click.option("--all", "everything", is_flag=True, help="Show all requests.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(limit: str | None, offset: str | None, everything: bool, as_json: bool) -> None:
    """Show waiting requests by expected start: position, model, reason, waiting time and estimate.

    \b
    fleetgate queue
    fleetgate queue --limit 20 --offset 40
    fleetgate queue --json --all | jq '.tickets[] | {id, position, of, pool, reason: .reason.code}'
    """
    part = read_part(limit, offset, everything=everything)
    with opened() as gate:
        state = current(gate)
        moments = LogTimes(gate)
        views = QueueView(state, moments.now).page(part.offset, part.limit)
        if as_json:
            tickets = [ticket_json(view, moments) for view in views]
            backoffs, total = listings.backoffs(state, moments), len(state.tickets)
            say_json({"tickets": tickets, "backoffs": backoffs, "total": total})
        else:
            _draw(state, views, moments, gate.host, part)


def _draw(state: State, views: list[TicketView], moments: LogTimes, host: str, part: Part) -> None:
    screen = Screen()
    if not state.tickets:
        screen.line("nothing is waiting (running: fleetgate ps; pool usage: fleetgate status)")
        screen.show()
        return
    screen.table(_COLUMNS, [_row(view, moments, host) for view in views])
    screen_rest(screen, part, len(views), len(state.tickets), "fleetgate queue", "--all")
    waiting = [view.reason for view in views if not process_identity.is_gone(view.ticket.holder)]
    reasons = list(dict.fromkeys(reason.text for reason in waiting))
    screen.line()
    for text in reasons[:_MOST_REASONS]:
        screen.prose(text, "  ")
    if len(reasons) > _MOST_REASONS:
        screen.line(f"and {len(reasons) - _MOST_REASONS} more reasons: fleetgate queue --json")
    for text in sets_of(state, [view.ticket for view in views]):
        screen.prose(text, "  ")
    if len(waiting) < len(views):
        screen.prose("gone: its process has exited; the next request removes it from the queue", "  ")
    backoffs = _awaited(state, views)
    if backoffs:
        screen.line()
        draw_backoffs(screen, backoffs, moments)
        screen.line(f"({clear_hint(backoffs)})")
    screen.show()


def _awaited(state: State, views: list[TicketView]) -> list[Backoff]:
    """The backoffs that these tickets wait for."""
    models = {model for view in views if view.reason.code == "backoff" for model in view.ticket.spec.models}
    names = [parse_model(model) for model in models]
    return [each for key, each in sorted(state.backoffs.items()) if any(concerns(key, name) for name in names)]


def _row(view: TicketView, moments: LogTimes, host: str) -> list[str | Cell]:
    ticket = view.ticket
    there = process_identity.host_of(ticket.holder)
    gone = process_identity.is_gone(ticket.holder)
    return [
        Cell(f"{view.position} of {view.of}" if view.of else "-", "bold"),
        view.pool,
        ticket.id,
        models_shown(ticket.spec.models),
        Cell("gone", "red") if gone else Cell(short_reason(view.reason, moments), "yellow"),
        moments.ago(ticket.since),
        f"in {spans(*view.estimate_ms)}" if view.estimate_ms is not None else "-",
        "" if ticket.spec.project == "default" else ticket.spec.project,
        class_shown(ticket.spec.work_class),
        session_shown(ticket.spec.agent_session),
        label(ticket),
        ticket.client if ticket.renew_ms else "" if there == host else there,
        "-" if ticket.renew_ms else pid_shown(ticket.holder),
    ]
