"""What happened. The log is a sequence of these, and nothing changes the state but `State.apply(event)`.

Fields are only ever added, with defaults, so that old logs stay readable. docs/events.md describes each type
for readers of `fleetgate history`; a test fails when one is missing there. `by` names the author of a change (rule E3).
"""

from msgspec import Struct

from fleetgate.core.access.keys import KeyRemoved as KeyRemoved
from fleetgate.core.access.keys import KeySet as KeySet
from fleetgate.core.budget_events import BudgetAdded as BudgetAdded
from fleetgate.core.budget_events import BudgetReached as BudgetReached
from fleetgate.core.budget_events import BudgetRemoved as BudgetRemoved
from fleetgate.core.budget_events import BudgetReset as BudgetReset
from fleetgate.core.budget_events import BudgetSet as BudgetSet
from fleetgate.core.budget_events import BudgetUnset as BudgetUnset
from fleetgate.core.budget_events import HourClosed as HourClosed
from fleetgate.core.budget_events import RatesObserved as RatesObserved
from fleetgate.core.budget_events import Settled as Settled
from fleetgate.core.entities import Reason, Spec, Ticket
from fleetgate.core.plan_events import PlanObserved as PlanObserved
from fleetgate.core.plan_events import PlanRunway as PlanRunway
from fleetgate.core.plan_events import Preempted as Preempted
from fleetgate.core.plan_events import Reserved as Reserved
from fleetgate.core.pools.events import CapRemoved as CapRemoved
from fleetgate.core.pools.events import CapReset as CapReset
from fleetgate.core.pools.events import FileLoaded as FileLoaded
from fleetgate.core.pools.events import RuleSet as RuleSet
from fleetgate.core.pools.events import SelectorSeen as SelectorSeen
from fleetgate.core.pools.usage_events import UsageAnswered as UsageAnswered
from fleetgate.core.pools.usage_events import UsageAsked as UsageAsked
from fleetgate.core.usage import Usage


class Queued(Struct, tag="queued", omit_defaults=True, gc=False):
    """A request took its place in the queue, for this reason."""

    ticket: Ticket
    reason: Reason


class Deferred(Struct, tag="deferred", omit_defaults=True):
    """A request that does not wait was refused, and why. It costs nothing (rule A7)."""

    id: str
    spec: Spec
    holder: str
    reason: Reason
    command: str = ""


class Granted(Struct, tag="granted", omit_defaults=True, gc=False):
    """Slots were granted. `ticket` is set when the request never waited in the queue."""

    id: str
    model: str
    charge_ms: int
    claimed: bool = True
    ticket: Ticket | None = None
    ends_at: int = 0
    waited_ms: int = 0
    probes: tuple[str, ...] = ()  # backoffs that this grant tries out
    adopted: str = ""  # it was already running and counts whatever the limits are: log_lost, failed_open, cut_off
    why: str = ""  # of a request that changed its account, or that was spilled to one: one sentence (rule Z4)


class Claimed(Struct, tag="claimed", omit_defaults=True):
    """The holder took its grant; `child` is the agent that the lease now lives with."""

    id: str
    child: str = ""


class Recovering(Struct, tag="recovering", omit_defaults=True):
    """The log may have lost its last commits: nothing is admitted until then, and running processes are adopted."""

    until: int
    why: str = ""


class Draining(Struct, tag="draining", omit_defaults=True):
    """Nothing new starts on a host."""

    host: str
    by: str = ""


class DrainEnded(Struct, tag="drain_ended", omit_defaults=True):
    """New agents start on a host again."""

    host: str
    by: str = ""


class Renewed(Struct, tag="renewed", omit_defaults=True):
    """The client behind a ticket or lease gave a sign of life. Written now and then, not for each renewal."""

    id: str
    until: int  # kept until then without another
    holder: str = ""  # the process that speaks for the client now, where it is another
    wake: str = ""


class Returned(Struct, tag="returned"):
    """A grant that was not claimed went back to its ticket, which is passed over until its process is heard of."""

    id: str


class Asked(Struct, tag="asked"):
    """A ticket that was passed over waits in the queue again."""

    id: str


class Offered(Struct, tag="offered", omit_defaults=True):
    """A worker offers to run this job: its ticket waits in the queue, in the worker's name and for its host."""

    id: str
    holder: str
    host: str
    wake: str = ""
    asks: tuple[str, ...] = ()


class Withdrawn(Struct, tag="withdrawn"):
    """No worker offers to run this job any more: it keeps its place and asks for nothing."""

    id: str


class Held(Struct, tag="held", omit_defaults=True):
    """The turn of a job came that a person must approve first; it takes no slot until then."""

    id: str
    command: str = ""


class Approved(Struct, tag="approved", omit_defaults=True):
    """A job that was to be confirmed may run."""

    id: str
    by: str = ""


class JobEnded(Struct, tag="job_ended", omit_defaults=True):
    """A job has run for the last time. `state`: succeeded, failed, cancelled, lost."""

    id: str
    state: str
    attempts: int = 0
    why: str = ""
    name: str = ""
    exit_code: int | None = None


class Released(Struct, tag="released", omit_defaults=True, gc=False):
    """A lease ended; the facts of the run."""

    id: str
    outcome: str
    model: str
    waited_ms: int
    held_ms: int
    kind: str = "agents"
    project: str = "default"
    exit_code: int | None = None
    signal: int | None = None
    activity: bool | None = None
    role: str = ""
    session: str = ""
    evidence: str = ""
    job: bool = False
    usage: Usage | None = None  # what it used, as far as that was not settled before
    total: Usage | None = None  # of a run whose calls were counted, or of a lease that was settled before: all it used
    run: str = ""  # of a call: the lease of the run that made it
    name: str = ""  # what its user calls it
    access_key: str = ""  # the access key that it was requested with


