"""Commands about hosts: what was observed there, drain, and recovery of a log that lost commits."""

from __future__ import annotations

from collections.abc import Callable

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.model_names import parse_model, shown
from fleetgate.core.state.state import State

LONGEST_RECOVERY_MS = 60_000


class HostHandler:
    """The hosts of one state."""

    def __init__(self, state: State, record: Callable[[ev.Event], None]) -> None:
        self._state = state
        self._record = record

    def observe(self, command: cmd.Observe, now: int) -> None:
        state = self._state
        auto_cap = state.auto_caps.get(command.host)
        if command.room is not None:
            specs = [lease.ticket.spec for lease in state.leases.values()]
            agents = [spec for spec in specs if spec.kind == "agents" and spec.host == command.host]
            used = sum(spec.slots for spec in agents if not spec.supervisor)
            auto_cap = max(1, min(used + command.room, command.most))
        if command.foreign != state.foreign.get(command.host, ()) or auto_cap != state.auto_caps.get(command.host):
            for model, number in command.foreign:
                if model:
                    parse_model(model)
                if number < 1:
                    raise BadRequest(f"{number} foreign agents of {shown(model)}: valid is 1 or more")
            self._record(ev.Observed(command.host, command.foreign, auto_cap))

    def recover(self, command: cmd.Recover, now: int) -> None:
        """Admit nothing for a while; a second command makes that no shorter."""
        until = now + min(max(command.for_ms, 1), LONGEST_RECOVERY_MS)
        if until > self._state.recovers_until:
            self._record(ev.Recovering(until, command.why))

    def drain(self, command: cmd.Drain, now: int) -> None:
        """Start nothing more on a host. Jobs that a worker there offered to run become unassigned again."""
        state, host = self._state, command.host
        if not host:
            raise BadRequest("no host is named: see `fleetgate ps` for those that are known")
        if command.end:
            if host not in state.draining:
                known = ", ".join(sorted(state.draining)) or "none"
                raise NotFound(f"{shown(host)} is not drained; drained: {known}")
            self._record(ev.DrainEnded(host, command.by))
        elif host not in state.draining:
            self._record(ev.Draining(host, command.by))
            for ticket in [each for each in state.tickets.values() if each.job and not each.away]:
                if ticket.spec.host == host:
                    self._record(ev.Withdrawn(ticket.id))
