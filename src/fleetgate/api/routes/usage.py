"""The route of usage: `GET /v1/usage`, as `fleetgate usage --json` prints it (rule U4)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fleetgate.api.history_reader import unhurried
from fleetgate.api.router.route import get
from fleetgate.api.security.caller import ANYONE, Caller
from fleetgate.api.service import Service
from fleetgate.present.usage.period import zone_of
from fleetgate.present.usage.query import current_usage, parse_query
from fleetgate.present.usage.report import DEFAULT_BY, DEFAULT_SINCE, DIMENSIONS, UsageShape

By = Annotated[str, Meta(max_length=200, description=f"any of {', '.join(DIMENSIONS)}, separated by commas")]
Moment = Annotated[str, Meta(max_length=100, description="an age (7d), a date or time (RFC 3339), today or yesterday")]
Project = Annotated[str, Meta(max_length=100, description="only this project")]
Models = Annotated[str, Meta(max_length=300, description="only these models: a model or a selector of models")]
Rows = Annotated[int, Meta(ge=1, le=10_000, description="at most so many rows; `total` covers all of them")]


@get("/v1/usage", summary="Tokens and cost of a period; for agents, of their project", role=ANYONE)
async def usage(
    service: Service,
    caller: Caller,
    by: By = DEFAULT_BY,
    since: Moment = DEFAULT_SINCE,
    until: Moment = "",
    project: Project = "",
    model: Models = "",
    limit: Rows = 10_000,
) -> UsageShape:
    caller.must_read()
    if caller.project:
        project = caller.project_for(project)
    state, moments = await service.look()
    zone = zone_of(service.gate.settings)
    query = parse_query(by, since, until, moments, zone=zone, project=project, model=model)
    counted = current_usage(state)
    return await service.archive.read(lambda log: query.answer(log, counted, unhurried).shape(limit))
