"""Specs, tickets, leases, rules and reasons: what the engine keeps. Times are milliseconds of the log.

One id follows a request all its life: the ticket in the queue, the lease that it becomes, and the ticket again if
the lease is not claimed. A process is named by one string, `host|boot|pidns|pid|start`: enough to know, on the
same host, whether that very process is still alive (see gate/liveness/process_identity.py).
"""

from msgspec import Struct, field

from fleetgate.core.ticket_states import HELD, PASSED_OVER, STALLED, UNASSIGNED, WAITING
from fleetgate.core.usage import Usage

INTERACTIVE, NORMAL, BATCH = "interactive", "normal", "batch"
CLASSES = (INTERACTIVE, NORMAL, BATCH)  # a class gives way to those before it (rule W4)


class Spec(Struct, frozen=True, omit_defaults=True, gc=False, cache_hash=True):
    """What decides which pools a request needs. Equal specs of one project share a queue."""

    models: tuple[str, ...] = ()  # candidates in order of preference, as str(Model)
    kind: str = "agents"
    slots: int = 1
    host: str = ""
    project: str = "default"
    any_candidate: bool = field(
        default=False, name="any"
    )  # use the next candidate even when the first one's pools are only full
    supervisor: bool = False  # takes no host slot (rule R8)
    caps: tuple[tuple[str, int], ...] = ()  # caps from the requester's environment, by selector
    family_caps: tuple[tuple[str, int], ...] = ()  # the same for every cap on a family, e.g. ("opus", 6)
    user: str = ""  # of a job: only workers of this user run it
    work_class: str = field(default=NORMAL, name="class")  # one of CLASSES: which work gives way to which (rule W4)
    agent_session: str = ""  # of a call: the session of the agent that makes it (rule W7)
    access_key: str = ""  # the name of the access key that the request was made with (rule E1)
    home: str = ""  # the account of a set that its conversation uses, as `provider@account` (rule Z3)
    accounts: tuple[str, ...] = ()  # the accounts of a set that it may use, where not all; `default` for the plain one
    of_run: str = ""  # of a call: the run that makes it, where calls of a run go on while others wait (rules V7, W2)


class Ticket(Struct, frozen=True, omit_defaults=True, gc=False):
    """A request's durable place in the queue."""

    id: str
    spec: Spec
    holder: str  # the process that waits
    order: int  # smallest first (core/queue/order.py); negative after a bump to the front
    arrival: int  # breaks ties
    since: int
    queued_at: int
    expires_at: int
    priority: int = 0
    wake: str = ""  # the holder's datagram socket
    command: str = ""  # for display
    key: str = ""  # idempotency key
    role: str = ""
    session: str = ""
    away: bool = False  # keeps its place and asks for nothing (core/ticket_states.py)
    stalled_at: int = 0  # since when every candidate is backed off; that time does not count as waiting
    bound: str = ""  # the process that the lease will end with, if not the holder
    client: str = ""  # the client that the holder speaks for
    renew_ms: int = 0  # how often its client renews it; then it depends on that and on no process
    renew_by: int = 0  # dropped then, without a sign of the client
    asks: tuple[str, ...] = ()  # accounts whose usage the holder can ask for (rule G3)
    job: bool = False  # a job's: unassigned until a worker offers to run it (rule J2)
    any_host: bool = False  # of a job: it runs where the worker is
    confirm: bool = False  # of a job: when its turn comes it is held until a person approves it (rule J5)
    held: bool = False  # its turn came, and it is not approved yet
    not_before: int = 0  # of a job that failed: no worker may offer to run it earlier
    estimate: Usage | None = None  # what it is expected to use; reserved in its budgets when it enters (rule V2)
    most: Usage | None = None  # the most that it can use, where a budget reserves that
    body_bytes: int = 0  # of a call
    run: str = ""  # of a call: the lease of the run that makes it
    max_tokens: int = 0  # of a call: what it allows for its output; 0: it does not say
    name: str = ""  # what its user calls it
    log: bool = False  # its output is kept on its host
    by: str = ""  # of a job: its author
    conversation: str = ""  # what it belongs to; its requests keep to one account of a set (rule Z3)

    @property
    def state(self) -> str:
        """One of ticket_states.STATES."""
        if not self.away:
            return STALLED if self.stalled_at else WAITING
        if not self.job:
            return PASSED_OVER
        return HELD if self.held else UNASSIGNED


