"""The commands of the engine. Each is plain data, so that it can travel over a socket.

`by` is the author of a change, which its events name (rule E3): see core/access/authorship.py.

Ids are made by the caller (random, see gate/request_ids.py): a command whose fate is unknown is found by its id.
"""

from __future__ import annotations

from msgspec import Struct

from fleetgate.core.access.keys import KeyCommand
from fleetgate.core.budgets.calendar import UTC, Zone
from fleetgate.core.budgets.commands import AddBudget as AddBudget
from fleetgate.core.budgets.commands import ObserveRates as ObserveRates
from fleetgate.core.budgets.commands import RemoveBudget as RemoveBudget
from fleetgate.core.budgets.commands import ResetBudget as ResetBudget
from fleetgate.core.budgets.commands import SetBudget as SetBudget
from fleetgate.core.budgets.commands import UnsetBudget as UnsetBudget
from fleetgate.core.entities import AccountSet, BudgetRule, PlanRule, Rule, Spec, Ticket
from fleetgate.core.plans.reading import PlanReading
from fleetgate.core.usage import Reading, Size, Usage


class Acquire(Struct, tag="acquire", omit_defaults=True, gc=False):
    """Ask for slots. With `wait` it takes a place in the queue if it cannot enter now; without, it is deferred."""

    id: str
    spec: Spec
    holder: str
    wait: bool = True
    since: int | None = None  # log time; None: now
    priority: int = 0
    expires_ms: int = 0  # 0: the default of 24 h
    wake: str = ""
    command: str = ""
    key: str = ""
    role: str = ""
    session: str = ""
    bound: str = ""  # the lease ends with this process instead of the holder (`acquire --pid`)
    client: str = ""  # the client that the holder speaks for
    renew_ms: int = 0  # how often the client will renew; 0: it lives as long as its process
    asks: tuple[str, ...] = ()  # accounts whose usage the holder can ask for
    job: bool = False  # a job: with `wait` it is unassigned, without a holder, until a worker offers to run it
    any_host: bool = False
    confirm: bool = False
    not_before: int = 0  # log time
    estimate: Usage | None = None  # what it is expected to use, where the caller knows
    size: Size | None = None  # of a call: what the engine estimates that from
    run: str = ""  # of a call: the lease of the run that makes it
    name: str = ""  # what its user calls it (`run --name`)
    log: bool = False  # its output is kept (`run --log`)
    by: str = ""  # of a job: its author, for the history
    conversation: str = ""  # what it belongs to (rule Z3)


class Offer(Struct, tag="offer", omit_defaults=True):
    """A worker with a free hand offers to run this job: its ticket waits in the worker's name from now on (rule J2)."""

    id: str
    holder: str
    host: str
    wake: str = ""
    asks: tuple[str, ...] = ()


class Withdraw(Struct, tag="withdraw"):
    """The worker will not run this job after all: it goes back to its place, even if it was just admitted."""

    id: str
    holder: str


class Approve(Struct, tag="approve", omit_defaults=True):
    """A job that was to be confirmed may run (rule J5)."""

    id: str
    by: str = ""


class EndJob(Struct, tag="end_job", omit_defaults=True):
    """A job has reached a final state: for the history."""

    id: str
    state: str
    attempts: int = 0
    why: str = ""
    name: str = ""
    exit_code: int | None = None


class Ask(Struct, tag="ask"):
    """The holder of a ticket that was passed over is still there and wants to wait again."""

    id: str


class Claim(Struct, tag="claim", omit_defaults=True):
    """The holder takes a grant, or ties its lease to the agent that it started."""

    id: str
    child: str = ""
    holder: str = ""  # only if the grant is this process's


class Adopt(Struct, tag="adopt", omit_defaults=True):
    """A process is running that the log does not know, or no longer: count it from now on, whatever the limits are.

    `why`: log_lost (the log lost the commits that said so), failed_open (it began while there was no store), cut_off
    (it was declared lost while its host could not be reached).
    """

    ticket: Ticket
    model: str = ""
    child: str = ""
    held_ms: int = 0  # how long it has been running
    why: str = "log_lost"


