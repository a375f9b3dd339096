"""Requests of this process for leases: checked specs, the look before a decision, the wait, the release.

A request that ends early for any reason, such as a cancellation, gives up what it may have got by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core.entities import NORMAL, Lease, Reason, Spec
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import canonical
from fleetgate.core.usage import Usage
from fleetgate.core.views.pool_and_lease_views import ticket_view
from fleetgate.core.views.wait_reasons import reason_for
from fleetgate.gate.acquire_command import acquire_command
from fleetgate.gate.library.lease_handles import Deferred, Leased, NotAdmitted, Since, checked, epoch_ms, number
from fleetgate.gate.library.usage_arguments import checked_usage, of_one_call, with_cost
from fleetgate.gate.observation import commands_first, would_be_refused
from fleetgate.gate.slots.slot_gate import with_own_host_cap
from fleetgate.log.clock import steady, wall_ms

if TYPE_CHECKING:
    from fleetgate.gate.library.gate_core import GateCore

_MAX_SPECS = 1024
_NOT_THE_PROVIDERS = ("ok", "local_error")


class Acquisition:
    """How one gate acquires and releases leases."""

    def __init__(self, core: GateCore) -> None:
        self._core = core
        self._specs: dict[object, Spec] = {}
        self.something_is_backed_off = False  # as of the last commit that we know

    def spec(
        self,
        model: str | Sequence[str],
        kind: str,
        slots: int,
        project: str,
        any_candidate: bool,
        read_name: Callable[[str], object] = canonical,
        *,
        work_class: str | None = None,
        session: str = "",
        access_key: str = "",
        accounts: tuple[str, ...] = (),
    ) -> Spec:
        """The spec of a request, which decides what pools it needs. Each different one is checked once.

        `read_name` reads the name of a model, and may raise when it is not valid. Without a class, the request has the
        one that the config names for its project. `access_key` is the name of the key that the caller has shown;
        `accounts` are those of a set that it may use, where not all.
        """
        try:
            models = (model,) if isinstance(model, str) else tuple(model)
            key = (models, kind, slots, project, any_candidate, read_name, work_class, session, access_key, accounts)
            spec = self._specs.get(key)
        except TypeError:
            raise BadRequest(f"not a model, nor several: {model!r}") from None
        if spec is None:
            core = self._core
            named = tuple([str(read_name(each)) if isinstance(each, str) else each for each in models])
            spec = checked(
                Spec(
                    *(named, kind, slots, core.host, project, any_candidate),
                    work_class=core.settings.classes.get(project, NORMAL) if work_class is None else work_class,
                    agent_session=session,
                    access_key=access_key,
                    accounts=accounts,
                )
            )
            if core.log.is_shared:
                spec = with_own_host_cap(spec, core.loaded)
            if len(self._specs) >= _MAX_SPECS:
                self._specs.clear()
            self._specs[key] = spec
        return spec

    def forget_specs(self) -> None:
        """The config has changed, which specs may depend on."""
        self._specs.clear()

    def new_lease(
        self,
        spec: Spec,
        wait: bool,
        since: Since,
        priority: int,
        key: str,
        conversation: str = "",
        estimate: Usage | None = None,
        timeout_s: float | None = None,
    ) -> Leased:
        """A lease that is yet to be acquired."""
        core = self._core
        at = None if since is None else epoch_ms(since) - steady(wall_ms() - core.log.now())
        command = acquire_command(core, spec, wait=wait, since=at, priority=priority, key=key)
        if conversation:
            command.conversation = conversation
        if estimate is not None:
            command.estimate = of_one_call(checked_usage("estimate", estimate))
        if (
            at is not None
            or key
            or conversation
            or type(priority) is not int
            or type(key) is not str
            or type(conversation) is not str
        ):
            command = checked(command)
        return Leased(core, command, None if timeout_s is None else number("timeout_s", timeout_s))

    async def acquire(self, command: cmd.Acquire, timeout_s: float | None) -> Lease | Deferred:
        """The lease, or why there is none; NotAdmitted when the time is up."""
        core = self._core
        core.check_open()
        if command.estimate is not None:
            command.estimate = await with_cost(command.estimate, command.spec.models, core.settings.prices)
        if core.settings.accounts and not command.renew_ms and not command.spec.accounts:
            left = core.credentials.accounts_left(command.spec.models)
            command.spec = replace(command.spec, accounts=left) if left else command.spec
        if len(command.spec.models) > 1 and core.settings.providers and not command.renew_ms:
            refused = self._drop_candidates_without_credentials(command)
            if refused is not None:
                return Deferred(refused)
        if timeout_s is None:
            return await self.wait_for(command)
        if timeout_s <= 0:  # no time to wait, but it may enter where there is room
            command.wait = False
            got = await self.wait_for(command)
            if isinstance(got, Deferred):
                raise NotAdmitted(f"not admitted at once: {got.reason.text}", got.reason)
            return got
        try:
            async with asyncio.timeout(timeout_s):
                return await self.wait_for(command)
        except TimeoutError:
            reason = self.wait_reason(command)
            raise NotAdmitted(f"not admitted within {timeout_s:g} s: {reason.text}", reason) from None

    def _drop_candidates_without_credentials(self, command: cmd.Acquire) -> Reason | None:
        """Remove candidates that are known to have no credentials; the reason of the refusal when none is left."""
        spec = command.spec
        left, passed_over = self._core.credentials.with_credentials(spec.models)
        if not left:
            text = f"no candidate has credentials; {'; '.join(passed_over)}"
            return Reason("no_credentials", text, model=spec.models[0])
        if passed_over:
            command.spec = self.spec(
                *(left, spec.kind, spec.slots, spec.project, spec.any_candidate),
                work_class=spec.work_class,
                session=spec.agent_session,
                access_key=spec.access_key,
                accounts=spec.accounts,
            )
        return None

    async def wait_for(self, command: cmd.Acquire) -> Lease | Deferred:
        """Send the command and wait for the answer; what it got is given up when the caller stops waiting."""
        core = self._core
        if self.must_look_first(command):
            state = await core.read_state()
            for each in self.commands_before(command, core.credentials.news(state)):
                core.commits.put(each)
        future = core.requests.add(command)
        core.commits.put(command)
        try:
            return await future
        except BaseException:
            core.requests.give_up(command.id)
            raise

    def must_look_first(self, command: cmd.Acquire) -> bool:
        """Whether `commands_before` matters for this request: it may be refused, or counts with foreign agents."""
        asks_once = not command.wait or bool(command.key)
        return asks_once or command.spec.kind == "agents" or self.something_is_backed_off

    def commands_before(self, command: cmd.Acquire, news: Iterable[cmd.Command]) -> list[cmd.Command]:
        """What comes before a request, in the same transaction (gate/observation.py)."""
        core = self._core
        return commands_first(
            core.known_state,
            core.host,
            news=news,
            observer=core.observer if command.spec.kind == "agents" else None,
            beats=core.beats,
            is_refused=would_be_refused(core.replica.engine, command, core.now()),
        )

    def give_up_if_held(self, ident: str) -> None:
        """Release a lease whose thread was interrupted when it had just been granted."""
        if ident in self._core.requests.held:
            self._core.requests.give_up(ident)

    async def release(self, command: cmd.Release) -> None:
        """Release a lease of this process. Harmless when it was released before."""
        core = self._core
        lease = core.requests.held.pop(command.id, None)
        if lease is not None and not core.closed:
            if command.outcome not in _NOT_THE_PROVIDERS and not core.commits.busy:
                used = core.credentials.used_for(lease.model)  # so that a backoff ends when its credential changes
                command.credential, command.identity = used.digest, used.identity
            await core.commits.post(command)

    async def report_accepted(self, lease: str) -> None:
        """The provider has begun to answer the call of a lease. Costs nothing unless a limit is being learned."""
        if self._core.replica.engine.awaits_acceptance(lease):
            await self._core.send(cmd.Active(lease))

    def wait_reason(self, command: cmd.Acquire) -> Reason:
        """Why a request of this process is still waiting."""
        core = self._core
        if core.commits.busy:
            owner = core.log.lock_owner()
            by = f" by process {owner}" if owner is not None else ""
            return Reason("store_busy", f"the store's write lock is held{by}")
        state = core.replica.state
        view = ticket_view(state, command.id, core.now())
        if view is not None:
            return view.reason
        return reason_for(state, state.queue(command.spec), core.now())
