"""What requests may say, and the answers that only the API gives. Unknown fields are refused by name."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from fleetgate.core.model_names import canonical
from fleetgate.core.usage import RESPONSE, Usage
from fleetgate.present.cap_listing import CapRow
from fleetgate.present.json.state import BackoffShape, LeaseShape, Range, ReasonShape, StatusShape, TicketShape, Time
from fleetgate.present.model_choice import UnusableShape

Kind = Literal["agents", "requests"]
WorkClass = Literal["interactive", "normal", "batch"]
Outcome = Literal["ok", "rate_limited", "usage_window", "quota", "overloaded", "auth", "server_error", "local_error"]
Name = Annotated[str, Meta(min_length=1, max_length=300)]
Ident = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{8,64}$", description="your own name for this request")]
Seconds = Annotated[float, Meta(ge=0, le=100_000_000)]
Milliseconds = Annotated[int, Meta(ge=0, le=86_400_000)]


class JsonBody(Struct, forbid_unknown_fields=True):
    pass


# The line and leases.


class NamedBody(JsonBody):
    """A body that names a selector, a pool or a backoff: other names of a provider mean the same."""

    def __post_init__(self) -> None:
        for name in ("selector", "target", "pool", "key"):
            text = getattr(self, name, None)
            if text is not None:
                setattr(self, name, canonical(text))


Count = Annotated[int, Meta(ge=0, le=10**15)]


class UsageBody(JsonBody):
    """What a call or run used, or is expected to use. Without a cost, it is computed from the model's price."""

    calls: Count = 1
    input: Count = 0  # tokens that were not read from a cache
    cache_read: Count = 0
    cache_write: Count = 0
    output: Count = 0
    cost_usd: Annotated[float, Meta(ge=0, le=10**9)] | None = None

    def usage(self) -> Usage:
        cost = None if self.cost_usd is None else round(self.cost_usd * 10**6)
        return Usage(self.calls, self.input, self.cache_read, self.cache_write, self.output, cost, RESPONSE)


class AcquireBody(JsonBody):
    """What `fleetgate acquire` says on its command line, and how this client will be heard of."""

    models: Annotated[list[Name], Meta(max_length=20)] = []
    kind: Kind = "requests"
    slots: Annotated[int, Meta(ge=1, le=10_000)] = 1
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    project: Annotated[str, Meta(max_length=100)] = ""
    any: bool = False
    key: Annotated[str, Meta(max_length=200)] = ""
    role: Annotated[str, Meta(max_length=100)] = ""
    name: Annotated[str, Meta(max_length=100)] = ""
    since: Annotated[str, Meta(max_length=40)] | float | None = None
    command: Annotated[str, Meta(max_length=200)] = ""
    client: Annotated[str, Meta(max_length=100)] = ""
    wait_s: Annotated[float, Meta(ge=0, le=60)] = 0
    queue: bool | None = None
    id: Ident | None = None
    expires_s: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None
    renew_within_s: Annotated[float, Meta(ge=5, le=3600)] = 30
    estimate: UsageBody | None = None
    work_class: WorkClass | None = field(default=None, name="class")
    conversation: Annotated[str, Meta(max_length=100)] = ""


class LeaseAnswer(Struct):
    """The slot is yours; renew it in time."""

    lease: str
    model: str | None
    waited_s: float
    renew_within_s: float
    ends_at: Time | None


class DeferredAnswer(Struct):
    """Not now. `in_queue`: the ticket keeps its place if you ask again with `id` within `grace_s`."""

    deferred: bool
    in_queue: bool
    id: str | None
    reason: ReasonShape
    position: int | None
    estimate_s: Range | None
    grace_s: float | None
    of: int | None = None  # how many have a position for `pool`
    pool: str | None = None


class RenewAnswer(Struct):
    lease: str
    renew_within_s: float
    ends_at: Time | None


class ReleaseBody(JsonBody):
    outcome: Outcome | None = None
    retry_after_s: Seconds | None = None
    force: bool = False
    usage: UsageBody | None = None


class ReleaseAnswer(Struct):
    lease: str
    released: bool
    outcome: str | None
    held_s: float | None
    forced: bool
    entered: int


class StopAnswer(Struct):
    """`stopping`: it is told to end; KILL follows 10 s later. Its slot is free when its processes are gone."""

    lease: str
    stopping: bool
    job: bool
    stop_by: str | None


class CancelBody(JsonBody):
    ids: Annotated[list[Name], Meta(min_length=1, max_length=1000)]


class CancelAnswer(Struct):
    cancelled: list[str]


class BumpBody(JsonBody):
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None


class BumpAnswer(Struct):
    id: str
    position: int | None
    priority: int
    entered: bool
    of: int | None = None
    pool: str | None = None


class TicketsAnswer(Struct):
    """By expected start; `total` counts those that are not listed too."""

    tickets: list[TicketShape]
    backoffs: list[BackoffShape]
    total: int
    matching: int  # how many the filter leaves
    seq: int


class LeasesAnswer(Struct):
    leases: list[LeaseShape]
    seq: int


class HolderShape(Struct):
    """A process, or a client that the service speaks for (then `pid` is null)."""

    host: str
    pid: int | None
    client: str | None
    command: str | None
    gone: bool | None
    leases: list[str]
    tickets: list[str]
    slots: int


