"""`fleetgate show`: one job in detail."""

from __future__ import annotations

from shlex import join

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import json_option
from fleetgate.cli.completion_values import complete_job
from fleetgate.cli.output.table import Cell, Screen
from fleetgate.cli.read_only_gate import current, opened, say_json
from fleetgate.config.units import format_duration
from fleetgate.gate.liveness import process_identity
from fleetgate.jobs import job_store, output_files
from fleetgate.jobs.job_json import job_json
from fleetgate.jobs.job_store import JobView
from fleetgate.present.log_time import LogTimes
from fleetgate.present.text import spans, spent_text
from fleetgate.present.wall_time import local_and_utc
from fleetgate.signals.agents.placeholders import filled_in
from fleetgate.signals.redaction import redact_words

_LAST_ATTEMPTS = 5


@click.command(short_help="Show one job in detail.")
@click.argument("ident", metavar="ID", shell_complete=complete_job)
@json_option
def command(ident: str, as_json: bool) -> int:
    """Show one job in detail: command, state, position in the queue, reason for waiting, attempts and result.

    The first four characters of an ID are enough, or a unique name. Only the names of environment variables are shown.

    \b
    fleetgate show 7kq
    fleetgate show nightly --json
    """
    with opened() as gate:
        current(gate, reap=True)
        view = job_store.view(gate, job_store.find_job(gate, ident))
        moments = LogTimes(gate)
        if as_json:
            say_json(job_json(view, moments))
            return exit_codes.OK
        screen = Screen()
        for name, text in _facts(view):
            screen.prose(text, " " * 12, _label(name))
        paths = output_files.files(gate.folder, view.id)
        if paths:
            screen.prose(f"fleetgate logs {view.id} ({paths[-1]})", " " * 12, _label("output"))
        screen.show()
    return exit_codes.OK


def _label(name: str) -> list[Cell]:
    return [Cell(f"{name:<12}", "dim")]


def _facts(view: JobView) -> list[tuple[str, str]]:
    job, spec = view.job, view.job.spec
    place = f", position {view.place}" if view.place else ""
    when = f"; starts in about {spans(*view.estimate_ms)}" if view.estimate_ms is not None else ""
    facts = [
        ("job", f"{view.id}{f' ({spec.name})' if spec.name else ''}"),
        ("state", f"{view.state}{place}{when}"),
        ("why", view.reason.text if view.reason is not None else job.why),
        ("command", join(filled_in(redact_words(spec.argv), job.model))),
        ("in", spec.cwd),
        ("env", ", ".join(sorted(spec.env))),
        ("model", job.model or ", ".join(spec.models)),
        ("project", spec.project),
        ("class", spec.work_class),
        ("runs on", "any host" if spec.any_host else spec.host),
        ("attempts", _attempts(view)),
        ("used", _used(view)),
        ("process", str(process_identity.pid_of(view.child)) if view.child else ""),
        ("exit", "" if job.exit_code is None and job.signal is None else _exit(view)),
        ("submitted", f"{local_and_utc(job.submitted_at)}{f' by {job.by}' if job.by else ''}"),
        ("started", local_and_utc(job.started_at) if job.started_at else ""),
        ("finished", local_and_utc(job.finished_at) if job.finished_at else ""),
        ("timeout", format_duration(spec.timeout_ms) if spec.timeout_ms else ""),
        ("key", spec.key),
        ("access key", job.access_key),
        ("session", spec.session),
    ]
    return [(name, text) for name, text in facts if text]


def _attempts(view: JobView) -> str:
    job = view.job
    spent = f"{job.failures} of {job.spec.retries} retries used"
    more = [f"{number} {what}" for number, what in ((job.limits, "by limits"), (job.losses, "lost")) if number]
    return f"{job.attempt} ({', '.join([spent, *more])})"


def _used(view: JobView) -> str:
    """In all, and of several attempts by each of the last few."""
    if view.spent is None:
        return ""
    job = view.job
    each = [f"attempt {one.attempt}: {spent_text(one.usage)}" for one in job.attempts_spent[-_LAST_ATTEMPTS:]]
    details = f" ({'; '.join(each)})" if job.attempt > 1 and each else ""
    return f"{spent_text(view.spent)}{details}"


def _exit(view: JobView) -> str:
    job = view.job
    end = f"signal {job.signal}" if job.exit_code is None else f"code {job.exit_code}"
    return f"{end}, {job.outcome}" if job.outcome else end
