"""The state as data, to be written down and read back.

`FORMAT` is raised when a snapshot of an older release would be misread. Fields are only ever added, with defaults;
tests/golden restores a snapshot of every format ever released.
"""

from __future__ import annotations

from msgspec import Struct, field

from headgate.core.backoffs import Backoff
from headgate.core.limits.belief import Belief
from headgate.core.records import Lease, Rule, Ticket

FORMAT = 1


class ShareRecord(Struct, array_like=True):
    start: int
    debit: int
    latest: int
    latest_at: int


class UpstreamRecord(Struct, omit_defaults=True):
    """What was asked of a pool's provider, and answered."""

    asked_by: str = ""
    asked_at: int = 0
    prompt_at: int = 0
    cooled_at: int = 0
    count: int | None = None
    error: str = ""
    answered_at: int = 0
    lent: int = 0


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
    adapt: Belief | None = None  # what was learned of the provider's limit


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