class Lease(Struct, omit_defaults=True, gc=False):
    """Slots granted to a ticket's process."""

    ticket: Ticket
    model: str  # the candidate that was chosen; "" when the request names none
    granted_at: int
    granted_seq: int
    claimed: bool = True
    child: str = ""  # the agent's process; the lease lives as long as it does
    charge_ms: int = 0  # what the project was charged for the slot, corrected at release
    ends_at: int = 0  # longest hold; 0 is none
    waited_ms: int = 0
    spent: Usage | None = None  # what was settled so far; of a run, what its calls used
    gives_way_to: str = ""  # of a job: the request for which it is preempted (rule W5)
    stop_by: str = ""  # the user who requested that its agent is stopped (rule L6)

    @property
    def id(self) -> str:
        return self.ticket.id

    @property
    def lives_with(self) -> str:
        """The process that the lease ends with; "" where a client has to renew it."""
        if self.ticket.renew_ms:
            return ""
        return self.child or self.ticket.bound or self.ticket.holder


class Rule(Struct, frozen=True, omit_defaults=True):
    """A cap and its options for the pools of one selector, from one source. None: not set."""

    kind: str
    selector: str
    cap: int | None = None
    auto: bool = False  # host = "auto": the cap follows free memory (rule C7)
    cooldown_ms: int | None = None
    on_429: str | None = None  # "adapt", "step", "pause", "fixed"
    max_hold_ms: int | None = None
    name: str | None = None
    usage_gate: bool | None = None  # ask the provider before a waiting ticket is admitted
    explore: bool | None = None  # `adapt` may go above the cap
    unlimited: bool = False  # `cap rm`: no cap, whatever lower sources set
    reserve: int | None = None  # slots that are kept for interactive work (rule W5)
    reserve_share: int | None = None  # or a part of the limit, in hundredths of a percent
    lendable: bool | None = None  # others may use them while no interactive request waits
    refusals: str | None = None  # with `adapt`, what a refusal costs: "cheap", "normal", "expensive"


class BudgetRule(Struct, frozen=True, omit_defaults=True):
    """A rate or a budget: an amount of one unit per period, for the requests of a selector (rule V1)."""

    selector: str  # that of a cap
    unit: str  # one of usage.UNITS
    amount: int  # usd: millionths of a dollar
    per: str  # day, week, month, or a duration as people write it: 1m, 5h
    per_ms: int = 0  # that duration; 0 for day, week and month
    burst: int = 0  # the most that a rate can save up; 0: its amount
    when_empty: str = "hold"  # hold, stop, fallback, warn (rule V7)
    estimate: str = "expected"  # or max: reserve the most that a call can use (rule V2)


class PlanRule(Struct, frozen=True, omit_defaults=True):
    """How the plan windows of a provider, or of one account, are shared between the classes (rule W2)."""

    account: str  # a provider, for each of its accounts, or `provider@account`
    reserve: int = 2_000  # of each window, kept for interactive work: in hundredths of a percent
    pace: bool = True  # batch work keeps to the elapsed part of the window
    drain_ms: int = 30 * 60_000  # how long before the reset the rest is free for normal work
    band_ms: int = 100 * 60_000  # how far behind the pace batch work starts again


class AccountSet(Struct, frozen=True, omit_defaults=True):
    """Accounts of a provider that requests without an account may use (rule Z1)."""

    provider: str
    use: tuple[str, ...]
    then: tuple[str, ...] = ()  # used when none of the others has room
    choose: str = "most-left"  # or first: in the order of the file
    sticky: str = "conversation"  # or none
    patience_ms: int = 10_000  # how long a conversation waits for its own account


class Reason(Struct, omit_defaults=True, gc=False):
    """Why a request is waiting or refused (rule A6). `code` is for programs, `text` for people."""

    code: str
    text: str
    pool: str = ""
    pools: list[str] = field(default_factory=list)
    until: int | None = None
    in_flight: int | None = None
    limit: int | None = None
    model: str = ""
    cause: str = ""  # of a backoff
    budget: str = ""  # the budget that has too little left, by name
    left: int | None = None  # of that budget, in its unit (usd: millionths of a dollar)
    window: str = ""  # the plan window that holds it back, by name
    used: int | None = None  # of that window, in hundredths of a percent
    resets_at: int | None = None  # that window
