"""Routes that only look: the listings of the command line, as it prints them with `--json`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from fleetgate.api.answer_cache import Begun
from fleetgate.api.bodies import (
    CapsAnswer,
    ConfigAnswer,
    CooldownAnswer,
    HistoryAnswer,
    HoldersAnswer,
    HolderShape,
    Kind,
    LeasesAnswer,
    OverviewAnswer,
    SelectAnswer,
    TicketsAnswer,
    ValueShape,
    WorkClass,
)
from fleetgate.api.history_reader import unhurried
from fleetgate.api.metrics.time_series import SeriesShape
from fleetgate.api.router.route import ApiRequest, Parameter, get
from fleetgate.api.security.caller import ANYONE, Caller
from fleetgate.api.security.session_routes import session_of
from fleetgate.api.service import Service
from fleetgate.config.environment import Environment
from fleetgate.core.entities import NORMAL, Spec, Ticket
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.model_names import canonical, read_model, shown
from fleetgate.core.queue.positions import QueueView
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import LeaseView, capacity, lease_views, ticket_view
from fleetgate.gate.liveness import process_identity
from fleetgate.log.protocol import Log
from fleetgate.present import cap_listing
from fleetgate.present.effective_settings import values, warnings
from fleetgate.present.event_text import sentence
from fleetgate.present.json import listings
from fleetgate.present.json.events import TYPES, event_json
from fleetgate.present.json.project_scope import ProjectScope
from fleetgate.present.json.state import (
    BackoffShape,
    CapacityShape,
    LeaseShape,
    StatusShape,
    TicketShape,
    capacity_json,
    lease_json,
    ticket_json,
)
from fleetgate.present.limits.explanation import ExplanationShape, explanation_of, explanation_shape
from fleetgate.present.log_time import LogTimes
from fleetgate.present.model_choice import first_usable, unusable
from fleetgate.present.name_lookup import check_selector, find_id, kind_for
from fleetgate.present.request_text import label
from fleetgate.present.run_statistics import SumsShape, sum_up, sums_json
from fleetgate.present.search.queue_filter import QueueFilter

Limit = Annotated[int, Meta(ge=0, le=10_000, description="at most so many")]
Offset = Annotated[int, Meta(ge=0, le=1_000_000, description="leave out so many at the beginning")]
Models = Annotated[str, Meta(max_length=2_000, description="candidates, separated by commas")]
Selector = Annotated[str, Meta(min_length=1, max_length=300)]
PoolName = Annotated[str, Meta(min_length=1, max_length=300, description="as `/v1/status` lists it")]
Project = Annotated[str, Meta(max_length=100)]
Words = Annotated[str, Meta(max_length=300, description="words that a request must have, in any of its fields")]
AnyPool = Annotated[str, Meta(max_length=300, description="only those that this pool blocks")]
Seq = Annotated[int, Meta(ge=0, le=2**53, description="only what came after this sequence number")]
Types = Annotated[str, Meta(max_length=1_000, description="only these types, separated by commas")]
Hours = Annotated[float, Meta(gt=0, le=87_840)]
Minutes = Annotated[float, Meta(gt=0, le=1_440)]


@get("/v1/status", summary="How full every pool is; for agents, the pools of their project", role=ANYONE)
async def status(service: Service, caller: Caller) -> StatusShape:
    caller.must_read()
    state, moments = await service.look()
    if caller.project:
        return scope_of(service, caller, state, moments).status()
    return listings.status(state, moments, service.gate.host)


def scope_of(service: Service, caller: Caller, state: State, moments: LogTimes) -> ProjectScope:
    """What the key of an agent may see."""
    return ProjectScope(state, moments, service.gate.host, caller.project, caller.named_key)


@get("/v1/overview", summary="Status, line, leases and session in one answer", role=ANYONE)
async def overview(service: Service, request: ApiRequest, tickets: Limit = 200) -> OverviewAnswer:
    caller = request.caller
    caller.must_read()

    def begin_for_project(state: State, moments: LogTimes) -> Begun:
        scope = scope_of(service, caller, state, moments)
        status, line, held = _encode(scope.status()), scope.tickets()[:tickets], scope.leases()

        def finish() -> tuple[Raw, Raw, Raw]:
            return status, _encode([ticket_json(view, moments) for view in line]), _leases(held, moments)

        return Begun(len(line) + len(held), finish)

    def begin(state: State, moments: LogTimes) -> Begun:
        status = _encode(listings.status(state, moments, service.gate.host))
        line, held = QueueView(state, moments.now), lease_views(state, moments.now)

        def finish() -> tuple[Raw, Raw, Raw]:
            return status, _tickets(line, moments, 0, tickets), _leases(held, moments)

        return Begun(min(tickets, len(state.tickets)) + len(held), finish)

    if caller.project:
        key = ("overview", tickets, caller.project, caller.named_key)
        status, line, held = await service.shared.answer(key, begin_for_project)
    else:
        status, line, held = await service.shared.answer(("overview", tickets), begin)
    return OverviewAnswer(status, line, held, session_of(service, request))


def _tickets(line: QueueView, moments: LogTimes, offset: int, limit: int) -> Raw:
    return _encode([ticket_json(view, moments) for view in line.page(offset, limit)])


def _leases(held: list[LeaseView], moments: LogTimes) -> Raw:
    return _encode([lease_json(view, moments) for view in held])


def _encode(shape: object) -> Raw:
    return Raw(msgspec.json.encode(shape))


@get("/v1/tickets", summary="The queue, by expected start; all of it, or what matches", role=ANYONE)
async def tickets(
    service: Service,
    caller: Caller,
    limit: Limit = 200,
    offset: Offset = 0,
    text: Words = "",
    project: Project = "",
    pool: AnyPool = "",
    kind: Kind | None = None,
) -> TicketsAnswer:
    caller.must_read()
    own = caller.project
    wanted = QueueFilter(text, caller.project_for(project) if own else project, canonical(pool), kind or "")

    def begin(state: State, moments: LogTimes) -> Begun:
        line, backoffs = QueueView(state, moments.now), [] if own else listings.backoffs(state, moments)
        total, seq = scope_of(service, caller, state, moments).waiting if own else len(state.tickets), state.seq

        def finish() -> TicketsAnswer:
            if wanted == QueueFilter():
                return TicketsAnswer(_tickets(line, moments, offset, limit), backoffs, total, total, seq)  # type: ignore[arg-type]
            found = wanted.find(line)
            page = [ticket_json(view, moments) for view in found[offset : offset + limit]]
            return TicketsAnswer(page, backoffs, total, len(found), seq)

        return Begun(min(offset + limit, total) if wanted == QueueFilter() else total, finish)

    answer: TicketsAnswer = await service.shared.answer(("tickets", limit, offset, wanted, own), begin)
    return answer


@get("/v1/tickets/{ident}", summary="One ticket", role=ANYONE)
async def ticket(service: Service, caller: Caller, ident: str) -> TicketShape:
    state, moments = await service.look()
    caller.must_own(state, ident)
    view = ticket_view(state, find_id(state, ident), moments.now)
    if view is None:
        raise NotFound(f"{ident} is not in the queue: it has a slot")
    return ticket_json(view, moments)


@get("/v1/leases", summary="Every lease; for agents, those of their project", role=ANYONE)
async def leases(service: Service, caller: Caller) -> LeasesAnswer:
    caller.must_read()
    own = caller.project

    def begin(state: State, moments: LogTimes) -> Begun:
        scope = scope_of(service, caller, state, moments)
        held, seq = scope.leases() if own else lease_views(state, moments.now), state.seq
        return Begun(len(held), lambda: LeasesAnswer(_leases(held, moments), seq))  # type: ignore[arg-type]

    answer: LeasesAnswer = await service.shared.answer(("leases", own), begin)
    return answer


@get("/v1/leases/{ident}", summary="One lease", role=ANYONE)
async def lease(service: Service, caller: Caller, ident: str) -> LeaseShape:
    state, moments = await service.look()
    caller.must_own(state, ident)
    found = find_id(state, ident)
    view = next((view for view in lease_views(state, moments.now) if view.lease.id == found), None)
    if view is None:
        raise NotFound(f"{ident} is still in the queue and holds no slot")
    return lease_json(view, moments)


@get("/v1/holders", summary="Who holds and who waits, by process or client")
async def holders(service: Service) -> HoldersAnswer:
    state, _ = await service.look()
    found: dict[tuple[str, str], HolderShape] = {}
    for each in state.leases.values():
        shape = _holder(found, each.ticket, each.lives_with)
        shape.leases.append(each.id)
        shape.slots += each.ticket.spec.slots
    for waiting in state.tickets.values():
        _holder(found, waiting, "" if waiting.renew_ms else waiting.bound or waiting.holder).tickets.append(waiting.id)
    return HoldersAnswer(list(found.values()))


def _holder(found: dict[tuple[str, str], HolderShape], ticket: Ticket, process: str) -> HolderShape:
    key = (process, ticket.client)
    shape = found.get(key)
    if shape is None:
        host = process_identity.host_of(process or ticket.holder)
        gone = process_identity.is_gone(process) if process else None
        pid, client, command = process_identity.pid_of(process), ticket.client or None, label(ticket) or None
        shape = found[key] = HolderShape(host, pid, client, command, gone, [], [], 0)
    return shape


@get("/v1/capacity", summary="Is it worth asking now? Green, yellow or red", role=ANYONE)
async def get_capacity(
    service: Service,
    caller: Caller,
    models: Models = "",
    kind: Kind = "agents",
    project: Project = "",
    work_class: Annotated[WorkClass, Parameter("class")] | None = None,
) -> CapacityShape:
    project = caller.project_for(project) or "default"
    known = caller.class_for(work_class) or service.gate.settings.classes.get(project, NORMAL)
    own = caller.named_key
    spec = Spec(candidates(service, models), kind, 1, service.gate.host, project, work_class=known, access_key=own)
    if kind == "agents":  # agents that were started elsewhere count
        await service.gate.run_checks()
    state, moments = await service.look()
    found = capacity(state, spec, moments.now)
    if found.level != "green" and kind != "agents":  # before any refusal, the dead are looked for
        await service.gate.run_checks()
        state, moments = await service.look()
        found = capacity(state, spec, moments.now)
    return capacity_json(found, spec, moments)


def candidates(service: Service, models: str | list[str]) -> tuple[str, ...]:
    """The models that are named, else those of the config."""
    parts = models.split(",") if isinstance(models, str) else models
    named = tuple(str(read_model(part.strip())) for part in parts if part.strip())
    return named or service.gate.settings.models


@get("/v1/caps", summary="Every cap in force, and where it comes from")
async def get_caps(service: Service) -> CapsAnswer:
    state, _ = await service.look()
    return CapsAnswer(cap_listing.lines(state, Environment()))


@get("/v1/cooldown", summary="How long a released slot stays taken")
async def get_cooldown(service: Service, selector: Selector, kind: Kind | None = None) -> CooldownAnswer:
    selector = canonical(selector)
    state, _ = await service.look()
    check_selector(selector, state, service.gate.settings)
    return cooldown_of(state, selector, kind_for(state, selector, kind))


def cooldown_of(state: State, selector: str, kind: str, was_ms: int | None = None) -> CooldownAnswer:
    cap = state.rules.caps.get((kind, selector))
    cooldown_ms, source = cap_listing.cooldown(state, (kind, selector))
    return CooldownAnswer(selector, kind, cooldown_ms, source, cap is not None and cap.capped, was_ms)


@get("/v1/explain", summary="What is believed of a provider's limit, and why")
async def get_explanation(service: Service, pool: PoolName, kind: Kind | None = None) -> ExplanationShape:
    state, moments = await service.look()
    said = explanation_of(state, pool, kind, service.gate.host, moments.now)
    return explanation_shape(said, moments)


@get("/v1/backoffs", summary="Models and accounts that are not used for a while")
async def get_backoffs(service: Service) -> dict[str, list[BackoffShape]]:
    state, moments = await service.look()
    return {"backoffs": listings.backoffs(state, moments)}


@get("/v1/select", summary="The model to use now, by what is backed off", role=ANYONE)
async def get_select(service: Service, models: Models = "") -> SelectAnswer:
    state, moments = await service.look()
    named = state.accounts.expand(some_candidates(candidates(service, models)))
    missing = lacking(service, named)
    there = tuple(model for model in named if model not in missing)
    return selected(state, named, first_usable(state, there, moments.now), missing, moments)


def lacking(service: Service, models: tuple[str, ...]) -> dict[str, str]:
    """The models without credentials, and what each lacks."""
    return {model: lacks for model in models if (lacks := service.gate.credentials.missing(model))}


def some_candidates(models: tuple[str, ...]) -> tuple[str, ...]:
    if not models:
        raise BadRequest("no candidates: name them with `models`, or set `models` in the config")
    return models


def selected(
    state: State, models: tuple[str, ...], chosen: str | None, missing: dict[str, str], moments: LogTimes
) -> SelectAnswer:
    """rule O5."""
    if chosen is not None:
        return SelectAnswer(chosen)
    return SelectAnswer(None, [unusable(state, model, missing, moments) for model in models])


@get("/v1/history", summary="What happened")
async def history(service: Service, since: Seq = 0, limit: Limit = 500, types: Types = "") -> HistoryAnswer:
    wanted = event_types(types)
    state, moments = await service.look()
    last = state.seq
    return await service.archive.read(lambda log: _history(log, since, limit, wanted, moments, last))


def _history(log: Log, since: int, limit: int, wanted: tuple[type, ...], moments: LogTimes, last: int) -> HistoryAnswer:
    rows: list[object] = []
    first_seq = None
    more = False
    for seq, at, event in unhurried(log.history(since)):
        first_seq = first_seq or seq
        if wanted and not isinstance(event, wanted):
            continue
        if len(rows) == limit:
            more = True
            break
        rows.append({**event_json(seq, at, event, moments), "text": sentence(event, at)})
    return HistoryAnswer(_encode(rows), last, first_seq, more)  # type: ignore[arg-type]


def event_types(text: str) -> tuple[type, ...]:
    """The types of events that are named; () is all."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = next((name for name in names if name not in TYPES), None)
    if unknown is not None:
        raise BadRequest(f"types {shown(unknown)}: valid are {', '.join(TYPES)}")
    return tuple(TYPES[name] for name in names)


@get("/v1/metrics", summary="Finished runs summed up by model")
async def get_sums(service: Service, hours: Hours = 24.0) -> SumsShape:
    state, moments = await service.look()
    begin, last = moments.now - int(hours * 3_600_000), state.seq
    sums, since = await service.archive.read(lambda log: sum_up(log, begin, last, unhurried))
    return sums_json(hours, since, sums, moments)


@get("/v1/series", summary="The recent past, for charts")
async def series(service: Service, minutes: Minutes = 60.0) -> SeriesShape:
    return service.series.shape(minutes)


@get("/v1/config", summary="Every value in force, and where it comes from")
async def config(service: Service) -> ConfigAnswer:
    state, _ = await service.look()
    lines = cap_listing.lines(state, Environment())
    found = [ValueShape(**each.as_json()) for each in values(state, service.environment, service.loaded)]  # type: ignore[arg-type]
    return ConfigAnswer(found, lines, warnings(state, service.loaded, lines))
