"""A census in one step, without the cache and the processes of leases that `foreign_agents` has for gates."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence

from fleetgate.gate.liveness import foreign_agents, process_identity
from fleetgate.gate.store_users import StoreUsers

Row = tuple[int, int, Sequence[str]]  # pid, parent, arguments


def look(cache_path: str, patterns: Sequence[str], users: StoreUsers | None = None) -> list[foreign_agents.Seen]:
    """The matching processes, as of at most about a second ago."""
    return foreign_agents.take(cache_path, patterns, users).seen


def count(
    patterns: Sequence[str], own_pids: Collection[int], procs: Iterable[Row] | None = None
) -> tuple[tuple[str, int], ...]:
    """How many are foreign, by model: of this machine, or of the processes given."""
    if procs is None:
        lines = foreign_agents.command_lines(StoreUsers(""))
        found = foreign_agents.find(patterns, lines, process_identity.parent_of)
    else:
        rows = list(procs)
        parents = {pid: parent for pid, parent, _ in rows}
        found = foreign_agents.find(patterns, {pid: argv for pid, _, argv in rows}, lambda pid: parents.get(pid, 0))
    counts: dict[str, int] = {}
    for pid, model, above in found:
        if pid != os.getpid() and pid not in own_pids and not any(parent in own_pids for parent in above):
            counts[model] = counts.get(model, 0) + 1
    return tuple(sorted(counts.items()))
