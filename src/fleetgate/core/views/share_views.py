"""Fair shares as people see them: what part of each pool a project or a key has, and what it is entitled to.

A project is active in a pool while it has slots there, or waits for some. The projects that are active in a pool are
entitled to parts of it by their weights (rule W6). A pool in which only one project is active is not shared, and is not
listed. An access key has no weight of its own: it is entitled to the part of its project, with the others there.
"""

from __future__ import annotations

from typing import NamedTuple

from fleetgate.core.entities import Spec
from fleetgate.core.pools.effective_caps import UNLIMITED
from fleetgate.core.pools.pool import Pool
from fleetgate.core.queue.queue import Candidate
from fleetgate.core.state.state import State


class PoolShare(NamedTuple):
    """The part of a pool that a project or a key has, with weights as the measure of what it is entitled to."""

    pool: str
    kind: str
    slots: int  # that it has
    of: int  # that all projects have
    weight: int
    weights: int  # of all projects that are active there

    @property
    def part(self) -> float | None:
        """Its part of the slots in use; None while none is in use."""
        return self.slots / self.of if self.of else None

    @property
    def entitled(self) -> float:
        return self.weight / self.weights

    @property
    def shortage(self) -> float:
        """How much less than its fair share it has; negative for one that has more."""
        return self.entitled - (self.part or 0.0)


class _Users:
    """Who is active in one pool, with the slots of each project and of each key."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.projects: dict[str, int] = {}
        self.keys: dict[str, int] = {}

    def add(self, spec: Spec, slots: int) -> None:
        self.projects[spec.project] = self.projects.get(spec.project, 0) + slots
        if spec.access_key:
            self.keys[spec.access_key] = self.keys.get(spec.access_key, 0) + slots


class FairShares:
    """The shares of all projects and keys at one moment; of each, the pool where it is the shortest comes first."""

    def __init__(self, state: State) -> None:
        pools: dict[str, _Users] = {}
        for ident, lease in state.leases.items():
            _add(pools, state.lease_candidates[ident], lease.ticket.spec, lease.ticket.spec.slots)
        for spec, queue in state.active_queues.items():
            for candidate in queue.candidates:
                _add(pools, candidate, spec, 0)
        self.of_projects: dict[str, list[PoolShare]] = {}
        self.of_keys: dict[str, list[PoolShare]] = {}
        weights = state.rules.weights
        for users in pools.values():
            if len(users.projects) < 2:
                continue
            pool, in_use = users.pool, sum(users.projects.values())
            total = sum(weights.get(project, 1) for project in users.projects)
            for project, slots in users.projects.items():
                share = PoolShare(pool.id, pool.kind, slots, in_use, weights.get(project, 1), total)
                self.of_projects.setdefault(project, []).append(share)
            for name, slots in users.keys.items():
                key = state.access_keys.get(name)
                if key is not None and key.project in users.projects:
                    share = PoolShare(pool.id, pool.kind, slots, in_use, weights.get(key.project, 1), total)
                    self.of_keys.setdefault(name, []).append(share)
        for shares in (*self.of_projects.values(), *self.of_keys.values()):
            shares.sort(key=lambda share: (-share.shortage, share.kind, share.pool))


def _add(pools: dict[str, _Users], candidate: Candidate, spec: Spec, slots: int) -> None:
    for pool in [pool for pool, _ in candidate.needs if pool.limit < UNLIMITED and not pool.is_of_session]:
        users = pools.get(pool.key)
        if users is None:
            users = pools[pool.key] = _Users(pool)
        users.add(spec, slots)
