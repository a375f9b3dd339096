"""Commands and outcomes that back off a model, family or account, and the choice of another model (rules B1 to B4, B6).

core/pools/backoff.py says how long a backoff lasts and what ends it.
"""

from __future__ import annotations

from collections.abc import Callable

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Spec
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.model_names import KINDS, Model, account_of, canonical, glob, parse_model, shown
from fleetgate.core.pools.backoff import CAUSES, MOST_MS, concerns, default_ms, ended_by, grown_ms, grows, parse_key
from fleetgate.core.pools.pool import Pool
from fleetgate.core.state.state import State

_OF_ACCOUNTS = ("auth", "quota", "usage_window")
_NAMED = ("quota", "usage_window")


class BackoffHandler:
    """The backoffs of one state."""

    def __init__(self, state: State, record: Callable[[ev.Event], None]) -> None:
        self._state = state
        self._record = record

    def observed(self, command: cmd.Release, model: Model, now: int, *, call: bool = False) -> None:
        """Back off what the outcome is about. An observation extends a backoff and never shortens it.

        For a refused `call` the time grows with each refusal in a row.
        """
        reason = command.outcome
        if reason == "server_error" and command.retry_after_ms == 0:
            return  # the caller gets the error and decides
        scope = "account" if reason in _OF_ACCOUNTS else "model"
        if reason in _NAMED or command.named:  # its message may name what is used up
            scope = command.scope or scope
        if call and scope == "family" and not glob(command.family, model.name):
            scope = "model"  # back off the refused model, whatever its name
        account = account_of(model)
        key = {"account": account, "family": f"{account}/{command.family}"}.get(scope, str(model))
        old = self._state.backoffs.get(key)
        failed_probe = old is not None and bool(command.id) and old.probing == command.id
        wait_ms = default_ms(reason) if command.retry_after_ms is None else command.retry_after_ms
        times = 0
        if call and grows(reason):
            times = 1 if old is None else max(old.times, 1) + failed_probe
            if command.retry_after_ms is None or failed_probe:  # a hint of "at once" that failed is not believed
                wait_ms = max(command.retry_after_ms or 0, grown_ms(reason, times))
        until = now + min(max(wait_ms, 1), MOST_MS)
        since = now
        if old is not None:
            same = old.until >= until or (bool(times) and bool(old.times) and command.retry_after_ms is None)
            if same and not failed_probe:
                return
            until = max(old.until, until)
            since = now if failed_probe else old.since
        self._record(
            ev.BackedOff(
                key,
                scope,
                reason,
                since,
                until,
                command.evidence,
                command.credential,
                id=command.id,
                identity=command.identity,
                times=times,
            )
        )

    def set(self, command: cmd.BackOff, now: int) -> None:
        key, scope = parse_key(command.key)
        if command.reason not in CAUSES:
            raise BadRequest(f"reason {shown(command.reason)}: valid are {', '.join(CAUSES)}")
        for_ms = default_ms(command.reason) if command.for_ms is None else command.for_ms
        if not 1 <= for_ms <= MOST_MS:
            raise BadRequest(f"a backoff of {for_ms} ms: valid is 1 ms to 35 days")
        refused = command.credential if command.reason == "auth" else ""
        self._record(ev.BackedOff(key, scope, command.reason, now, now + for_ms, "set by hand", refused, manual=True))

    def end(self, command: cmd.EndBackoff, now: int) -> None:
        key = command.key
        if key not in self._state.backoffs:  # a key of an old log may use another name of the provider
            key, _ = parse_key(key)
        if key not in self._state.backoffs:
            known = ", ".join(sorted(self._state.backoffs)) or "none"
            raise NotFound(f"{key} is not backed off; backed off: {known}")
        self._record(ev.BackoffEnded(key, "cleared"))

    def ended_by_time(self, now: int) -> None:
        for key in [each.key for each in self._state.backoffs.values() if each.ends_at <= now and not each.must_probe]:
            self._record(ev.BackoffEnded(key, "time"))

    def probe_succeeded(self, ident: str) -> None:
        for key in [backoff.key for backoff in self._state.backoffs.values() if backoff.probing == ident]:
            self._record(ev.BackoffEnded(key, "probe"))

    def credential(self, command: cmd.Credential, now: int) -> None:
        account, scope = parse_key(command.account)
        if scope != "account":
            raise BadRequest(f"{shown(command.account)} is not an account: valid is provider or provider@account")
        for backoff in list(self._state.backoffs.values()):
            if canonical(backoff.key.partition("/")[0]) != account:
                continue
            why = ended_by(backoff, command.digest, command.identity)
            if why:
                self._record(ev.BackoffEnded(backoff.key, why))

    def select(self, command: cmd.Select, now: int) -> None:
        models = [parse_model(text) for text in command.models]
        free = [str(model) for model in models if not self._is_held(model, now)]
        if free:
            last = self._state.chosen.get(command.role, {})
            self._record(ev.Chosen(command.role, min(free, key=lambda model: last.get(model, 0))))

    def _is_held(self, model: Model, now: int) -> bool:
        """Whether a model cannot be used now: it is backed off, or its provider's pool is paused."""
        held = self._state.backoffs.values()
        if any(concerns(backoff.key, model) and not backoff.is_over(now) for backoff in held):
            return True
        return bool(pauses(self._state, model, now))


def pauses(state: State, model: Model, now: int) -> list[Pool]:
    """The pools of a model's provider, of agents and of requests, that are paused."""
    specs = [Spec(models=(str(model),), kind=kind) for kind in KINDS]
    needs = [need for spec in specs for need in state.rules.needs(spec, model)]
    pools = [state.pool(need) for need in needs if need.cap.selector.scope == "model"]
    return [pool for pool in pools if now < pool.paused_until]
