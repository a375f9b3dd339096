"""`fleetgate submit`: queues a job for a worker."""

from __future__ import annotations

import sys

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import json_option, opened_gate, tell, whoami
from fleetgate.cli.completion_values import complete_model, complete_project
from fleetgate.cli.open_gate import load_config
from fleetgate.cli.output.table import say
from fleetgate.cli.read_only_gate import note, say_json
from fleetgate.cli.run.mistyped_models import mention_typos
from fleetgate.cli.service.job_variables import given_variables, inherited_variables
from fleetgate.core.errors import BadRequest
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs import job_store, submit
from fleetgate.jobs.job_json import submitted_json
from fleetgate.jobs.job_record import JobSpec
from fleetgate.jobs.job_store import JobView
from fleetgate.jobs.spec_parser import SpecParser
from fleetgate.jobs.submit import Submitted
from fleetgate.present.log_time import LogTimes
from fleetgate.present.text import count, spans

_AT_ONCE = 1000


@click.command(
    short_help="Queue a job for a worker.",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "-m", "--model", metavar="MODEL,…", shell_complete=complete_model, help="Candidate models in order of preference."
)
@click.option("--any", "any_candidate", is_flag=True, help="Use the next model when the first is at capacity, too.")
@click.option("--name", metavar="NAME", help="Name of the job.")
@click.option(
    "--project",
    metavar="NAME",
    shell_complete=complete_project,
    help="Fairness group (default: $FLEETGATE_PROJECT, else `default`).",
)
@click.option("--priority", metavar="N", help="-100 to 100; each point counts as 12s of waiting.")
@click.option("--expires", metavar="DURATION", help="Leave the queue after this long (default 24h).")
@click.option("--retries", metavar="N", help="Retries after a failure (default 3).")
@click.option("--retry-on", metavar="CODE,…", help="Retry only after these exit codes or outcomes.")
@click.option("--on-lost", metavar="retry|fail", help="When its worker dies: queue it again (default), or fail.")
@click.option("--key", metavar="KEY", help="Idempotency key: returns the existing job while one is queued or running.")
@click.option("--cwd", metavar="FOLDER", help="Working folder (default: here).")
@click.option("--env", metavar="K=V", multiple=True, help="Set a variable. It is stored unencrypted: no secrets.")
@click.option("--timeout", metavar="DURATION", help="Stop an attempt after this long.")
@click.option("--silence", metavar="DURATION", help="Stop an attempt after this long without output.")
@click.option("--session", metavar="KEY", help="Resume the agent session of the last attempt or run with this key.")
@click.option("--role", metavar="NAME", help="What this agent is for; kept in the history.")
@click.option(
    "--classify", metavar="AGENT", help="Agent whose output this is, if not detected: claude, codex, …, none."
)
@click.option(
    "--inherit-env",
    "inherit",
    metavar="NAME,…",
    multiple=True,
    help="Give the job these variables with the values that they have here.",
)
@click.option("--slots", metavar="N", help="Slots to take in every pool (default 1).")
@click.option("--supervisor", is_flag=True, help="The agent only delegates: it uses no host slot.")
@click.option("--class", "work_class", metavar="CLASS", help="batch (default), normal or interactive.")
@click.option("--confirm", is_flag=True, help="Hold the job when its turn comes, until `fleetgate approve`.")
@click.option("--any-host", is_flag=True, help="Let workers on any machine run it (default: this machine).")
@click.option("--batch", metavar="FILE", help="Submit many: one JSON object per line; -: stdin.")
@json_option
@click.argument("command", metavar="-- COMMAND…", nargs=-1, type=click.UNPROCESSED)
def command(
    command: tuple[str, ...],
    batch: str | None,
    as_json: bool,
    any_candidate: bool,
    work_class: str | None,
    env: tuple[str, ...],
    inherit: tuple[str, ...],
    **options: str | bool | None,
) -> int:
    """Queue a job. `fleetgate worker` runs it when a slot is free. Jobs survive restarts and rate limits.

    The ID is printed once the job is on disk. The command runs unchanged, never through a shell, in this folder.

    Its environment is that of the worker that runs it, not of this shell. --env and --inherit-env add variables; the
    latter keeps their values in a file that only you can read, and never in the store.

    \b
    fleetgate submit -m anthropic/claude-opus-4-6 -- claude -p "fix the tests"
    fleetgate submit --name nightly --key nightly --timeout 2h -- make nightly
    fleetgate submit --batch jobs.jsonl

    Exit codes: 0; 75 when its session is in use; 64 usage; 69 store unreachable; 78 config.
    """
    loaded = load_config()
    reading = SpecParser(process_identity.host_name(), loaded)
    given: dict[str, object] = {name: value for name, value in options.items() if value not in (None, False)}
    if any_candidate:
        given["any"] = True
    if work_class:
        given["class"] = work_class
    if batch is not None:
        if command or given or env or inherit:
            raise BadRequest("--batch: options go into the lines of the file; only --json may be added")
        specs = _batch(reading, batch)
    else:
        inherited = inherited_variables(inherit)
        if inherited and given.get("any_host"):
            raise BadRequest("--inherit-env and --any-host: the values are kept in a file of this host; use --env")
        specs = [reading.spec({**given, "env": {**inherited, **given_variables(env)}, "command": list(command)})]
    for text in reading.notes:
        note(text)
    gate = opened_gate(loaded)
    models = tuple(dict.fromkeys(model for spec in specs for model in spec.models))
    if text := mention_typos(models, _agent_caps(gate), gate.settings):
        note(text)
    submitted = submit.submit(gate, specs, by=whoami(gate.host), secret_env=bool(inherit))
    _print_jobs(gate, submitted, as_json=as_json, many=batch is not None)
    return exit_codes.OK


