"""The tools: capacity, queue, submit, job_status, usage. Each call opens the gate, as a command does, and closes it.

So a changed config file counts for the next call, and a store that was moved or was away is found again. A call blocks;
the server makes it in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from msgspec import Struct

from fleetgate.cli.click_helpers import whoami
from fleetgate.cli.commands.capacity import find_capacity
from fleetgate.cli.commands.usage import configured_zone
from fleetgate.cli.commands.wait import await_commit
from fleetgate.cli.mcp import arguments as args
from fleetgate.cli.mcp import results
from fleetgate.cli.open_gate import load_config
from fleetgate.cli.read_only_gate import current, opened
from fleetgate.core.errors import BadName, BadRequest, FleetgateError, NotFound
from fleetgate.core.queue.positions import QueueView
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs import job_store, output_files, state_machine, submit
from fleetgate.jobs.job_json import job_json, submitted_json
from fleetgate.jobs.job_store import JobView
from fleetgate.jobs.spec_parser import SpecParser
from fleetgate.log.protocol import StoreError
from fleetgate.present.json import listings
from fleetgate.present.json.state import capacity_json, ticket_json
from fleetgate.present.log_time import LogTimes
from fleetgate.present.text import printable
from fleetgate.present.usage.query import current_usage, parse_query
from fleetgate.present.usage.report import DEFAULT_BY

_MOST_ROWS = 50


class Tool(NamedTuple):
    """A tool: what a model reads about it, what it takes and returns, and the function."""

    name: str
    title: str
    description: str
    arguments: type[Struct]
    result: type[Struct]
    call: Callable[..., Struct]
    read_only: bool = True


def tools(*, submits: str, by: Callable[[], str]) -> list[Tool]:
    """All tools. `submits`: `approve` (a person approves each job), `run` or `off`; `by` names the client."""
    found = [
        Tool(
            "capacity",
            "Is there capacity?",
            "Ask this before you start or delegate to another agent. Says whether one would start now (green, yellow "
            "or red), why not, and how long the wait would be. Reserves nothing.",
            args.CapacityArguments,
            results.CapacityResult,
            _capacity,
        ),
        Tool(
            "queue",
            "What is waiting",
            "Lists the requests that wait for a slot, by expected start, each with the reason and an estimate, and "
            "models that are held back after a rate limit.",
            args.QueueArguments,
            results.QueueResult,
            _queue,
        ),
        Tool(
            "job_status",
            "State of a job",
            "The state of a submitted job, why it waits, its exit code, tokens, cost and the end of its output. "
            "Set wait_s to wait for its end instead of asking again and again.",
            args.JobArguments,
            results.JobResult,
            _job_status,
        ),
        Tool(
            "usage",
            "Tokens and cost",
            "Tokens and cost of a period, by project, model, day and more.",
            args.UsageArguments,
            results.UsageResult,
            _usage,
        ),
    ]
    if submits != "off":
        asks = submits == "approve"
        found.insert(
            2,
            Tool(
                "submit",
                "Queue a job",
                "Queues a command, usually another agent, as a job. A worker runs it when a slot is free; it survives "
                "restarts and rate limits. Returns at once with the job's ID: ask `job_status` for its end."
                + (" A person must approve the job before it starts." if asks else ""),
                args.SubmitArguments,
                results.SubmitResult,
                lambda said: _submit(said, confirm=asks, by=by()),
                read_only=False,
            ),
        )
    return found


def _capacity(said: args.CapacityArguments) -> results.CapacityResult:
    with opened() as gate:
        found, spec = find_capacity(gate, ",".join(said.models), said.kind, said.project)
        return results.capacity_result(capacity_json(found, spec, LogTimes(gate)))


def _queue(said: args.QueueArguments) -> results.QueueResult:
    with opened() as gate:
        state = current(gate, reap=True)
        moments = LogTimes(gate)
        views = QueueView(state, moments.now).page(0, said.limit)
        return results.QueueResult(
            running=len(state.leases),
            waiting=len(state.tickets),
            requests=[results.waiting_request(ticket_json(view, moments)) for view in views],
            backoffs=[results.backoff_line(backoff) for backoff in listings.backoffs(state, moments)],
        )


def _submit(said: args.SubmitArguments, *, confirm: bool, by: str) -> results.SubmitResult:
    loaded = load_config()
    given = {
        "command": said.command,
        "model": said.models,
        "name": said.name,
        "project": said.project,
        "cwd": said.folder,
        "key": said.key,
        "session": said.session,
        "priority": said.priority,
        "class": said.work_class,
        "timeout": said.timeout,
        "expires": said.expires,
        "confirm": confirm,
    }
    with opened() as gate:
        spec = SpecParser(gate.host, loaded).spec({name: value for name, value in given.items() if value})
        (job,) = submit.submit(gate, [spec], by=f"{whoami(gate.host)} for {printable(by)[:80]}")
        submit.taken_up(gate, job.id)
        view = job_store.view(gate, job.id)
        return results.submit_result(submitted_json(view, LogTimes(gate), new=job.new), _next_step(gate, view))


def _job_status(said: args.JobArguments) -> results.JobResult:
    until = monotonic() + said.wait_s
    with opened() as gate:
        current(gate, reap=True)
        ident = job_store.find_job(gate, said.id)
        view = job_store.view(gate, ident)
        while view.state not in state_machine.FINAL and monotonic() < until:
            await_commit(gate, until)
            view = job_store.view(gate, ident)
        return results.job_result(
            job_json(view, LogTimes(gate)),
            finished=view.state in state_machine.FINAL,
            next_step=_next_step(gate, view),
            output_end=_output_end(gate, ident, said.output_chars),
        )


def _next_step(gate: DirectGate, view: JobView) -> str:
    """What the model should do about a job."""
    ticket = gate.state.tickets.get(view.id)
    for_user = []
    if ticket is not None and (ticket.held or ticket.confirm):
        for_user.append(f"approve it (`fleetgate approve {view.id}`)")
    if view.reason is not None and view.reason.code == "no_worker":
        for_user.append("start a worker (`fleetgate worker`)")
    if for_user:
        return f"Ask the user to {' and to '.join(for_user)}. The job does not start before."
    if view.state == state_machine.SUCCEEDED:
        return "The job has succeeded."
    if view.state in state_machine.FINAL:
        return f"The job ended without success. Read output_end; `fleetgate retry {view.id}` runs it again."
    return f"Call job_status with id {view.id} and wait_s to wait for its end."


def _output_end(gate: DirectGate, ident: str, most: int) -> str:
    """The end of what the job printed, without control characters."""
    if not most:
        return ""
    pieces = output_files.page(gate.folder, ident, tail=4 * most + 200).pieces
    text = b"".join(piece.data for piece in pieces if piece.mark != output_files.NOTE).decode(errors="replace")
    clean = "".join(char for char in text if char.isprintable() or char in "\n\t")
    return clean[-most:]


def _usage(said: args.UsageArguments) -> results.UsageResult:
    with opened(configured=False) as gate:
        counted = current_usage(gate.replica.catch_up())
        by = ",".join(said.by) or DEFAULT_BY
        query = parse_query(
            by, said.since, "", LogTimes(gate), zone=configured_zone(), project=said.project, model=said.model
        )
        return results.usage_result(query.answer(gate.log, counted).shape(_MOST_ROWS))


def advice(error: FleetgateError) -> str:
    """What the model should do about an error, as a sentence; "" where the error itself says it."""
    if isinstance(error, NotFound):
        return "Use an ID that `submit` returned."
    if isinstance(error, StoreError):
        return "Do not start agents without asking. Tell the user to run `fleetgate doctor`."
    if isinstance(error, BadRequest | BadName):
        return "Correct the arguments and call the tool again."
    return "Tell the user."
