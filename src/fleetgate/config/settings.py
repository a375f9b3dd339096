"""The settings of a config file, in the units that Fleetgate works with. The values here are the defaults.

Caps are `Rule` structs of the engine, which fills in what they do not say (core/pools/effective_caps.py).
"""

from __future__ import annotations

from msgspec import Struct, field

from fleetgate.core.entities import AccountSet, BudgetRule, PlanRule, Rule
from fleetgate.core.prices import ConfiguredPrice


class HostAuto(Struct, frozen=True):
    """How `host = "auto"` follows free memory (rule C7)."""

    reserve_bytes: int = 6 * 1024**3
    per_agent_bytes: int = 512 * 1024**2
    max: int = 8


# Which calls the proxy may send with the login of an account that they did not bring (rule Z6).
SHARE_LOGIN = ("none", "agents", "owner", "trusted")


class Provider(Struct, frozen=True):
    """Where a provider is, where its key is to be found (never the key), and how to ask it for its usage."""

    base_url: str = ""  # without a slash at its end
    key_env: str = ""
    credential_file: str = ""  # absolute, or below ~/: see paths.expand_home
    api: str = "openai"
    usage_path: str = ""
    usage_field: str = ""
    hold_ms: int = 600_000  # how long the proxy lets a request wait (rule X2)
    stall_ms: int = 900_000  # how long the proxy waits for the provider's next byte
    comment_after_ms: int = 0  # after how long in the queue a stream begins with comments; 0: never
    rates: str = "follow"  # or "ignore": what its responses report about its rates (rule V6)
    identity_path: str | None = None  # where the proxy asks whose login a token is; None: what is known, "": nowhere
    share_login: str = "agents"  # one of SHARE_LOGIN
    env: dict[str, str] = field(default_factory=dict)  # with which its agents find the login: gate/providers


class TrustedHeader(Struct, frozen=True):
    """The header in which a reverse proxy names the user whom it has signed in (rule E4)."""

    header: str
    peers: tuple[str, ...]  # addresses or networks
    secret_file: str
    users: dict[str, str] = field(default_factory=dict)  # by name: the role
    role: str = ""  # of others; "": they are refused


class Serve(Struct, frozen=True):
    """How `fleetgate serve` answers (rule H5)."""

    concurrency_token: bool = False
    hosts: tuple[str, ...] = ()  # names that it is called by, besides its addresses
    access_log: bool = True  # of the proxy
    submit: bool | None = None  # jobs over HTTP; None: on loopback only
    local_users: str = "self"  # whom it trusts on loopback without the token: "self", "group" or "all"
    host: str = "127.0.0.1"  # the address that it listens on
    port: int = 4180
    tls_cert: str = ""  # a file: with this, the service speaks TLS
    tls_key: str = ""
    trust_user_header: TrustedHeader | None = None


class JobSettings(Struct, frozen=True):
    """What is kept of jobs that have ended, and of what they print."""

    keep_ms: int = 7 * 86_400_000
    output_bytes: int = 64 * 1024**2  # of one job, in all its files


# The kinds of notifications (rule T1). The first ones are sent unless a target chooses others.
TOLD_BY_DEFAULT = (
    "held",
    "expired",
    "failed",
    "rate_limited",
    "auto_reduced",
    "recovered",
    "login",
    "budget_80",
    "budget_100",
    "plan_dry",
)

TOLD = (*TOLD_BY_DEFAULT, "budget_50", "queued", "started", "succeeded")


class Notify(Struct, frozen=True):
    """A target of notifications: a URL or a command."""

    name: str = ""
    url: str = ""  # never shown: it may hold a secret
    url_env: str = ""
    command: tuple[str, ...] = ()
    events: tuple[str, ...] = TOLD_BY_DEFAULT
    per_hour: int = 20


class Settings(Struct, frozen=True):
    """Everything that a config file can say."""

    models: tuple[str, ...] = ()  # candidates where a command names none, as str(Model)
    seniority_ms: int | None = None  # None: a `since` counts in full (rule A4)
    rules: tuple[Rule, ...] = ()
    budgets: tuple[BudgetRule, ...] = ()
    plans: tuple[PlanRule, ...] = ()
    accounts: tuple[AccountSet, ...] = ()
    prices: tuple[ConfiguredPrice, ...] = ()  # the narrowest selector first
    time_zone: str = ""  # in which days, weeks and months begin; "" is that of this machine
    host_auto: HostAuto = HostAuto()
    providers: dict[str, Provider] = field(default_factory=dict)  # by name; or `name@account`, but for the default one
    census: tuple[str, ...] = ()  # patterns that compile
    census_users: tuple[str, ...] = ()  # whose processes are looked at, besides those of the gate's own users
    wrap: tuple[str, ...] = ()
    patience_ms: int = 120_000  # how long an agent that was refused may call again by itself; 0: not at all
    on_cutoff: str = "keep"  # or "end": agents of a host that cannot reach the store for long
    keep_ms: int = 30 * 86_400_000
    keep_bytes: int = 256 << 20
    usage_keep_ms: int = 400 * 86_400_000
    serve: Serve = Serve()
    jobs: JobSettings = JobSettings()
    notify: tuple[Notify, ...] = ()
    subagents: int = 0  # how many helpers of its own an agent may run at once; 0: as many as it likes
    weights: dict[str, int] = field(default_factory=dict)  # by project: how much more than others it gets
    preempt_after_ms: int = 0  # how long an interactive request waits before a batch job gives way; 0: none does
    classes: dict[str, str] = field(default_factory=dict)  # by project: the class of its requests
    otel_endpoint: str = ""  # where the service sends traces and metrics, without a slash at its end
    fallback: dict[str, tuple[str, ...]] = field(default_factory=dict)  # what the proxy tries instead of a model
