"""What a process that asks for a slot needs of the gate, whether it decides itself or a node does (`run`, `acquire`).

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
    """Why a ticket is gone, by what its holder was told; lost, where that was a grant which was taken back since."""
    return told.decode() if told in (b"expired", b"cancelled") else "lost"


class QueuedTicket(NamedTuple):
    """A ticket of this process, how the process is woken, and what it calls with news and troubles of the store."""

    id: str
    mailbox: Mailbox | None
    on_view: Callable[[TicketView], None]
    on_trouble: Callable[[str], None]


class TicketWait(Protocol):
    """A place in the queue."""

    def wait(self, until: float | None, wakeup_fd: int, stopped: Callable[[], bool]) -> Lease | Left | None:
        """Until the lease is ours, the ticket has left, `stopped()` says so or `until` has come (None)."""


class SlotGate(Protocol):
    """The gate of one process that acquires, holds and releases slots."""

    loaded: Loaded | None
    settings: Settings
    folder: str
    host: str
    me: str
    address: str  # where this process is woken
    unapplied: list[str]  # after asking: selectors that our file caps, and that a gate of many machines does not
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
        """The process that seems to keep the store's lock."""

    # Deciding.
    def decide(
        self, commands: Sequence[cmd.Command], *, durable: bool = False, side: Sequence[SideWrite] = ()
    ) -> list[Decided]: ...

    def try_decide(self, commands: Sequence[cmd.Command]) -> bool:
        """The same without waiting: False when it cannot be done now."""

    def decide_soon(self, commands: Sequence[cmd.Command]) -> bool: ...

    def acquire(self, command: cmd.Acquire) -> Lease | Reason | None:
        """Ask once: the lease, the reason of a refusal, or None when the ticket waits in the queue now."""

    def waiter(self, ticket: QueuedTicket) -> TicketWait: ...

    def leave(self, ident: str, outcome: str = "ok") -> None: ...

    # Looking.
    def lease(self, ident: str) -> Lease | None:
        """A lease, as of the last decision."""

    def view(self, ident: str) -> TicketView | None:
        """A ticket in the queue."""

    def is_hopeless(self, view: TicketView) -> bool:
        """Whether waiting is no use: a person must see to every candidate."""

    def backed_off_until(self, model: str) -> int:
        """When the last backoff that concerns a model ends; 0: there is none."""

    def has_other_candidate(self, lease: Lease) -> bool:
        """Whether another model than the lease's may be used now."""

    def is_probe(self, ident: str) -> bool:
        """Whether a lease is to try out the end of a backoff."""

    def has_open_calls(self, ident: str) -> bool:
        """Whether a model call of this run waits in the gate's own queue or is in flight (`run --proxied`).

        Reads the store.
        """

    def side_value(self, table: str, key: str) -> bytes | None:
        """A value beside the log."""

    # While an agent runs.
    def tick(self, lease: Lease) -> None:
        """Now and then: upkeep, and whether the lease is still in the books. Never in the way.

        Raises nothing but StoreMoved.
        """

    def stopping_budget(self, lease: Lease) -> str:
        """The used-up budget for which the lease's agent is to be stopped (rule V7); "": none. As of the last tick."""

    def silent_ms(self) -> int:
        """For how long a store that many machines share cannot have heard of this host; 0 where there is none."""

    def maintain(self) -> None: ...

    def close(self) -> None: ...


def with_own_host_cap(spec: Spec, loaded: Loaded | None) -> Spec:
    """On a gate of many machines, the only cap that each machine's own file sets is that of its host (rule C2)."""
    if spec.kind != "agents" or loaded is None or any(selector == "host" for selector, _ in spec.caps):
        return spec
    own = tuple(
        ("host", rule.cap)
        for rule in loaded.settings.rules
        if (rule.kind, rule.selector) == ("agents", "host") and rule.cap is not None
    )
    return msgspec.structs.replace(spec, caps=(*spec.caps, *own)) if own else spec


def unapplied_caps(state: State, rules: Sequence[Rule], budgets: Sequence[BudgetRule]) -> list[str]:
    """Of the caps and budgets of a machine's own file, those that a gate of many machines neither has nor has otherwise
    set: caps by selector, budgets by name."""
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
    )
