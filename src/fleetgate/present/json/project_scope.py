"""What the key of an agent sees of the gate: its own project, and the pools in which that is active (rule E2).

Of other projects nothing is named. What they use of a shared pool is in its numbers, as in the reasons of requests that
wait for it.
"""

from __future__ import annotations

from fleetgate.core.access.keys import key_selector
from fleetgate.core.entities import Spec
from fleetgate.core.errors import NotFound
from fleetgate.core.model_names import shown
from fleetgate.core.queue.positions import QueueView, TicketView
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import LeaseView, lease_views, pool_views
from fleetgate.present.json.state import PoolShape, StatusShape, pool_json
from fleetgate.present.log_time import LogTimes


class ProjectScope:
    """The part of a state that one project may see; `key` is the name of the key that asks."""

    def __init__(self, state: State, moments: LogTimes, host: str, project: str, key: str) -> None:
        self._state = state
        self._moments = moments
        self._host = host
        self._project = project
        self._key = key_selector(key)

    def status(self) -> StatusShape:
        state, moments = self._state, self._moments
        return StatusShape(
            pools=self._pools(),
            backoffs=[],
            draining=[],
            running=sum(lease.ticket.spec.project == self._project for lease in state.leases.values()),
            waiting=self.waiting,
            at=moments.utc(moments.now),
            seq=state.seq,
        )

    @property
    def waiting(self) -> int:
        """How many of its requests wait."""
        return sum(ticket.spec.project == self._project for ticket in self._state.tickets.values())

    def tickets(self) -> list[TicketView]:
        """Its requests that wait, in the order of the queue."""
        line = QueueView(self._state, self._moments.now)
        return list(line.walk(lambda ticket: ticket.spec.project == self._project))

    def leases(self) -> list[LeaseView]:
        views = lease_views(self._state, self._moments.now)
        return [view for view in views if view.lease.ticket.spec.project == self._project]

    def must_use(self, target: str, kind: str | None) -> None:
        """Refuse a report about a pool or model of which the project has no slot. NotFound, which names no other."""
        for ident, lease in self._state.leases.items():
            spec = lease.ticket.spec
            if self._is_own(spec) and kind in (None, spec.kind):
                candidate = self._state.lease_candidates[ident]
                pools = (each for pool, _ in candidate.needs for each in (pool.id, pool.cap.selector.text))
                if target.replace("@default", "", 1) in (lease.model, *pools):
                    return
        raise NotFound(f"the project {self._project} has no slot of {shown(target)}: report what refused its requests")

    def sees_budget(self, name: str) -> bool:
        """Whether a budget is that of the project, or of the key."""
        return name.rpartition(" ")[0] in (f"project:{self._project}", self._key)

    def _pools(self) -> list[PoolShape]:
        """The pools in which the project has something or waits for something."""
        state = self._state
        used = [
            state.lease_candidates[ident] for ident, lease in state.leases.items() if self._is_own(lease.ticket.spec)
        ]
        used += [each for spec, queue in state.active_queues.items() if self._is_own(spec) for each in queue.candidates]
        keys = {(pool.kind, pool.id) for candidate in used for pool, _ in candidate.needs}
        shapes = [pool_json(view, self._moments) for view in pool_views(state, self._moments.now, self._host)]
        found = [shape for shape in shapes if (shape.kind, shape.pool) in keys and self._may_see(shape)]
        for shape in found:
            shape.upstream = None  # it names the process that asks
        return found

    def _is_own(self, spec: Spec) -> bool:
        return spec.project == self._project

    def _may_see(self, shape: PoolShape) -> bool:
        return not shape.pool.startswith("key:") or shape.pool == self._key