class Recover(Struct, tag="recover", omit_defaults=True):
    """The log may have lost its last commits: admit nothing for a while; running processes are adopted first."""

    for_ms: int
    why: str = ""


class Drain(Struct, tag="drain", omit_defaults=True):
    """Start nothing more on a host; or, with `end`, start again."""

    host: str
    by: str = ""
    end: bool = False


class Renew(Struct, tag="renew", omit_defaults=True):
    """This process heard from the client behind a ticket or lease, and speaks for it from now on."""

    id: str
    holder: str = ""
    wake: str = ""


class Release(Struct, tag="release", omit_defaults=True, gc=False):
    """Release the slots. Harmless when the lease is gone (rule L1).

    `keeps`: not yet. The agent was refused and retries automatically; only others are held back.
    """

    id: str
    outcome: str = "ok"
    retry_after_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    activity: bool | None = None
    evidence: str = ""
    scope: str = ""  # of a backoff, where the outcome names it: model, family, account
    family: str = ""  # the models of that family, as a glob
    credential: str = ""  # salted hash of the credential that was used
    holder: str = ""  # only if the lease is this process's: a job's id is granted more than once
    identity: str = ""  # whose account it names, see Credential
    keeps: bool = False
    named: bool = False  # the provider itself says that its rate limit is about `scope`
    usage: Usage | None = None  # what it used; None: not known, and what was reserved counts as used
    readings: tuple[Reading, ...] = ()  # the provider's rates, by the headers of its response
    refused_rate: str = ""  # of a rate limit: the unit of the rate that it means (rule V8)


class Settle(Struct, tag="settle"):
    """A lease has used this much, beside what was settled before; it goes on (rule V2)."""

    id: str
    usage: Usage


class Reclaim(Struct, tag="reclaim", omit_defaults=True):
    """Take a lease back by force (rule L3), in the name of `by`. `cause`: forced, or unrenewed."""

    id: str
    by: str = ""
    cause: str = "forced"


class Stop(Struct, tag="stop", omit_defaults=True):
    """Have the agent of a lease stopped, in the name of `by` (rule L6). Its runner, or `fleetgate stop`, ends it."""

    id: str
    by: str = ""


class Cancel(Struct, tag="cancel", omit_defaults=True):
    """Leave the queue, or give up a grant that was not claimed yet."""

    id: str
    by: str = ""


class Bump(Struct, tag="bump", omit_defaults=True):
    """Move a ticket to the front, or give it another priority."""

    id: str
    priority: int | None = None
    by: str = ""


class Lost(Struct, tag="lost", omit_defaults=True):
    """These processes are gone: what they held is free, and what they waited for is dropped."""

    processes: tuple[str, ...]
    silent: tuple[str, ...] = ()  # those whose host gave no sign for too long: they may still be running


class Observe(Struct, tag="observe", omit_defaults=True):
    """What was observed on a host: agents started outside Fleetgate by model ("" for none), and room in memory.

    `room` is how many more agents fit, for hosts whose cap is automatic; `most` the highest such cap.
    """

    host: str
    foreign: tuple[tuple[str, int], ...] = ()
    room: int | None = None
    most: int = 8


class SetRule(Struct, tag="set_rule", omit_defaults=True):
    """Set what is said in `rule` at run time; what is None stays."""

    rule: Rule
    by: str = ""


class RemoveCap(Struct, tag="remove_cap", omit_defaults=True):
    """No cap on this selector, whatever the file says."""

    kind: str
    selector: str
    by: str = ""


class ResetCap(Struct, tag="reset_cap", omit_defaults=True):
    """Forget what was set at run time for this selector: back to the file."""

    kind: str
    selector: str
    by: str = ""


