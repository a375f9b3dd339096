"""The routes that change the queue: cancel a ticket, move it, give it a priority.

The ticket is looked up first; a name that means no ticket changes nothing.
"""

from __future__ import annotations

from fleetgate.api.bodies import BumpAnswer, BumpBody, CancelAnswer, CancelBody
from fleetgate.api.errors import conflict
from fleetgate.api.router.route import ApiRequest, delete, post
from fleetgate.api.security.caller import Caller
from fleetgate.api.service import Service
from fleetgate.core import commands as cmd
from fleetgate.core.access.keys import AGENT
from fleetgate.core.views.pool_and_lease_views import ticket_view
from fleetgate.present.name_lookup import find_id, succeeded, waiting_ticket, whose


@delete("/v1/tickets/{ident}", summary="Cancel a ticket", status=200, role=AGENT)
async def cancel_one(service: Service, request: ApiRequest, ident: str) -> CancelAnswer:
    return await _cancel(service, request.caller, [ident], request.caller.author)


@post("/v1/tickets/cancel", summary="Cancel tickets, all or none", status=200, role=AGENT)
async def cancel(service: Service, request: ApiRequest, data: CancelBody) -> CancelAnswer:
    return await _cancel(service, request.caller, data.ids, request.caller.author)


async def _cancel(service: Service, caller: Caller, idents: list[str], by: str) -> CancelAnswer:
    state, _ = await service.look()
    for ident in idents:
        caller.must_own(state, ident)
    tickets = list(dict.fromkeys(waiting_ticket(state, ident).id for ident in idents))
    decided = await service.gate.decide(*(cmd.Cancel(ident, by) for ident in tickets))
    done = [ident for ident, each in zip(tickets, decided, strict=True) if each.error is None]
    if not done:
        succeeded(decided)  # it entered or left since we looked: say so
    return CancelAnswer(done)


@post("/v1/tickets/{ident}/bump", summary="Move a ticket to the front, or give it a priority", status=200)
async def bump(service: Service, ident: str, data: BumpBody | None = None) -> BumpAnswer:
    state, _ = await service.look()
    found = find_id(state, ident)
    if found in state.leases:
        raise conflict(f"{found} is not in the queue: it has a slot already, {whose(state.leases[found])}")
    priority = data.priority if data is not None else None
    level = state.tickets[found].priority if priority is None else priority
    await service.change(cmd.Bump(found, priority), durable=False)
    state, moments = await service.look()
    view = ticket_view(state, found, moments.now)
    if view is None:
        return BumpAnswer(found, None, level, True)
    return BumpAnswer(found, view.position, level, False, view.of or None, view.pool or None)
