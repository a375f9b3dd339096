"""The format of a snapshot: the state as data, to be stored and read back.

`FORMAT` is raised when a snapshot of an older release would be misread. Fields are only ever added, with defaults;
tests/golden restores a snapshot of every format ever released.
"""

from __future__ import annotations

from msgspec import Struct, field

from fleetgate.core.access.keys import AccessKey
from fleetgate.core.budgets.calendar import UTC, Zone
from fleetgate.core.budgets.estimates import Ratio
from fleetgate.core.entities import AccountSet, BudgetRule, Lease, PlanRule, Rule, Ticket
from fleetgate.core.limits.adaptive_tuning import USUAL_LAG_MS
from fleetgate.core.plans.burn import BurnRecord
from fleetgate.core.pools.backoff import Backoff
from fleetgate.core.usage import Usage, UsageRow

FORMAT = 1


class ShareRecord(Struct, array_like=True):
    start: int
    debit: int
    latest: int
    latest_at: int


class UpstreamRecord(Struct, omit_defaults=True):
    """The usage gate of a pool."""

    asked_by: str = ""
    asked_at: int = 0
    prompt_at: int = 0
    cooled_at: int = 0
    count: int | None = None
    error: str = ""
    answered_at: int = 0
    granted: int = field(default=0, name="lent")


class CallRecord(Struct, array_like=True, gc=False):
    """What the adaptive limit knows about an admission (limits/adaptive_state.py explains each field)."""

    epoch: int
    level: int
    at: int
    bold: bool
    ghosts: int
    ghost_age: int
    decided: bool = False
    refused: bool = False
    live: int = 0


class BeliefRecord(Struct, omit_defaults=True):
    """What the adaptive limit has learned about one pool."""

    limit: int = 0
    proven: int = 0
    ahead: int = 0
    firm: int = 0
    proven_at: int = 0
    failed: int = 0
    lag_ms: int = USUAL_LAG_MS  # what older snapshots mean by none
    lag_low: int = 0
    lag_was: int = 0
    lag_at: int = 0
    stride: int = 0
    again: int = 0
    since: int = 0
    since_at: int = 0
    settled: int = 0
    began_at: int = 0
    changes: int = 0
    clean: int = 0
    epoch: int = 1
    in_a_row: int = 0
    next_probe: int = 0
    probing: bool = False
    unproven: str = ""
    sent_at: int = 0
    tried_at: int = 0
    tried: int = 0
    freed_at: int = 0
    hold_ms: int = 1_800
    gap_ms: int = 4_000 * 16
    freed: list[tuple[int, int]] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    before: tuple[int, int] = (0, 0)
    failed_before: int = 0
    probe_before: int = 0
    last_why: str = ""
    last_level: int = 0
    last_at: int = 0
    calls: dict[str, CallRecord] = field(default_factory=dict)


class PoolRecord(Struct, omit_defaults=True):
    """What of a pool cannot be derived from rules, leases and tickets."""

    kind: str
    pool: str
    cooling: list[tuple[int, int]] = field(default_factory=list)
    paused_until: int = 0
    pause_cause: str = ""
    incident_seq: int = 0
    reduced: int = 0
    virtual: int = 0
    shares: dict[str, ShareRecord] = field(default_factory=dict)
    holds: int = 0
    hold_mean_ms: int = 0
    hold_dev_ms: int = 0
    upstream: UpstreamRecord | None = None
    adapt: BeliefRecord | None = None  # what was learned about the provider's limit
    tokens: int = 0
    token_ms: int = 0
    tokens_at: int = 0


class BudgetRecord(Struct, omit_defaults=True):
    """What of a budget cannot be derived from rules, leases and tickets."""

    budget: str
    level: int = 0  # of a rate, in parts of a unit
    level_at: int = 0
    used: int = 0  # of a window
    ends_at: int = 0
    extras: list[tuple[int, int]] = field(default_factory=list)
    reached: int = 0
    # By lease: the amount, the end of its window, what its run gave; what was taken and given back since.
    held: dict[str, tuple[int, int, int, int, int]] = field(default_factory=dict)
    virtual: int = 0
    shares: dict[str, ShareRecord] = field(default_factory=dict)


class PlanRecord(Struct, omit_defaults=True):
    """A plan window."""

    account: str
    window: str
    used: int = 0
    resets_at: int = 0
    length_ms: int = 0
    seen_at: int = 0
    family: str = ""
    pace_opens_at: int = 0
    warned: bool = False
    samples: list[tuple[int, int]] = field(default_factory=list)
    burn: BurnRecord = (0, 0, 0, 0, 0, 0, 0, 0)


class Snapshot(Struct, omit_defaults=True):
    """Everything that `State.restore` needs."""

    seq: int
    at: int
    format: int = 0  # always written: what equals its default is not
    file_path: str = ""
    file_digest: str = ""
    file_modified: int = 0
    seniority_ms: int | None = None
    file_rules: list[Rule] = field(default_factory=list)
    runtime_rules: list[Rule] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    pools: list[PoolRecord] = field(default_factory=list)
    arrivals: int = 0
    front: int = 0
    holds: dict[str, int] = field(default_factory=dict)
    foreign: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    auto_caps: dict[str, int] = field(default_factory=dict)
    reserved: dict[str, tuple[str, ...]] = field(default_factory=dict)
    backoffs: list[Backoff] = field(default_factory=list)
    chosen: dict[str, dict[str, int]] = field(default_factory=dict)
    draining: dict[str, int] = field(default_factory=dict)
    recovers_until: int = 0
    recovers_since: int = 0
    file_budgets: list[BudgetRule] = field(default_factory=list)
    runtime_budgets: list[tuple[str, str, str, BudgetRule | None]] = field(default_factory=list)
    provider_rates: dict[str, dict[str, BudgetRule]] = field(default_factory=dict)
    zone: Zone = UTC
    budgets: list[BudgetRecord] = field(default_factory=list)
    token_ratios: dict[str, Ratio] = field(default_factory=dict)
    call_outputs: dict[str, list[int]] = field(default_factory=dict)
    run_usages: dict[str, list[Usage]] = field(default_factory=dict)
    usage_hour: int = 0
    usage_rows: list[UsageRow] = field(default_factory=list)
    preempt_after_ms: int = 0
    weights: dict[str, int] = field(default_factory=dict)
    access_keys: list[AccessKey] = field(default_factory=list)
    file_plans: list[PlanRule] = field(default_factory=list)
    plan_windows: list[PlanRecord] = field(default_factory=list)
    account_sets: list[AccountSet] = field(default_factory=list)
    homes: list[tuple[str, str, int]] = field(default_factory=list)  # by conversation, the quietest first
    ramps: list[tuple[str, int, int, int]] = field(default_factory=list)  # account, its beginning, last move, moves