class Reclaimed(Struct, tag="reclaimed", omit_defaults=True):
    """A lease was taken back. `cause`: lost (its process is gone), forced, overstayed, unrenewed (by its client)."""

    id: str
    cause: str
    model: str
    held_ms: int
    by: str = ""
    kind: str = "agents"
    project: str = "default"
    job: bool = False
    silent: str = ""  # of a lost one: its host, when that gave no sign for too long; it may still be running there
    usage: Usage | None = None  # what was reserved for it and not settled: it counts as used (rule V3)
    total: Usage | None = None
    run: str = ""
    name: str = ""
    gave_way: bool = False  # a job that was to give way: it returns to the queue (rule W5)
    access_key: str = ""


class StopRequested(Struct, tag="stop_requested"):
    """A user wants the agent of this lease stopped (rule L6)."""

    id: str
    by: str


class Cancelled(Struct, tag="cancelled", omit_defaults=True):
    """A ticket was cancelled."""

    id: str
    by: str = ""
    holder: str = ""  # the process to notify, and where
    wake: str = ""
    command: str = ""
    job: bool = False


class Expired(Struct, tag="expired", omit_defaults=True):
    """A ticket waited too long and left the queue."""

    id: str
    after_ms: int
    holder: str = ""
    wake: str = ""
    command: str = ""
    job: bool = False


class Dropped(Struct, tag="dropped", omit_defaults=True):
    """A ticket left the queue because the process or client that waited is gone."""

    id: str
    why: str = ""  # unrenewed: its client was not heard of; silent: its host was not


class Bumped(Struct, tag="bumped", omit_defaults=True):
    """A ticket was moved in the queue."""

    id: str
    order: int
    priority: int
    by: str = ""


class Observed(Struct, tag="observed", omit_defaults=True):
    """What is observed on a host changed: foreign agents by model, the automatic cap."""

    host: str
    foreign: tuple[tuple[str, int], ...] = ()
    auto_cap: int | None = None


class Paused(Struct, tag="paused", omit_defaults=True):
    """A pool admits nothing until then. `cause`: manual, rate_limited."""

    kind: str
    pool: str
    until: int
    cause: str = "manual"
    incident: bool = False  # a new incident began (rule P2)
    by: str = ""


class Resumed(Struct, tag="resumed", omit_defaults=True):
    """A pause was ended."""

    kind: str
    pool: str
    by: str = ""


class Reduced(Struct, tag="reduced", omit_defaults=True):
    """A rate limit lowered a pool's limit; it stays there until a person sets the cap again."""

    kind: str
    pool: str
    limit: int
    cap: int


class Accepted(Struct, tag="accepted"):
    """The provider accepted a call of a level that was not proven: that many at once are possible."""

    id: str
    kind: str
    pool: str
    level: int


class Refused(Struct, tag="refused", omit_defaults=True):
    """The provider refused a call of a pool whose limit is learned; its meaning, and the limit since.

    `why`: exact (the level tried is one too many), drop (the limit has fallen), probe (it has not risen), lag (calls
    are counted for longer than we thought), alone (not about how many), again (one too many near the limit that was
    found before), early (a released slot was still counted), fit (one more refusal of the same incident).
    """

    kind: str
    pool: str
    id: str  # the lease; "" when a script said so
    why: str
    level: int
    limit: int
    cap: int


class BackedOff(Struct, tag="backed_off", omit_defaults=True):
    """A model, family or account is not to be used until then; or not until later than was said before."""

    key: str
    scope: str  # model, family, account
    reason: str
    since: int
    until: int
    evidence: str = ""
    credential: str = ""  # salted hash of what was refused, never the secret
    manual: bool = False
    id: str = ""  # the lease that saw it
    identity: str = ""  # whose account that credential names, as `kind:salted hash`
    times: int = 0  # of calls: refusals in a row
    by: str = ""


class BackoffEnded(Struct, tag="backoff_ended", omit_defaults=True):
    """A backoff is over. `why`: time, cleared, probe, credential (it has changed), account (it names another)."""

    key: str
    why: str
    by: str = ""


class Chosen(Struct, tag="chosen"):
    """`fleetgate select --rotate` named this model for a role."""

    role: str
    model: str


class Bypassed(Struct, tag="bypassed", omit_defaults=True):
    """An agent ran without a slot."""

    holder: str
    models: tuple[str, ...] = ()
    command: str = ""


Event = (
    Queued
    | Deferred
    | Granted
    | Claimed
    | Recovering
    | Draining
    | DrainEnded
    | Renewed
    | Returned
    | Asked
    | Offered
    | Withdrawn
    | Held
    | Approved
    | JobEnded
    | Released
    | Settled
    | HourClosed
    | Reclaimed
    | StopRequested
    | Preempted
    | Cancelled
    | Expired
    | Dropped
    | Bumped
    | Reserved
    | RuleSet
    | CapRemoved
    | CapReset
    | SelectorSeen
    | FileLoaded
    | BudgetSet
    | BudgetRemoved
    | BudgetUnset
    | BudgetReset
    | BudgetAdded
    | BudgetReached
    | RatesObserved
    | PlanObserved
    | PlanRunway
    | KeySet
    | KeyRemoved
    | Observed
    | Paused
    | Resumed
    | Reduced
    | Accepted
    | Refused
    | UsageAsked
    | UsageAnswered
    | BackedOff
    | BackoffEnded
    | Chosen
    | Bypassed
)
