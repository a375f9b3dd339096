"""The operations on leases: acquire, renew, release. Plain functions, which the routes and the fast path both call."""

from __future__ import annotations

from fleetgate.api.answer_cache import Begun
from fleetgate.api.bodies import (
    AcquireBody,
    DeferredAnswer,
    LeaseAnswer,
    ReleaseAnswer,
    ReleaseBody,
    RenewAnswer,
    StopAnswer,
    UsageBody,
)
from fleetgate.api.errors import conflict
from fleetgate.api.leases.acquire_command import read_acquire
from fleetgate.api.security.caller import Caller
from fleetgate.api.service import Service
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.access.keys import OPERATOR
from fleetgate.core.entities import Lease, Reason, Spec
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.model_names import shown
from fleetgate.core.queue.positions import QueueView, TicketView, row_of
from fleetgate.core.state.state import State
from fleetgate.core.usage import Usage
from fleetgate.gate.library.lease_handles import Deferred
from fleetgate.gate.library.usage_arguments import REFUSED, UNUSED, with_cost
from fleetgate.gate.request_ids import ALPHABET, LENGTH
from fleetgate.gate.serving.client_renewals import StillQueued, WatchConnection, not_in_project
from fleetgate.present.json.state import reason_json, seconds
from fleetgate.present.lease_owner import why_not_to_release, why_not_to_stop
from fleetgate.present.log_time import LogTimes, offset_ms
from fleetgate.present.name_lookup import entered, find_id
from fleetgate.present.wall_time import utc

WITH_A_WAIT = ("rate_limited", "usage_window", "quota", "overloaded", "auth", "server_error")


async def ask(
    service: Service, body: AcquireBody, caller: Caller, client: str, hung_up: WatchConnection
) -> tuple[int, LeaseAnswer | DeferredAnswer]:
    """rule H2: a lease, a place in the queue, or a refusal; with the status that goes with it."""
    if body.wait_s > 0:
        service.check_room_to_wait()
    command = read_acquire(service.gate, body, caller, client)
    if body.id is not None and caller.project:
        state, _ = await service.look()
        if body.id in state.leases or body.id in state.tickets:
            caller.must_own(state, body.id)
    if body.estimate is not None:
        prices = service.gate.settings.prices
        command.estimate = await with_cost(body.estimate.usage(), command.spec.models, prices)
    own = caller.project
    answer = await service.clients.ask(command, body.wait_s, hung_up, new=body.id is None, only_project=own)
    if isinstance(answer, Lease):
        if own and answer.ticket.spec.project != own:
            raise not_in_project(answer.id, own)  # of another client that named the same id at the same moment
        return 201, lease_answer(answer, service)
    if isinstance(answer, Deferred):
        state, moments = await service.look()
        reason = answer.reason
        if reason.code == "key_taken" and not caller.owns(state, state.keys.get(body.key, "")):
            reason = Reason(reason.code, f"the key {shown(body.key)} is taken")  # by whom is not for this caller
        return 200, DeferredAnswer(True, False, None, reason_json(reason, moments), None, None, None)
    if await _is_another_projects(service, caller, answer.id):
        raise not_in_project(answer.id, own)  # another process of the service has taken one with the same id
    queued = await _in_the_queue(service, answer, body.queue is not False)
    if body.queue is False:
        await service.gate.decide(cmd.Cancel(answer.id, "its client, which did not want to wait longer"))
    return queued


async def _in_the_queue(service: Service, answer: StillQueued, stays: bool) -> tuple[int, LeaseAnswer | DeferredAnswer]:
    state, moments = await service.look()
    ticket = state.tickets.get(answer.id)
    places: dict[str, TicketView] = {}
    if ticket is not None:
        places = await _places(service, ticket.spec, state, moments.now)
        state, moments = await service.look()
    lease = state.leases.get(answer.id)
    if lease is not None and lease.claimed and stays:
        return 201, lease_answer(lease, service)  # in the last moment
    view = places.get(answer.id)
    if view is None or answer.id not in state.tickets:
        raise NotFound(f"{answer.id} has left the queue")
    reason, estimate = reason_json(view.reason, moments), seconds(view.estimate_ms)
    if not stays:
        return 200, DeferredAnswer(
            True, False, None, reason, view.position, estimate, None, view.of or None, view.pool or None
        )
    grace_s = service.clients.grace_s
    return 202, DeferredAnswer(
        True, True, answer.id, reason, view.position, estimate, grace_s, view.of or None, view.pool or None
    )


async def _places(service: Service, spec: Spec, state: State, now: int) -> dict[str, TicketView]:
    """Where all stand who stand in a row with this one: when many wait, many polls end at the same time."""

    def begin(state: State, moments: LogTimes) -> Begun:
        line, row = QueueView(state, moments.now, spec), row_of(state, spec, moments.now)
        return Begun(line.size_of(row), lambda: line.places(row))

    found: dict[str, TicketView] = await service.shared.answer(("places", row_of(state, spec, now)), begin)
    return found


