"""The protocol of a gate for a process that requests a slot (`run`, `acquire`), and its values.

`DirectGate` (gate/slots/direct_gate.py) has the store open. `NodeGate` (gate/slots/node_gate.py) asks the node of its
host. `FailOpenGate` (gate/slots/fail_open_gate.py) has neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from fleetgate.core import commands as cmd
from fleetgate.core.usage import RECORD, Usage

if TYPE_CHECKING:
    from fleetgate.config.file import Loaded
    from fleetgate.config.settings import Settings
    from fleetgate.core import commands as cmd
    from fleetgate.core.entities import BudgetRule, Lease, Reason, Rule, Spec
    from fleetgate.core.queue.positions import TicketView
    from fleetgate.core.state.state import State
    from fleetgate.gate.providers.credentials import Credentials
    from fleetgate.gate.providers.usage_questions import UsageSources
    from fleetgate.gate.replica.replica import Decided
    from fleetgate.gate.wakeup.mailbox import Mailbox
    from fleetgate.log.protocol import SideWrite


UNUSED = Usage(source=RECORD)  # the usage of an agent that never ran


class Left(NamedTuple):
    """The ticket is no longer in the queue, and there is no lease."""

    why: str  # expired, cancelled or lost


def why_left(told: bytes | None) -> str:
    """Why a ticket is gone, by the last message to its holder; lost, if that was a grant that was taken back since."""
    return told.decode() if told in (b"expired", b"cancelled") else "lost"


class StopRequest(NamedTuple):
    """Why a running agent is to be stopped: a user requested it (rule L6), or a budget is used up (rule V7)."""

    by: str = ""
    budget: str = ""


class QueuedTicket(NamedTuple):
    """A ticket of this process, how the process is woken, and its callbacks for news and problems of the store."""

    id: str
    mailbox: Mailbox | None
    on_view: Callable[[TicketView], None]
    on_trouble: Callable[[str], None]


class TicketWait(Protocol):
    """A place in the queue."""

    def wait(self, until: float | None, wakeup_fd: int, stopped: Callable[[], bool]) -> Lease | Left | None:
        """Wait for the lease, or for the ticket to leave; None if `stopped()` is true or `until` has come."""


class SlotGate(Protocol):
    """The gate of one process that acquires, holds and releases slots."""

    loaded: Loaded | None
    settings: Settings
    folder: str
    host: str
    me: str
    address: str  # where this process is woken
    unapplied: list[str]  # after a request: selectors with a cap in our file that is not in force in a shared gate
    lock_wait: Callable[[], AbstractContextManager[None]]  # entered while it waits for the store's lock

    @property
    def credentials(self) -> Credentials: ...

    @property
    def usage(self) -> UsageSources: ...

    def now(self) -> int:
        """The log's time."""

    def wall_offset_ms(self) -> int:
        """What to add to a log time to get wall time."""

    def lock_owner(self) -> int | None:
        """The process that seems to hold the store's lock."""

    # Deciding.
    def decide(
        self, commands: Sequence[cmd.Command], *, durable: bool = False, side: Sequence[SideWrite] = ()
    ) -> list[Decided]: ...

    def try_decide(self, commands: Sequence[cmd.Command]) -> bool:
        """The same without waiting: False if it is not possible now."""

    def decide_soon(self, commands: Sequence[cmd.Command]) -> bool: ...

    def acquire(self, command: cmd.Acquire) -> Lease | Reason | None:
        """Request once: the lease, the reason for a refusal, or None if the ticket is waiting now."""

    def waiter(self, ticket: QueuedTicket) -> TicketWait: ...

    def leave(self, ident: str, outcome: str = "ok") -> None: ...

    # Looking.
    def lease(self, ident: str) -> Lease | None:
        """A lease, as of the last decision."""

    def view(self, ident: str) -> TicketView | None:
        """A ticket in the queue."""

    def is_hopeless(self, view: TicketView) -> bool:
        """Whether waiting does not help, because every candidate needs a person."""

    def backed_off_until(self, model: str) -> int:
        """When the last backoff that concerns a model ends; 0: there is none."""

    def has_other_candidate(self, lease: Lease) -> bool:
        """Whether another model than the lease's may be used now."""

    def cap_selectors(self) -> list[str]:
        """The selectors of the caps on agents, as far as this process knows them."""

    def is_probe(self, ident: str) -> bool:
        """Whether a lease was granted to find out if a backoff is over."""

    def has_open_calls(self, ident: str) -> bool:
        """Whether a model call of this run waits in the gate's own queue or is in flight (`run --proxied`).

        Reads the store.
        """

    def side_value(self, table: str, key: str) -> bytes | None:
        """A value beside the log."""

    # While an agent runs.
    def tick(self, lease: Lease) -> None:
        """Upkeep, and a check that the lease still exists; called now and then. It never delays the agent.

        Raises nothing but StoreMoved.
        """

    def stop_request(self, lease: Lease, *, told: bool = False) -> StopRequest | None:
        """Why the lease's agent is to be stopped, if it is. As of the last tick; `told`: as of now."""

    def silent_ms(self) -> int:
        """How long this host has been silent for a shared store; 0 if the store is not shared."""

    def maintain(self) -> None: ...

    def close(self) -> None: ...


