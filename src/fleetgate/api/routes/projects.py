"""The route of projects: how many requests of each are running and waiting, and their fair shares."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.api.router.route import get
from fleetgate.api.security.caller import ANYONE, Caller
from fleetgate.api.service import Service
from fleetgate.present.json.projects import ProjectShape, list_projects


class ProjectsAnswer(Struct):
    projects: list[ProjectShape]
    seq: int


@get("/v1/projects", summary="Running and waiting requests by project, and fair shares", role=ANYONE)
async def projects(service: Service, caller: Caller) -> ProjectsAnswer:
    caller.must_read()
    state, moments = await service.look()
    return ProjectsAnswer(list_projects(state, moments, caller.project), state.seq)
