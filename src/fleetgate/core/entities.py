"""What the engine keeps: specs, tickets and leases. Times are integer milliseconds of the log's clock.

One id follows a request all its life: the ticket in the queue, the lease that it becomes, and the ticket again if
the lease is not claimed. A process is named by one string, `host|boot|pidns|pid|start`: enough to tell, on the
same host, whether that very process still lives (see gate/liveness/process_identity.py).
"""

from msgspec import Struct, field

from fleetgate.core.ticket_states import HELD, PASSED_OVER, STALLED, UNASSIGNED, WAITING


class Spec(Struct, frozen=True, omit_defaults=True, gc=False, cache_hash=True):
    """What decides which pools a request needs. Equal specs of one project share a queue."""

    models: tuple[str, ...] = ()  # candidates in order of preference, as str(Model)
    kind: str = "agents"
    slots: int = 1
    host: str = ""
    project: str = "default"
    any: bool = False  # move on to the next candidate also when pools are full
    supervisor: bool = False  # takes no host slot (SPEC R8)
    caps: tuple[tuple[str, int], ...] = ()  # caps from the requester's environment, by selector
    family_caps: tuple[tuple[str, int], ...] = ()  # the same for every cap on a family, e.g. ("opus", 6)
    user: str = ""  # of a job: only workers of this user run it


class Ticket(Struct, frozen=True, omit_defaults=True, gc=False):
    """A request's durable place in the queue."""

    id: str
    spec: Spec
    holder: str  # the process that waits
    order: int  # K: smallest first (CONTROLLER.md, "The line"); negative after a bump to the front
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
    away: bool = False  # keeps its place and asks for nothing until its holder speaks
    stalled_at: int = 0  # since when every candidate is backed off, which does not count as waiting; 0: one is not
    bound: str = ""  # the process whose life the lease will have, when it is not the holder's
    client: str = ""  # who asks, where the holder only speaks for it
    renew_ms: int = 0  # how often its client renews it: it is judged by that, and by no process
    renew_by: int = 0  # let go of then, if nobody has heard of the client
    asks: tuple[str, ...] = ()  # accounts whose usage the holder can ask for (SPEC G3)
    job: bool = False  # a job's: away, and nobody's, until a worker offers to run it (SPEC J2)
    any_host: bool = False  # of a job: it runs where the worker is
    confirm: bool = False  # of a job: when its turn comes it is held until somebody approves it (SPEC J5)
    held: bool = False  # its turn came, and nobody has approved it yet
    not_before: int = 0  # of a job that failed: no worker may offer to run it earlier

    @property
    def state(self) -> str:
        """One of ticket_states.STATES."""
        if not self.away:
            return STALLED if self.stalled_at else WAITING
        if not self.job:
            return PASSED_OVER
        return HELD if self.held else UNASSIGNED


class Lease(Struct, omit_defaults=True, gc=False):
    """Slots lent to a ticket's process."""

    ticket: Ticket
    model: str  # the candidate that was chosen; "" when the request names none
    granted_at: int
    granted_seq: int
    claimed: bool = True
    child: str = ""  # the agent's process; the lease lives as long as it does
    charge_ms: int = 0  # what the project was charged for the slot, put right at release
    ends_at: int = 0  # longest hold; 0 is none
    waited_ms: int = 0

    @property
    def id(self) -> str:
        return self.ticket.id

    @property
    def lives_with(self) -> str:
        """The process whose end is the end of the lease; none where a client has to renew it."""
        if self.ticket.renew_ms:
            return ""
        return self.child or self.ticket.bound or self.ticket.holder


class Rule(Struct, frozen=True, omit_defaults=True):
    """A cap and its options for the pools of one selector, as one source gives them. None: not said."""

    kind: str
    selector: str
    cap: int | None = None
    auto: bool = False  # host = "auto": the cap follows free memory (SPEC C7)
    cooldown_ms: int | None = None
    on_429: str | None = None  # "adapt", "step", "pause", "fixed"
    max_hold_ms: int | None = None
    name: str | None = None
    usage_gate: bool | None = None  # ask the provider before someone in the queue is let in
    explore: bool | None = None  # `adapt` may go above the cap
    unlimited: bool = False  # `cap rm`: no cap, whatever lower sources say


class Reason(Struct, omit_defaults=True, gc=False):
    """Why a request is waiting or refused (SPEC A6). `code` is for programs, `text` for people."""

    code: str
    text: str
    pool: str = ""
    pools: list[str] = field(default_factory=list)
    until: int | None = None
    in_flight: int | None = None
    limit: int | None = None
    model: str = ""
    cause: str = ""  # of a backoff
