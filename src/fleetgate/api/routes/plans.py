"""The route of plan windows: how much of each is used, and how long it lasts (rule W3)."""

from __future__ import annotations

from fleetgate.api.router.route import get
from fleetgate.api.service import Service
from fleetgate.present.budgets.plan_windows import PlansShape, plans_json


@get("/v1/plans", summary="The windows of subscriptions: used, reset, runway")
async def plans(service: Service) -> PlansShape:
    state, moments = await service.look()
    return PlansShape(plans_json(state, moments))