class LoadFile(Struct, tag="load_file", omit_defaults=True):
    """The config file's caps. Enters once per content, and only when newer, unless `force`."""

    path: str
    digest: str
    modified: int
    rules: tuple[Rule, ...]
    seniority_ms: int | None = None
    force: bool = False
    budgets: tuple[BudgetRule, ...] = ()
    zone: Zone = UTC  # in which days, weeks and months begin
    plans: tuple[PlanRule, ...] = ()
    preempt_after_ms: int = 0  # rule W5; 0: no job gives way
    weights: tuple[tuple[str, int], ...] = ()  # by project (rule W6)
    by: str = ""
    account_sets: tuple[AccountSet, ...] = ()


class ObservePlan(Struct, tag="observe_plan"):
    """The windows of an account's plan, as a response or an agent says (rule W1)."""

    account: str  # a provider, or `provider@account`
    readings: tuple[PlanReading, ...]


class Pause(Struct, tag="pause", omit_defaults=True):
    """Pause these pools for a while, or until a person resumes them (`for_ms` None)."""

    kind: str
    pool: str
    for_ms: int | None = None
    by: str = ""


class UseUp(Struct, tag="use_up", omit_defaults=True):
    """The headers of a successful answer to this lease's call say that nothing is left for this long.

    With a `scope` only that is held back, not the whole account.
    """

    id: str
    for_ms: int
    scope: str = ""
    family: str = ""


class Resume(Struct, tag="resume", omit_defaults=True):
    """End a pause."""

    kind: str
    pool: str
    by: str = ""


class Report(Struct, tag="report", omit_defaults=True):
    """A rate limit that the holder of a lease (`id`) saw, or a script that names a pool or model."""

    id: str = ""
    kind: str = ""
    target: str = ""
    retry_after_ms: int | None = None


class AskUsage(Struct, tag="ask_usage"):
    """This process is going to ask a pool's provider how much is in flight, if that is wanted now (rule G3)."""

    kind: str
    pool: str
    by: str


class AnswerUsage(Struct, tag="answer_usage", omit_defaults=True):
    """The provider's answer; None: unknown, and why."""

    kind: str
    pool: str
    by: str
    count: int | None = None
    error: str = ""


class BackOff(Struct, tag="back_off", omit_defaults=True):
    """A person backs off a model or account for a while (rule B6); this replaces an existing backoff."""

    key: str
    reason: str
    for_ms: int | None = None
    credential: str = ""  # what is refused, with the reason auth
    by: str = ""


class EndBackoff(Struct, tag="end_backoff", omit_defaults=True):
    """Use it again."""

    key: str
    by: str = ""


class Active(Struct, tag="active"):
    """The agent of a lease has done something: a probe has succeeded."""

    id: str


class Credential(Struct, tag="credential", omit_defaults=True):
    """The credential of an account as it is now (a salted hash): if it has changed, a refused login is over.

    `identity` is whose account it names (`kind:salted hash`; "" is unknown): for another one, backoffs end.
    """

    account: str
    digest: str
    identity: str = ""


class Select(Struct, tag="select"):
    """Choose the least recently chosen of the models that are not backed off, for a role (rule B4)."""

    models: tuple[str, ...]
    role: str


class Bypass(Struct, tag="bypass", omit_defaults=True):
    """An agent ran without a slot (FLEETGATE_BYPASS): for the history."""

    holder: str
    models: tuple[str, ...] = ()
    command: str = ""


class Tick(Struct, tag="tick", gc=False):
    """Time has passed: do what is due. Precedes every batch of commands."""


Command = (
    Acquire
    | Offer
    | Withdraw
    | Approve
    | EndJob
    | Ask
    | Claim
    | Adopt
    | Recover
    | Drain
    | Renew
    | Release
    | Settle
    | Reclaim
    | Stop
    | Cancel
    | Bump
    | Lost
    | Observe
    | SetRule
    | RemoveCap
    | ResetCap
    | LoadFile
    | SetBudget
    | RemoveBudget
    | UnsetBudget
    | ResetBudget
    | AddBudget
    | ObserveRates
    | ObservePlan
    | KeyCommand
    | Pause
    | UseUp
    | Resume
    | Report
    | AskUsage
    | AnswerUsage
    | BackOff
    | EndBackoff
    | Active
    | Credential
    | Select
    | Bypass
    | Tick
)