def _agent_caps(gate: DirectGate) -> list[str]:
    gate.read()
    return gate.cap_selectors()


def _batch(reading: SpecParser, path: str) -> list[JobSpec]:
    """All jobs of a file; every line must be valid. A terminal shows the progress."""
    try:
        lines = sys.stdin.buffer.readlines() if path == "-" else _read(path)
    except OSError as error:
        raise BadRequest(f"--batch {path}: {error.strerror}") from error
    what = "stdin" if path == "-" else path
    with click.progressbar(
        length=len(lines), label="reading", file=sys.stderr, hidden=not sys.stderr.isatty(), update_min_steps=100
    ) as bar:
        specs = []
        for number, spec in reading.lines(lines, what):
            specs.append(spec)
            bar.update(number - bar.pos)
    if not specs:
        raise BadRequest(f'{what}: no jobs found; a job is {{"command": ["make", "test"]}} on a line of its own')
    return specs


def _read(path: str) -> list[bytes]:
    with open(path, "rb") as file:
        return file.readlines()


def _print_jobs(gate: DirectGate, submitted: list[Submitted], *, as_json: bool, many: bool) -> None:
    moments = LogTimes(gate)
    if not many:
        (one,) = submitted
        submit.taken_up(gate, one.id)
        view = job_store.view(gate, one.id)
        if as_json:
            say_json(submitted_json(view, moments, new=one.new))
        else:
            tell(one.id)
            note(_state(view, new=one.new))
        return
    if as_json:
        found = job_store.several(gate, {one.id for one in submitted})
        for one in submitted:
            say_json(submitted_json(found[one.id], moments, new=one.new))
        return
    for start in range(0, len(submitted), _AT_ONCE):
        say("".join(f"{one.id}\n" for one in submitted[start : start + _AT_ONCE]))
    new = sum(one.new for one in submitted)
    old = f"; {len(submitted) - new} already existed" if new < len(submitted) else ""
    note(f"queued {count(new, 'job')}{old}")


def _state(view: JobView, *, new: bool) -> str:
    place = f", position {view.place}" if view.place else ""
    why = f": {view.reason.text}" if view.reason is not None else ""
    when = f"; about {spans(*view.estimate_ms)}" if view.estimate_ms is not None else ""
    return f"{'' if new else 'already exists: '}{view.state}{place}{why}{when}"
