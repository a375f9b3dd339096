"""`/v1/jobs`: what `fleetgate submit`, `jobs`, `show`, `logs`, `cancel`, `retry` and `approve` do.

Who may submit may run anything as the service's user: it needs the token, and can be switched off. What a job printed
is only for clients with the token, since its files are private.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from fleetgate.api.errors import RequestRefused
from fleetgate.api.jobs.bodies import JobBody, JobsBody, JobsSubmitted
from fleetgate.api.router.route import ApiRequest, ApiResponse, DocumentedAnswer, Parameter, get, post
from fleetgate.api.routes.read import Limit, Offset
from fleetgate.api.security.caller import ANYONE, Caller
from fleetgate.api.service import Service
from fleetgate.core.access.keys import AGENT
from fleetgate.core.errors import FleetgateError, NotFound
from fleetgate.core.model_names import shown
from fleetgate.present.json.jobs import JobFilter, JobShape, JobsShape, OutputShape, SubmittedShape

PAGE_BYTES = 256 * 1024

States = Annotated[
    str, Parameter("state"), Meta(max_length=200, description="only in these states, separated by commas")
]
Part = Annotated[str, Meta(max_length=200, description="filter by name or command (substring)")]
Project = Annotated[str, Meta(max_length=100)]
Within = Annotated[float, Meta(gt=0, le=100_000_000, description="only those submitted within so many seconds")]
All = Annotated[bool, Parameter("all"), Meta(description="also those that ended more than a day ago")]
After = Annotated[str, Meta(max_length=40, description="`next` of the answer before")]
Bytes = Annotated[int, Meta(ge=1, le=1 << 20, description="about so many bytes, and at least one record")]
Tail = Annotated[int, Meta(ge=0, le=1 << 20, description="begin so many bytes before the end")]
Wait = Annotated[float, Meta(ge=0, le=60, description="how long to wait where there is nothing new")]
Stream = Annotated[Literal["", "out", "err", "fleetgate"], Meta(description="only this stream")]


@get("/v1/jobs", summary="What runs, what waits and why, what has ended", role=ANYONE)
async def jobs(
    service: Service,
    caller: Caller,
    states: States = "",
    project: Project = "",
    name: Part = "",
    since_s: Within | None = None,
    everything: All = False,
    limit: Limit = 200,
    offset: Offset = 0,
) -> JobsShape:
    chosen = tuple(word.strip() for word in states.split(",") if word.strip())
    wanted = JobFilter(chosen, caller.project_for(project), name, since_s, everything)
    return await service.jobs.page(wanted, offset, limit)


@get("/v1/jobs/{ident}", summary="One job", role=ANYONE)
async def job(service: Service, caller: Caller, ident: str) -> JobShape:
    return await _own_job(service, caller, ident)


@get("/v1/jobs/{ident}/output", summary="What a job printed; with `wait_s`, as it prints it", role=AGENT)
async def output(
    service: Service,
    caller: Caller,
    ident: str,
    after: After = "",
    limit: Bytes = PAGE_BYTES,
    tail: Tail | None = None,
    stream: Stream = "",
    wait_s: Wait = 0.0,
) -> OutputShape:
    if caller.project:  # the output of a run is for those who may see all projects
        await _own_job(service, caller, ident)
    if after and tail is not None:
        raise RequestRefused(400, "bad_request", "after and tail: valid is one of the two", field="tail")
    return await service.jobs.output(ident, after, limit, tail, stream, wait_s, service.stopping)


@post(
    "/v1/jobs",
    summary="Leave work in the line, to be done by a worker",
    answers={200: DocumentedAnswer(SubmittedShape, "One with this key is there")},
    role=AGENT,
)
async def submit(service: Service, request: ApiRequest, data: JobBody) -> ApiResponse[SubmittedShape]:
    _check_may_submit(service)
    caller = request.caller
    said = [_said(data, caller)]
    (one,) = await service.jobs.do(lambda jobs: jobs.submit(said, caller.author, caller.named_key, caller.project))
    return ApiResponse(one, status=201 if one.new else 200)


@post("/v1/jobs/batch", summary="Many jobs in one transaction, all or none", role=AGENT)
async def submit_many(service: Service, request: ApiRequest, data: JobsBody) -> JobsSubmitted:
    _check_may_submit(service)
    caller = request.caller
    said = [_said(each, caller) for each in data.jobs]
    return JobsSubmitted(
        await service.jobs.do(lambda jobs: jobs.submit(said, caller.author, caller.named_key, caller.project))
    )


def _said(body: JobBody, caller: Caller) -> dict[str, Any]:
    """A job as its client describes it, within what the client's key allows."""
    return body.said() | {
        name: value
        for name, value in (
            ("project", caller.project_for(body.project)),
            ("class", caller.class_for(body.work_class)),
            ("priority", caller.priority_for(body.priority)),
        )
        if value
    }


async def _own_job(service: Service, caller: Caller, ident: str) -> JobShape:
    """A job that the caller may see. For one project, only a whole id counts, and others are not there."""
    if not caller.project:
        return await service.jobs.do(lambda jobs: jobs.one(ident))
    try:
        job = await service.jobs.do(lambda jobs: jobs.one(ident))
    except FleetgateError:
        job = None
    if job is None or job.project != caller.project or job.id != ident:
        raise NotFound(f"no job {shown(ident)} of the project {caller.project}")
    return job


def _check_may_submit(service: Service) -> None:
    if not service.jobs.may_submit:
        raise RequestRefused(
            403,
            "submit_off",
            "jobs are not submitted over HTTP here: `submit = true` under [serve] in the config allows it",
        )


@post("/v1/jobs/{ident}/cancel", summary="Take a job out of the queue, or end it", status=200, role=AGENT)
async def cancel(service: Service, request: ApiRequest, ident: str) -> JobShape:
    await _own_job(service, request.caller, ident)
    by = request.caller.author
    return await service.jobs.do(lambda jobs: jobs.cancel(ident, by))


@post("/v1/jobs/{ident}/retry", summary="Run a finished job again", status=200, role=AGENT)
async def retry(service: Service, request: ApiRequest, ident: str) -> JobShape:
    await _own_job(service, request.caller, ident)
    caller = request.caller
    return await service.jobs.do(lambda jobs: jobs.retry(ident, caller.author, caller.key))


@post("/v1/jobs/{ident}/approve", summary="Let a job run that was to be confirmed", status=200)
async def approve(service: Service, request: ApiRequest, ident: str) -> JobShape:
    by = request.caller.author
    return await service.jobs.do(lambda jobs: jobs.approve(ident, by))
