"""`fleetgate jobs`: running, waiting and finished jobs."""

from __future__ import annotations

from time import time_ns

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import json_option, read_duration_ms
from fleetgate.cli.completion_values import complete_project
from fleetgate.cli.output.pages import limit_option, offset_option, read_part, screen_rest
from fleetgate.cli.output.short_reason import short_reason
from fleetgate.cli.output.table import Cell, Column, Screen
from fleetgate.cli.read_only_gate import current, opened, say_json
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.jobs import job_store, state_machine
from fleetgate.jobs.job_json import job_json
from fleetgate.jobs.job_store import JobSelection, JobView
from fleetgate.present.log_time import LogTimes
from fleetgate.present.text import span, spans, spent_cells
from fleetgate.signals.agents.placeholders import filled_text

_COLUMNS = (
    Column("ID"),
    Column("STATE"),
    Column("POS", right=True),
    Column("TRY", right=True, spare=True),
    Column("NAME", least=12),
    Column("MODEL", least=14, name=True),
    Column("WHY", least=12, long=True),
    Column("STARTS", spare=True),
    Column("AGE", right=True),
    Column("TOKENS", right=True, spare=True),
    Column("COST", right=True, spare=True),
    Column("PROJECT", least=7, spare=True),
)
_STYLES = {
    state_machine.RUNNING: "green",
    state_machine.QUEUED: "yellow",
    state_machine.HELD: "magenta",
    state_machine.FAILED: "red",
    state_machine.LOST: "red",
    state_machine.EXPIRED: "red",
}


@click.command(short_help="List running, waiting and finished jobs.")
@click.option("--all", "everything", is_flag=True, help="Include jobs that finished more than a day ago.")
@click.option("--state", "wanted", metavar="STATE,…", help="Filter by state.")
@click.option("--project", metavar="NAME", shell_complete=complete_project, help="Filter by project.")
@click.option("--name", metavar="TEXT", help="Filter by name (substring).")
@click.option("--since", metavar="DURATION", help="Only jobs submitted within this time.")
@limit_option
@offset_option
@json_option
def command(
    everything: bool,
    wanted: str | None,
    project: str | None,
    name: str | None,
    since: str | None,
    limit: str | None,
    offset: str | None,
    as_json: bool,
) -> int:
    """List running jobs, waiting jobs with the reason, and jobs that finished in the last day.

    \b
    fleetgate jobs
    fleetgate jobs --all --state failed,lost
    fleetgate jobs --json --limit 0 | jq -r '.jobs[] | select(.state == "failed") | .id'
    """
    chosen = _states(wanted)
    within_ms = read_duration_ms("--since", since)
    part = read_part(limit, offset)
    with opened() as gate:
        current(gate, reap=True)
        moments = LogTimes(gate)
        now = time_ns() // 1_000_000
        of_interest = JobSelection(
            states=chosen,
            project=project or "",
            name=name or "",
            submitted_since=0 if within_ms is None else now - within_ms,
            ended_since=0 if everything or chosen else now - job_store.DAY_MS,
        )
        found = job_store.listing(gate, of_interest, part.offset, part.limit)
        if as_json:
            jobs = [job_json(view, moments) for view in found.views]
            say_json({"jobs": jobs, "total": found.total})
            return exit_codes.OK
        screen = Screen()
        if found.total:
            screen.table(_COLUMNS, [_row(view, moments, now) for view in found.views])
            screen_rest(screen, part, len(found.views), found.total, "fleetgate jobs", "--limit 0")
        else:
            screen.line("no jobs (to submit one: fleetgate submit -- COMMAND…; older ones: fleetgate jobs --all)")
        screen.show()
    return exit_codes.OK


def _states(given: str | None) -> tuple[str, ...]:
    words = tuple(word.strip() for word in given.split(",")) if given else ()
    for word in words:
        if word not in state_machine.STATES:
            raise BadRequest(f"--state {shown(word)}: valid are {', '.join(state_machine.STATES)}")
    return words


def _row(view: JobView, moments: LogTimes, now: int) -> list[str | Cell]:
    job = view.job
    models = job.model if job.model and view.position is None else ", ".join(job.spec.models)
    began = job.started_at if view.state == state_machine.RUNNING else job.finished_at or job.submitted_at
    return [
        view.id,
        Cell(view.state, _STYLES.get(view.state, "")),
        f"{view.position} of {view.of}" if view.position is not None and view.of else "",
        str(job.attempt) if job.attempt > 1 else "",
        filled_text(job.title, job.model),
        models,
        why(view, moments),
        f"in {spans(*view.estimate_ms)}" if view.estimate_ms is not None else "",
        span(max(now - began, 0)),
        *spent_cells(view.spent),
        "" if job.spec.project == "default" else job.spec.project,
    ]


def why(view: JobView, moments: LogTimes) -> str:
    """Why it is waiting, or how it ended."""
    if view.reason is None:
        return view.job.why
    return short_reason(view.reason, moments)