def with_own_host_cap(spec: Spec, loaded: Loaded | None) -> Spec:
    """In a shared gate, each machine's own file sets only the cap of its host (rule C2)."""
    if spec.kind != "agents" or loaded is None or any(selector == "host" for selector, _ in spec.caps):
        return spec
    own = tuple(
        ("host", rule.cap)
        for rule in loaded.settings.rules
        if (rule.kind, rule.selector) == ("agents", "host") and rule.cap is not None
    )
    return msgspec.structs.replace(spec, caps=(*spec.caps, *own)) if own else spec


def unapplied_caps(state: State, rules: Sequence[Rule], budgets: Sequence[BudgetRule]) -> list[str]:
    """The caps and budgets of a machine's own file that are not in force in a shared gate, and not set otherwise.

    Caps by selector, budgets by name.
    """
    found = []
    for rule in rules:
        key = (rule.kind, rule.selector)
        own = key == ("agents", "host") and rule.cap is not None  # see with_own_host_cap
        if own or key in state.rules.runtime or (rule.cap is None and not rule.auto):
            continue
        cap = state.rules.caps.get(key)
        if cap is None or (cap.cap, cap.auto) != (rule.cap, rule.auto):
            found.append(rule.selector)
    known = state.budget_rules
    for budget in budgets:
        of_budget = (budget.selector, budget.unit, budget.per)
        if of_budget not in known.runtime and known.file.get(of_budget) != budget:
            found.append(f"{budget.selector} {budget.unit}/{budget.per}")
    return found


def unapplied_text(path: str, selectors: Sequence[str]) -> str:
    """The sentence about such caps and budgets, with what to type."""
    what = "caps and budgets" if any(" " in each for each in selectors) else "caps"
    many = f" and {len(selectors) - 3} more" if len(selectors) > 3 else ""
    listed = f"{', '.join(selectors[:3])}{many}"
    return (
        f"not in force: the {what} on {listed} in {path}, since many machines share this store; "
        f"`fleetgate config apply {path}` brings them in for all of them"
    )


def load_file(loaded: Loaded, *, force: bool = False) -> cmd.LoadFile:
    """The command that brings a config file's caps and budgets into the gate."""
    from fleetgate.config.time_zone import zone_of
    from fleetgate.core import commands as cmd

    settings = loaded.settings
    return cmd.LoadFile(
        loaded.path,
        loaded.digest,
        loaded.mtime_ms,
        settings.rules,
        settings.seniority_ms,
        force,
        settings.budgets,
        zone_of(settings.time_zone),
        settings.plans,
        settings.preempt_after_ms,
        tuple(settings.weights.items()),
        account_sets=settings.accounts,
    )
