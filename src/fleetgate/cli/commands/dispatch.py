"""`fleetgate dispatch`: starts the jobs for which a slot is free now, and defers the others with a reason."""

from __future__ import annotations

import sys

import click

from fleetgate.cli.click_helpers import json_option, tell, whoami
from fleetgate.cli.open_gate import load_config, open_gate
from fleetgate.cli.read_only_gate import note, say_json
from fleetgate.core.errors import BadRequest
from fleetgate.gate.liveness import process_identity
from fleetgate.jobs import dispatch
from fleetgate.jobs.dispatch import DispatchAnswer
from fleetgate.jobs.job_record import JobSpec
from fleetgate.jobs.spec_parser import SpecParser
from fleetgate.present.json.state import reason_json
from fleetgate.present.log_time import LogTimes


@click.command(short_help="Start the jobs that fit now; defer the rest.")
@click.option("--candidates", metavar="FILE", required=True, help="One JSON object per line; -: stdin.")
@click.option("--dry-run", "--canary", "dry", is_flag=True, help="Only print what would be started.")
@json_option
def command(candidates: str, dry: bool, as_json: bool) -> None:
    """Start, in order, the candidates for which a slot is free; print `started`, or `deferred` with the reason.

    A deferred candidate leaves no trace: offer it again next time. A started one is a job (`fleetgate jobs`) and needs
    no worker. Candidates have the format of `submit --batch`.

    \b
    echo '{"command": ["claude", "-p", "fix it"], "model": "anthropic/claude-opus-4-6"}' |
        fleetgate dispatch --candidates -

    Exit codes: 0, even when everything is deferred; 64 for an invalid line (nothing is started).
    """
    loaded = load_config()
    reading = SpecParser(process_identity.host_name(), loaded)
    specs = _read(reading, candidates)
    for text in reading.notes:
        note(text)
    gate = open_gate(loaded)
    gate.read()
    moments = LogTimes(gate)
    answers = dispatch.rehearse(gate, specs) if dry else None
    by = whoami(gate.host)
    gate.close()
    for at, spec in enumerate(specs):
        answer = dispatch.start(lambda: open_gate(loaded), spec, by) if answers is None else answers[at]
        if as_json:
            say_json(_json(spec, answer, moments))
        else:
            tell(_text(spec, answer, dry=dry))
    if not specs:
        note("no candidates")


def _read(reading: SpecParser, path: str) -> list[JobSpec]:
    try:
        if path == "-":
            lines = sys.stdin.buffer.readlines()
        else:
            with open(path, "rb") as file:
                lines = file.readlines()
    except OSError as error:
        raise BadRequest(f"--candidates {path}: {error.strerror}") from error
    return [spec for _, spec in reading.lines(lines, "stdin" if path == "-" else path)]


def _text(spec: JobSpec, answer: DispatchAnswer, *, dry: bool) -> str:
    called = f" name={spec.name}" if spec.name else ""
    if answer.error:
        return f"refused{called}: {answer.error}"
    if answer.reason is None:
        ident = "" if dry else f" {answer.id}"
        return f"{'would start' if dry else 'started'}{ident} model={answer.model or '-'}{called}"
    model = answer.reason.model or next(iter(spec.models), "-")
    return f"deferred model={model}{called}: {answer.reason.text}"


def _json(spec: JobSpec, answer: DispatchAnswer, moments: LogTimes) -> dict[str, object]:
    state = "refused" if answer.error else "started" if answer.reason is None else "deferred"
    return {
        "state": state,
        "id": answer.id if state == "started" else None,
        "model": answer.model or None,
        "name": spec.name or None,
        "key": spec.key or None,
        "reason": None if answer.reason is None else reason_json(answer.reason, moments),
        "error": answer.error or None,
    }
