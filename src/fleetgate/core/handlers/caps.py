"""Commands about caps and pauses: what a person sets, and what the config file says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.accounts.sets import check_set
from fleetgate.core.entities import Rule
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.handlers.budgets import check_budget
from fleetgate.core.handlers.cap_validation import REFUSALS_ARE_FOR, check_rule
from fleetgate.core.handlers.plans import check_plan
from fleetgate.core.model_names import shown
from fleetgate.core.pools.pool import FOREVER, Pool
from fleetgate.core.state.state import State

MOST_WEIGHT: Final = 1_000


class CapHandler:
    """The caps of one state."""

    def __init__(self, state: State, record: Callable[[ev.Event], None]) -> None:
        self._state = state
        self._record = record

    def set_rule(self, command: cmd.SetRule, now: int) -> None:
        rule = command.rule
        check_rule(rule)
        in_force = self._state.rules.caps.get((rule.kind, rule.selector))
        if rule.refusals is not None and rule.on_429 is None and in_force is not None and in_force.on_429 != "adapt":
            raise BadRequest(f"refusals for {rule.selector}: {REFUSALS_ARE_FOR}; here it is {in_force.on_429}")
        old = self._state.rules.runtime.get((rule.kind, rule.selector), Rule(rule.kind, rule.selector))
        fields = {name: getattr(rule, name) for name in rule.__struct_fields__}
        said = {name: value for name, value in fields.items() if value is not None}
        del said["auto"], said["unlimited"]  # these go with the cap
        cap_set = rule.cap is not None or rule.auto
        if cap_set:
            said |= {"cap": rule.cap, "auto": rule.auto, "unlimited": False}
        self._record(ev.RuleSet(replace(old, **said), cap_set))

    def remove_cap(self, command: cmd.RemoveCap, now: int) -> None:
        check_rule(Rule(command.kind, command.selector))
        self._record(ev.CapRemoved(command.kind, command.selector))

    def reset_cap(self, command: cmd.ResetCap, now: int) -> None:
        if (command.kind, command.selector) not in self._state.rules.runtime:
            raise NotFound(f"nothing was set at run time for {command.selector} ({command.kind})")
        self._record(ev.CapReset(command.kind, command.selector))

    def load_file(self, command: cmd.LoadFile, now: int) -> None:
        state = self._state
        newer = command.modified > state.file_modified
        if command.digest == state.file_digest or not (newer or command.force):
            return
        for rule in command.rules:
            check_rule(rule)
        for budget in command.budgets:
            check_budget(budget)
        for project, weight in command.weights:
            if not 1 <= weight <= MOST_WEIGHT:
                raise BadRequest(f"weight {weight} of {shown(project)}: valid is 1 to {MOST_WEIGHT}")
        for plan in command.plans:
            check_plan(plan)
        for accounts in command.account_sets:
            check_set(accounts)
        self._record(
            ev.FileLoaded(
                command.path,
                command.digest,
                command.modified,
                command.rules,
                command.seniority_ms,
                command.budgets,
                command.zone,
                command.plans,
                command.preempt_after_ms,
                command.weights,
                account_sets=command.account_sets,
            )
        )

    def pause(self, command: cmd.Pause, now: int) -> None:
        if command.for_ms is not None and command.for_ms < 1:
            raise BadRequest(f"a pause of {command.for_ms} ms: valid is 1 or more (to end one: `fleetgate resume`)")
        until = FOREVER if command.for_ms is None else min(now + command.for_ms, FOREVER)
        for pool in self._pools_named(command.kind, command.pool):
            self._record(ev.Paused(pool.kind, pool.id, until))

    def resume(self, command: cmd.Resume, now: int) -> None:
        for pool in self._pools_named(command.kind, command.pool):
            if pool.paused_until > now:
                self._record(ev.Resumed(pool.kind, pool.id))

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
