"""What one frame shows: the state at one moment, as views."""

from __future__ import annotations

from typing import NamedTuple

from fleetgate.cli.commands.status import idle_caps
from fleetgate.core.pools.backoff import Backoff
from fleetgate.core.queue.positions import QueueView
from fleetgate.core.state.state import State
from fleetgate.core.views.plan_views import PlanView, plan_views
from fleetgate.core.views.pool_and_lease_views import LeaseView, PoolView, TicketView, lease_views, pool_views
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.present.account_set_text import all_sets
from fleetgate.present.log_time import LogTimes

_MOST_TICKETS = 1_000  # more than anyone scrolls through; each frame lists them


class GateView(NamedTuple):
    """Pools, line, leases and backoffs at `moments.now`."""

    host: str
    moments: LogTimes
    pools: list[PoolView]
    tickets: list[TicketView]  # the first of them
    waiting: int
    leases: list[LeaseView]
    backoffs: list[Backoff]
    idle: list[str]  # caps that have no pool yet
    plans: list[PlanView]
    sets: list[str]  # of accounts, in sentences


def snapshot(gate: DirectGate, state: State) -> GateView:
    moments = LogTimes(gate)
    pools = pool_views(state, moments.now, gate.host)
    return GateView(
        gate.host,
        moments,
        pools,
        QueueView(state, moments.now).page(0, _MOST_TICKETS),
        len(state.tickets),
        lease_views(state, moments.now),
        [backoff for _, backoff in sorted(state.backoffs.items())],
        idle_caps(state, pools),
        plan_views(state, moments.now),
        all_sets(state),
    )
