"""The events about plan windows, and about work that gives way. `core/events.py` has all events."""

from msgspec import Struct


class PlanObserved(Struct, tag="plan_observed", omit_defaults=True):
    """How much of a plan window is used, as the provider says; written where a decision or the percentage changes."""

    account: str
    window: str  # 5h, 7d, 7d_opus
    used: int  # in hundredths of a percent
    resets_at: int
    length_ms: int
    seen_at: int  # when the provider said so
    family: str = ""  # the models that it counts, as a glob; "": all


class PlanRunway(Struct, tag="plan_runway", omit_defaults=True):
    """A plan window runs dry before its reset if it is used as in the last hour; or no longer does."""

    account: str
    window: str
    level: str  # dry or safe
    used: int
    resets_at: int
    dry_at: int = 0  # when it runs dry at this pace; 0: it does not


class Preempted(Struct, tag="preempted"):
    """A batch job gives way to an interactive request: it is stopped, and returns to the queue (rule W5)."""

    id: str  # the job
    ticket: str  # the request that it gives way to


class Reserved(Struct, tag="reserved"):
    """What is released in these pools, and no others, is kept for a ticket that others kept overtaking."""

    id: str
    pools: tuple[str, ...]
