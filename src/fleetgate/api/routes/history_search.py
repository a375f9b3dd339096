"""The route that searches the history, newest event first: the dashboard's Events page."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from fleetgate.api.history_reader import unhurried
from fleetgate.api.router.route import get
from fleetgate.api.routes.read import Types, event_types
from fleetgate.api.service import Service
from fleetgate.present.json.events import TYPES
from fleetgate.present.search.history_search import HistorySearch
from fleetgate.present.wall_time import parse_since_ms

Words = Annotated[str, Meta(max_length=300, description="words that the sentence, an ID, a command or a name contains")]
Moment = Annotated[str, Meta(max_length=40, description="RFC 3339, or an age such as 2h")]
Before = Annotated[int | None, Meta(ge=1, le=2**53, description="`next_before` of the answer before")]
Events = Annotated[int, Meta(ge=1, le=1_000, description="at most so many")]


class HistorySearchAnswer(Struct):
    """Events, newest first. `next_before` is null when the beginning of the history was reached."""

    events: list[dict[str, Any]]
    searched: int
    next_before: int | None
    types: list[str]  # all that there are


@get("/v1/history/search", summary="Search the history, newest first")
async def search_history(
    service: Service,
    text: Words = "",
    types: Types = "",
    since: Moment = "",
    until: Moment = "",
    before: Before = None,
    limit: Events = 100,
) -> HistorySearchAnswer:
    wanted = event_types(types)
    state, moments = await service.look()

    def at(moment: str, name: str) -> int:
        return parse_since_ms(moment, name) - moments.offset_ms if moment else 0

    search = HistorySearch(tuple(text.lower().split()), wanted, at(since, "since"), at(until, "until"))
    end = state.seq + 1 if before is None else min(before, state.seq + 1)
    found = await service.archive.read(lambda log: search.find(log, end, limit, moments, unhurried))
    return HistorySearchAnswer(found.events, found.searched, found.next_before, sorted(TYPES))
