"""Whole listings of a state, as `fleetgate status`, `queue`, `ps` and `backoff ls` give them with `--json`."""

from __future__ import annotations

from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import lease_views, pool_views, ticket_views
from fleetgate.present.budgets.plan_windows import plans_json
from fleetgate.present.json.state import (
    BackoffShape,
    LeaseShape,
    StatusShape,
    TicketShape,
    account_set_json,
    backoff_json,
    lease_json,
    pool_json,
    ticket_json,
)
from fleetgate.present.log_time import LogTimes


def status(state: State, moments: LogTimes, host: str) -> StatusShape:
    """Rule O1."""
    return StatusShape(
        pools=[pool_json(view, moments) for view in pool_views(state, moments.now, host)],
        backoffs=backoffs(state, moments),
        draining=sorted(state.draining),
        running=len(state.leases),
        waiting=len(state.tickets),
        at=moments.utc(moments.now),
        seq=state.seq,
        plans=plans_json(state, moments),
        account_sets=[account_set_json(state, rule) for _, rule in sorted(state.accounts.rules.items())],
    )


def backoffs(state: State, moments: LogTimes) -> list[BackoffShape]:
    return [backoff_json(backoff, moments) for _, backoff in sorted(state.backoffs.items())]


def tickets(state: State, moments: LogTimes) -> list[TicketShape]:
    """Rule O2."""
    return [ticket_json(view, moments) for view in ticket_views(state, moments.now)]


def leases(state: State, moments: LogTimes) -> list[LeaseShape]:
    """Rule O3."""
    return [lease_json(view, moments) for view in lease_views(state, moments.now)]