def lease_answer(lease: Lease, service: Service) -> LeaseAnswer:
    ends_at = utc(lease.ends_at + offset_ms(service.gate)) if lease.ends_at else None
    return LeaseAnswer(lease.id, lease.model or None, lease.waited_ms / 1000, lease.ticket.renew_ms / 1000, ends_at)


async def _is_another_projects(service: Service, caller: Caller, ident: str) -> bool:
    """Whether a caller for one project may not know of this lease or ticket; also when there is none."""
    if not caller.project:
        return False
    state, _ = await service.look()
    return not caller.owns(state, ident)


async def renew(service: Service, ident: str, caller: Caller) -> RenewAnswer:
    if await _is_another_projects(service, caller, ident) and not service.clients.has_ended(ident, caller.project):
        raise not_in_project(ident, caller.project)
    lease = await service.clients.renew(ident)
    ends_at = utc(lease.ends_at + offset_ms(service.gate)) if lease.ends_at else None
    return RenewAnswer(lease.id, lease.ticket.renew_ms / 1000, ends_at)


async def release(service: Service, given: str, body: ReleaseBody, caller: Caller, by: str) -> ReleaseAnswer:
    """Harmless when it is over already (rule L1)."""
    if body.retry_after_s is not None and body.outcome not in WITH_A_WAIT:
        raise BadRequest(f"retry_after_s goes with an outcome of {', '.join(WITH_A_WAIT)}")
    if body.force and body.outcome is not None:
        raise BadRequest("force has no outcome: leave out one of the two")
    if body.force and body.usage is not None:
        raise BadRequest("force has no usage, what was reserved counts as used: leave out one of the two")
    if body.force:
        caller.must_be(OPERATOR)
    if await _is_another_projects(service, caller, given):
        return ReleaseAnswer(given, False, None, None, body.force, 0)  # as one that has ended
    ident = given
    if not (len(given) == LENGTH and given in service.clients):
        found = await _find(service, given)
        if found is None:
            return ReleaseAnswer(given, False, None, None, body.force, 0)
        ident = found
    command: cmd.Command = cmd.Reclaim(ident, by)
    if not body.force:
        await _check_owner(service, ident)
        after_ms = None if body.retry_after_s is None else int(body.retry_after_s * 1000)
        how: str = body.outcome or "ok"
        command = cmd.Release(ident, how, after_ms, usage=await _usage(service, ident, how, body.usage))
    (decided,) = await service.gate.decide(command)
    if decided.error is not None and not isinstance(decided.error, NotFound):
        raise decided.error
    service.clients.forget(ident, "forced" if body.force else "released")
    for event in decided.events:
        if isinstance(event, ev.Released | ev.Reclaimed) and event.id == ident:
            outcome = event.outcome if isinstance(event, ev.Released) else None
            return ReleaseAnswer(ident, True, outcome, event.held_ms / 1000, body.force, entered(decided.events))
    return ReleaseAnswer(ident, False, None, None, body.force, 0)


async def stop(service: Service, given: str, caller: Caller, by: str) -> StopAnswer:
    """Have the agent or job of a lease stopped (rule L6). Harmless when it has ended."""
    if await _is_another_projects(service, caller, given):
        return StopAnswer(given, False, False, None)  # as one that has ended
    ident = await _find(service, given)
    if ident is None:
        return StopAnswer(given, False, False, None)
    state, _ = await service.look()
    lease = state.leases.get(ident)
    if lease is None:
        return StopAnswer(ident, False, False, None)
    if why_not := why_not_to_stop(lease):
        raise conflict(why_not)
    if lease.ticket.job:
        await service.jobs.do(lambda jobs: jobs.cancel(ident, by))
        return StopAnswer(ident, True, True, by)
    await service.change(cmd.Stop(ident, by))
    return StopAnswer(ident, True, False, lease.stop_by or by)


async def _usage(service: Service, ident: str, outcome: str, told: UsageBody | None) -> Usage | None:
    """What counts as used; None: not known, and what was reserved counts."""
    if told is None:
        return UNUSED if outcome in REFUSED else None
    state, _ = await service.look()
    lease = state.leases.get(ident)
    return await with_cost(told.usage(), [lease.model] if lease is not None else [], service.gate.settings.prices)


async def _check_owner(service: Service, ident: str) -> None:
    """Refuse to release, over HTTP, the lease of a process that is still running."""
    if ident in service.clients:
        return  # it is a client's, and renewed
    state, _ = await service.look()
    lease = state.leases.get(ident)
    refusal = why_not_to_release(lease) if lease is not None else ""
    if refusal:
        raise conflict(refusal)


async def _find(service: Service, given: str) -> str | None:
    """The lease that is meant; None when it has ended. Only a whole id can be known to have been one."""
    state, _ = await service.look()
    if given not in state.leases and given not in state.tickets:
        whole = len(given) == LENGTH and all(char in ALPHABET for char in given)
        if whole or service.clients.has_ended(given):
            return None
    ident = find_id(state, given)
    if ident in state.tickets:
        raise conflict(f"{ident} is still in the queue and holds no slot: DELETE /v1/tickets/{ident} takes it out")
    return ident
