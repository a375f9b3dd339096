"""The routes of rates and budgets: list, set, unset, remove, reset, add (rule V7).

The name of a budget contains blanks and slashes (`project:web usd/day`); in a path it is URL-encoded.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import unquote

from msgspec import Meta, Struct

from fleetgate.api.bodies import JsonBody, Name
from fleetgate.api.router.route import delete, get, post
from fleetgate.api.routes.read import scope_of
from fleetgate.api.security.caller import ANYONE, Caller
from fleetgate.api.service import Service
from fleetgate.config.budget_rules import read_amount
from fleetgate.config.errors import BadValue
from fleetgate.core import commands as cmd
from fleetgate.core.errors import BadRequest
from fleetgate.core.views.budget_views import budget_views
from fleetgate.front.asgi import App
from fleetgate.present.budgets.listing import (
    BudgetShape,
    BudgetsShape,
    BudgetUnsetShape,
    budget_json,
    budgets_json,
    find_budget,
    find_rule,
    find_runtime_rule,
    read_budget,
    unset_json,
)
from fleetgate.present.name_lookup import check_provider, entered
from fleetgate.present.wall_time import parse_until_ms

_PREFIX = "/v1/budgets/"
Amount = Annotated[float, Meta(gt=0, le=10**15)] | Annotated[str, Meta(min_length=1, max_length=40)]
BudgetName = Annotated[
    str, Meta(max_length=900, description="the name of a budget as `GET /v1/budgets` lists it, URL-encoded")
]


class BudgetBody(JsonBody):
    """What `fleetgate budget set` says on its command line. Amounts of usd are dollars."""

    selector: Name
    unit: Literal["calls", "input", "output", "tokens", "usd"]
    amount: Amount
    per: Annotated[str, Meta(min_length=1, max_length=40)]
    burst: Amount | None = None
    when_empty: Literal["hold", "stop", "fallback", "warn"] = "hold"
    estimate: Literal["expected", "max"] = "expected"


class BudgetMoreBody(JsonBody):
    """How much more, and until when: RFC 3339, a time such as 18:00, or a duration such as 2h."""

    amount: Amount
    until: Annotated[str, Meta(min_length=1, max_length=40)] | None = None


class BudgetsChangedAnswer(Struct):
    """The budgets that were set, as far as something of them was used or they have one instance."""

    budgets: list[BudgetShape]
    entered: int


class BudgetChangedAnswer(Struct):
    budget: BudgetShape
    entered: int


class BudgetRemovedAnswer(Struct):
    selector: str
    unit: str
    per: str
    entered: int


@get("/v1/budgets", summary="Every rate and budget, and what is left of it; for agents, their own", role=ANYONE)
async def budgets(service: Service, caller: Caller) -> BudgetsShape:
    caller.must_read()
    state, moments = await service.look()
    found = budgets_json(state, moments)
    if caller.project:
        scope = scope_of(service, caller, state, moments)
        found.budgets = [each for each in found.budgets if scope.sees_budget(each.name)]
    return found


@post("/v1/budgets", summary="Set a rate or budget", status=200)
async def set_budget(service: Service, data: BudgetBody) -> BudgetsChangedAnswer:
    rule = read_budget(
        data.selector,
        data.unit,
        data.amount,
        data.per,
        burst=data.burst,
        when_empty=data.when_empty,
        estimate=data.estimate,
    )
    state, _ = await service.look()
    if ":" not in rule.selector:
        check_provider(rule.selector, state, service.gate.settings)
    events = await service.change(cmd.SetBudget(rule))
    state, moments = await service.look()
    key = (rule.selector, rule.unit, rule.per)
    found = [view for view in budget_views(state, moments.now) if (view.selector, view.unit, view.per) == key]
    return BudgetsChangedAnswer([budget_json(view, moments) for view in found], entered(events))


@post("/v1/budgets/{name}/reset", summary="Count a budget from zero again", status=200)
async def reset_budget(service: Service, name: BudgetName) -> BudgetChangedAnswer:
    state, moments = await service.look()
    view = find_budget(state, unquote(name), moments.now)
    return await _changed(service, view.name, cmd.ResetBudget(view.name))


@post("/v1/budgets/{name}/unset", summary="Use the config file's rate or budget again", status=200)
async def unset_budget(service: Service, name: BudgetName) -> BudgetUnsetShape:
    state, moments = await service.look()
    key = find_runtime_rule(state, unquote(name), moments.now)
    events = await service.change(cmd.UnsetBudget(*key))
    state, _ = await service.look()
    return unset_json(state, key, entered(events))


@post("/v1/budgets/{name}/add", summary="Allow more than a budget has", status=200)
async def add_to_budget(service: Service, name: BudgetName, data: BudgetMoreBody) -> BudgetChangedAnswer:
    state, moments = await service.look()
    view = find_budget(state, unquote(name), moments.now)
    if data.until is not None and view.rate:
        raise BadRequest(f"until: {view.name} is a rate, which has this much more once; leave until out")
    until = 0 if data.until is None else parse_until_ms(data.until, "until") - moments.offset_ms
    return await _changed(service, view.name, cmd.AddBudget(view.name, _amount(view.unit, data.amount), until))


async def _changed(service: Service, name: str, command: cmd.Command) -> BudgetChangedAnswer:
    events = await service.change(command)
    state, moments = await service.look()
    return BudgetChangedAnswer(budget_json(find_budget(state, name, moments.now), moments), entered(events))


@delete("/v1/budgets/{name}", summary="Remove a rate or budget, even one of the config file", status=200)
async def remove_budget(service: Service, name: BudgetName) -> BudgetRemovedAnswer:
    state, moments = await service.look()
    rule = find_rule(state, unquote(name), moments.now)
    events = await service.change(cmd.RemoveBudget(rule.selector, rule.unit, rule.per))
    return BudgetRemovedAnswer(rule.selector, rule.unit, rule.per, entered(events))


def with_encoded_names(app: App) -> App:
    """The same application, which gets the paths of budgets as they were sent: `%2F` in a name divides nothing."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_PREFIX):
            scope = {**scope, "path": scope["raw_path"].decode("latin-1")}
        await app(scope, receive, send)

    return call


def _amount(unit: str, value: object) -> int:
    try:
        return read_amount(unit, value, "amount")
    except BadValue as error:
        raise BadRequest(str(error)) from error