class HoldersAnswer(Struct):
    holders: list[HolderShape]


# Caps.


class PreviousCap(Struct):
    """A cap as it was before: enough to undo."""

    cap: int | None
    auto: bool
    source: str


class CapBody(NamedBody):
    selector: Name
    cap: Annotated[int, Meta(ge=1, le=1_000_000)] | Literal["auto"]
    kind: Kind | None = None
    cooldown_ms: Milliseconds | None = None
    on_429: Literal["adapt", "step", "pause", "fixed"] | None = None
    explore: bool | None = None
    max_hold_ms: Annotated[int, Meta(ge=0, le=10**12)] | None = None
    name: Annotated[str, Meta(max_length=100)] | None = None
    usage_gate: bool | None = None
    reserve: Annotated[int, Meta(ge=0, le=1_000_000)] | Annotated[str, Meta(max_length=10)] | None = None
    lendable: bool | None = None
    refusals: Literal["cheap", "normal", "expensive"] | None = None


class CapAnswer(CapRow):
    entered: int
    was: PreviousCap | None


class CapsAnswer(Struct):
    caps: list[CapRow]


class SelectorBody(NamedBody):
    selector: Name
    kind: Kind | None = None


class CapRemovedAnswer(Struct):
    selector: str
    kind: str
    cap: int | None
    entered: int
    was: PreviousCap | None


class CapResetAnswer(Struct):
    selector: str
    kind: str
    cap: int | None
    auto: bool
    source: str | None
    entered: int
    was: PreviousCap | None


class ImportBody(JsonBody):
    text: Annotated[str, Meta(max_length=60_000)]


class ImportedCap(Struct):
    selector: str
    kind: str
    cap: int


class ImportAnswer(Struct):
    caps: list[ImportedCap]
    entered: int


class CooldownBody(NamedBody):
    selector: Name
    cooldown_ms: Milliseconds
    kind: Kind | None = None


class CooldownAnswer(Struct):
    selector: str
    kind: str
    cooldown_ms: int
    source: str
    capped: bool
    was_ms: int | None


# Pools, rate limits, backoffs.


class PauseBody(NamedBody):
    target: Name
    kind: Kind | None = None
    for_s: Annotated[float, Meta(ge=0.001, le=100_000_000)] | None = None


class PausedPool(Struct):
    pool: str
    kind: str
    paused: bool
    paused_until: Time | None


class PauseAnswer(Struct):
    pools: list[PausedPool]


class TargetBody(NamedBody):
    target: Name
    kind: Kind | None = None


class ResumedPool(Struct):
    pool: str
    kind: str


class ResumeAnswer(Struct):
    pools: list[ResumedPool]
    entered: int


class DrainBody(JsonBody):
    host: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    end: bool = False


class RestoreBody(NamedBody):
    pool: Name
    kind: Kind | None = None


class ReportBody(NamedBody):
    target: Name | None = None
    lease: Name | None = None
    kind: Kind | None = None
    retry_after_s: Seconds | None = None


class BackoffBody(NamedBody):
    key: Name
    reason: Annotated[str, Meta(max_length=40)]
    for_s: Annotated[float, Meta(ge=0.001, le=100_000_000)] | None = None


class ClearedAnswer(Struct):
    cleared: list[str]
    entered: int


class SelectBody(JsonBody):
    models: Annotated[list[Name], Meta(max_length=20)] = []
    rotate: Annotated[str, Meta(min_length=1, max_length=100)] | None = None


class SelectAnswer(Struct, omit_defaults=True):
    """The model to use, or why none of them."""

    model: str | None
    unusable: list[UnusableShape] | None = None


# The rest.


class SessionShape(Struct):
    version: str
    may_change: bool
    role: str | None
    key: str | None
    user: str | None  # whom a reverse proxy has signed in
    project: str | None  # the only one that it sees: that of an agent's key
    loopback: bool
    host: str
    seq: int
    started_at: Time
    dashboard: bool


class OverviewAnswer(Struct):
    """What a page needs, read at one moment."""

    status: StatusShape
    tickets: list[TicketShape]
    leases: list[LeaseShape]
    session: SessionShape


class LinkBody(Struct, forbid_unknown_fields=True):
    """`shared`: every user of this machine may use the link, and a reverse proxy."""

    shared: bool = False


class LinkAnswer(Struct):
    url: str
    valid_s: int


class SignInBody(Struct, forbid_unknown_fields=True):
    """The code of a one-time link, or an access key."""

    code: Annotated[str, Meta(max_length=200)] = ""
    key: Annotated[str, Meta(max_length=200)] = ""


class SignInAnswer(Struct):
    """`secret` goes into the header `x-fleetgate-session`, beside the cookie that came with this answer."""

    secret: str
    ends_at: Time


class SignOutAnswer(Struct):
    signed_out: bool


class HistoryAnswer(Struct):
    """`events` as `fleetgate history --json`, with `text`; `more`: ask again with the last one's `seq`."""

    events: list[dict[str, object]]
    seq: int
    first_seq: int | None
    more: bool


class ValueShape(Struct):
    name: str
    value: object
    source: str
    variable: str | None


class ConfigAnswer(Struct):
    values: list[ValueShape]
    caps: list[CapRow]
    warnings: list[str]


class HealthAnswer(Struct):
    status: str
    error: str | None = None
