"""What people set, what a file says, and what was seen on a host: caps, pauses, foreign agents."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.handlers.cap_validation import check_rule
from fleetgate.core.model_names import parse_model, shown
from fleetgate.core.pools.pool import Pool
from fleetgate.core.queue.admission import FOREVER
from fleetgate.core.state.state import State

LONGEST_RECOVERY_MS = 60_000


class CapHandler:
    """The rules of one state. `emit` makes an event happen."""

    def __init__(self, state: State, emit: Callable[[ev.Event], None]) -> None:
        self._state = state
        self._emit = emit

    def observe(self, command: cmd.Observe, now: int) -> None:
        state = self._state
        auto_cap = state.auto_caps.get(command.host)
        if command.room is not None:
            specs = [lease.ticket.spec for lease in state.leases.values()]
            agents = [spec for spec in specs if spec.kind == "agents" and spec.host == command.host]
            lent = sum(spec.slots for spec in agents if not spec.supervisor)
            auto_cap = max(1, min(lent + command.room, command.most))
        if command.foreign != state.foreign.get(command.host, ()) or auto_cap != state.auto_caps.get(command.host):
            for model, number in command.foreign:
                if model:
                    parse_model(model)
                if number < 1:
                    raise BadRequest(f"{number} foreign agents of {shown(model)}: valid is 1 or more")
            self._emit(ev.Observed(command.host, command.foreign, auto_cap))

    def recover(self, command: cmd.Recover, now: int) -> None:
        """Nobody enters for a while; a second call makes it no shorter."""
        until = now + min(max(command.for_ms, 1), LONGEST_RECOVERY_MS)
        if until > self._state.recovers_until:
            self._emit(ev.Recovering(until, command.why))

    def drain(self, command: cmd.Drain, now: int) -> None:
        """Nobody new starts on a host. Jobs that a worker there offered to run go back to where others find them."""
        state, host = self._state, command.host
        if not host:
            raise BadRequest("no host is named: see `fleetgate ps` for those that are known")
        if command.end:
            if host not in state.draining:
                known = ", ".join(sorted(state.draining)) or "none"
                raise NotFound(f"{shown(host)} is not drained; drained: {known}")
            self._emit(ev.DrainEnded(host, command.by))
        elif host not in state.draining:
            self._emit(ev.Draining(host, command.by))
            for ticket in [each for each in state.tickets.values() if each.job and not each.away]:
                if ticket.spec.host == host:
                    self._emit(ev.Withdrawn(ticket.id))

    def set_rule(self, command: cmd.SetRule, now: int) -> None:
        rule = command.rule
        check_rule(rule)
        old = self._state.rules.runtime.get((rule.kind, rule.selector), Rule(rule.kind, rule.selector))
        fields = {name: getattr(rule, name) for name in rule.__struct_fields__}
        said = {name: value for name, value in fields.items() if value is not None}
        del said["auto"], said["unlimited"]  # these go with the cap
        cap_set = rule.cap is not None or rule.auto
        if cap_set:
            said |= {"cap": rule.cap, "auto": rule.auto, "unlimited": False}
        self._emit(ev.RuleSet(replace(old, **said), cap_set))

    def remove_cap(self, command: cmd.RemoveCap, now: int) -> None:
        check_rule(Rule(command.kind, command.selector))
        self._emit(ev.CapRemoved(command.kind, command.selector))

    def reset_cap(self, command: cmd.ResetCap, now: int) -> None:
        if (command.kind, command.selector) not in self._state.rules.runtime:
            raise NotFound(f"nothing was set at run time for {command.selector} ({command.kind})")
        self._emit(ev.CapReset(command.kind, command.selector))

    def load_file(self, command: cmd.LoadFile, now: int) -> None:
        state = self._state
        newer = command.modified > state.file_modified
        if command.digest == state.file_digest or not (newer or command.force):
            return
        for rule in command.rules:
            check_rule(rule)
        self._emit(ev.FileLoaded(command.path, command.digest, command.modified, command.rules, command.seniority_ms))

    def pause(self, command: cmd.Pause, now: int) -> None:
        if command.for_ms is not None and command.for_ms < 1:
            raise BadRequest(f"a pause of {command.for_ms} ms: valid is 1 or more (to end one: `fleetgate resume`)")
        until = FOREVER if command.for_ms is None else min(now + command.for_ms, FOREVER)
        for pool in self._pools_named(command.kind, command.pool):
            self._emit(ev.Paused(pool.kind, pool.id, until))

    def resume(self, command: cmd.Resume, now: int) -> None:
        for pool in self._pools_named(command.kind, command.pool):
            if pool.paused_until > now:
                self._emit(ev.Resumed(pool.kind, pool.id))

    def _pools_named(self, kind: str, name: str) -> list[Pool]:
        """The pool of this name, or all pools of this selector; only capped ones can be paused."""
        state = self._state
        pool = state.named(kind, name)
        found = [pool] if pool is not None else []
        if not found:
            pools = state.pools.values()
            found = [pool for pool in pools if pool.kind == kind and pool.cap.selector.text == name]
        found = [pool for pool in found if pool.cap.capped]
        if not found:
            known = sorted(pool.id for pool in state.pools.values() if pool.kind == kind and pool.cap.capped)
            listed = f"; capped are: {', '.join(known)}" if known else ""
            raise NotFound(f"no capped pool {shown(name)} of kind {kind}{listed} (set one with `fleetgate cap set`)")
        return found
