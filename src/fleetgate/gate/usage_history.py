"""The usage of single runs, from the history: the sums beside the log do not name runs.

Each event that ends a lease says what the lease used beyond what was settled before, so nothing counts twice. What a
call used belongs to the run that made it. A call that no run made belongs to none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fleetgate.core import events as ev
from fleetgate.core.entities import Lease
from fleetgate.core.usage import Usage, UsageRow


def used_by_runs(
    history: Iterable[tuple[int, int, ev.Event]], leases: Mapping[str, Lease]
) -> Iterator[tuple[int, UsageRow, str]]:
    """When, what was used, and the run that used it. `leases` are those that have not ended yet.

    The host of a run is known only if the history has its beginning, too.
    """
    hosts: dict[str, str] = {}
    settled: dict[str, list[tuple[int, Usage]]] = {}  # by lease, until its end says whose it is
    for _, at, event in history:
        if isinstance(event, ev.Released | ev.Reclaimed):
            run = event.run or (event.id if event.kind == "agents" else "")
            host = hosts.pop(event.id, "")
            for then, usage in settled.pop(event.id, ()):
                yield then, UsageRow(event.project, event.model, host, event.access_key, event.kind, usage), run
            if event.usage is not None:
                yield at, UsageRow(event.project, event.model, host, event.access_key, event.kind, event.usage), run
        elif isinstance(event, ev.Settled):
            settled.setdefault(event.id, []).append((at, event.usage))
        elif isinstance(event, ev.Queued):
            hosts[event.ticket.id] = event.ticket.spec.host
        elif isinstance(event, ev.Granted):
            if event.ticket is not None:
                hosts[event.id] = event.ticket.spec.host
        elif isinstance(event, ev.Offered):
            hosts[event.id] = event.host
        elif isinstance(event, ev.Cancelled | ev.Expired | ev.Dropped):
            hosts.pop(event.id, None)
    for ident, parts in settled.items():
        lease = leases.get(ident)
        if lease is None:
            continue  # it ended after the history was read
        spec, run = lease.ticket.spec, lease.ticket.run or (ident if lease.ticket.spec.kind == "agents" else "")
        for then, usage in parts:
            yield then, UsageRow(spec.project, lease.model, spec.host, spec.access_key, spec.kind, usage), run
