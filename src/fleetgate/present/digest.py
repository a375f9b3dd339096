"""A digest of the history: runs, failures, limits, cost and changes of a period, for one screen.

`Digest` takes events in the order of the log. The cost is that of the hourly sums (present/usage/), which begin with
the hour in which the period begins.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from fleetgate.core import events as ev
from fleetgate.core.limits import LOWERING
from fleetgate.present.event_text import sentence
from fleetgate.present.json.state import Time
from fleetgate.present.log_time import LogTimes
from fleetgate.present.run_statistics import percentile
from fleetgate.present.text import author
from fleetgate.present.usage.report import UsageShape
from fleetgate.signals.agents.placeholders import filled_text

_CHANGES = (
    ev.RuleSet,
    ev.CapRemoved,
    ev.CapReset,
    ev.FileLoaded,
    ev.BudgetSet,
    ev.BudgetRemoved,
    ev.BudgetReset,
    ev.BudgetAdded,
    ev.Draining,
    ev.DrainEnded,
)
_MOST_NAMED = 20_000  # requests whose names and commands are remembered


class FailureShape(Struct):
    """A run or job that failed, or was lost."""

    id: str
    at: Time | None
    name: str | None
    command: str | None
    model: str | None
    job: bool
    outcome: str
    text: str


class DigestLimitShape(Struct):
    """Rate limits of a pool, backoffs of a model or account, or a budget that was nearly used up."""

    what: str  # the pool, the key of the backoff, or the budget
    kind: str  # rate_limit, backoff or budget
    times: int
    reductions: int  # of a pool's limit
    reason: str | None  # of a backoff
    percent: int | None  # of a budget: the most that was used


class ChangeShape(Struct):
    """A change of settings by a person or a file."""

    seq: int
    at: Time | None
    type: str
    text: str


class RunsShape(Struct):
    """Runs that ended; waiting times are percentiles."""

    ended: int
    ok: int
    failed: dict[str, int]  # by outcome
    stopped: dict[str, int]  # by user
    lost: dict[str, int]  # taken back, by cause
    refused: int
    wait_p50_s: float | None
    wait_p95_s: float | None


class DigestShape(Struct):
    """`fleetgate digest --json`. Lists have the newest last."""

    since: Time | None
    until: Time | None
    complete: bool  # false: the history begins later than `since`
    running: int
    waiting: int
    runs: RunsShape
    jobs: dict[str, int]  # jobs that ended, by state
    calls: int
    failures: list[FailureShape]
    limits: list[DigestLimitShape]
    usage: UsageShape  # by model
    changes: list[ChangeShape]


class Digest:
    """What happened, counted event by event."""

    def __init__(self, moments: LogTimes) -> None:
        self._moments = moments
        self.outcomes: Counter[str] = Counter()
        self.stopped: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.jobs: Counter[str] = Counter()
        self.calls = 0
        self.refused = 0
        self.waited_ms: list[int] = []
        self.failures: list[FailureShape] = []
        self.changes: list[ChangeShape] = []
        self._limits: dict[tuple[str, str], DigestLimitShape] = {}
        self._requests: dict[str, tuple[str, str]] = {}  # names and commands
        self._stops: dict[str, str] = {}  # who stopped which lease

    def add(self, seq: int, at: int, event: ev.Event) -> None:
        if isinstance(event, ev.Queued):
            self._remember(event.ticket.id, event.ticket.name, event.ticket.command)
        elif isinstance(event, ev.Granted):
            if event.ticket is not None:
                self._remember(event.id, event.ticket.name, event.ticket.command)
        elif isinstance(event, ev.Released):
            self._released(at, event)
        elif isinstance(event, ev.Reclaimed):
            self._reclaimed(at, event)
        elif isinstance(event, ev.StopRequested):
            self._stops[event.id] = event.by
        elif isinstance(event, ev.JobEnded):
            self._job_ended(at, event)
        elif isinstance(event, ev.Deferred):
            self.refused += event.spec.kind == "agents"
        elif isinstance(event, ev.Paused | ev.Reduced | ev.Refused | ev.BackedOff | ev.BudgetReached):
            self._limited(seq, at, event)
        elif isinstance(event, _CHANGES):
            self._changed(seq, at, event)

    @property
    def ended(self) -> int:
        """Runs and jobs' attempts that ended in any way."""
        return self.outcomes.total() + self.stopped.total() + self.lost.total()

    @property
    def limits(self) -> list[DigestLimitShape]:
        """The most frequent first."""
        return sorted(self._limits.values(), key=lambda limit: (-limit.times, limit.what))

    def runs(self) -> RunsShape:
        failed = {outcome: number for outcome, number in self.outcomes.most_common() if outcome != "ok"}
        waits = [percentile(self.waited_ms, percent) for percent in (50, 95)]
        p50, p95 = (None if ms is None else ms / 1000 for ms in waits)
        ok = self.outcomes["ok"]
        return RunsShape(self.ended, ok, failed, dict(self.stopped), dict(self.lost), self.refused, p50, p95)

    # Ends.

    def _released(self, at: int, event: ev.Released) -> None:
        if event.kind != "agents":
            self.calls += 1
            return
        self.waited_ms.append(event.waited_ms)
        by = self._stops.pop(event.id, "")
        if by and event.outcome != "ok":
            self.stopped[author(by)] += 1
            return
        self.outcomes[event.outcome] += 1
        if event.outcome != "ok" and not event.job:
            self._failed(at, event.id, event.name, event.model, event.outcome, _end_text(event))

    def _reclaimed(self, at: int, event: ev.Reclaimed) -> None:
        if event.kind != "agents":
            self.calls += 1
            return
        if self._stops.pop(event.id, "") or (event.by and event.cause == "lost"):
            self.stopped[author(event.by)] += 1
            return
        self.lost[event.cause] += 1
        if not event.job:
            self._failed(at, event.id, event.name, event.model, event.cause, f"its slot was taken back: {event.cause}")

    def _job_ended(self, at: int, event: ev.JobEnded) -> None:
        self.jobs[event.state] += 1
        if event.state in ("failed", "lost", "expired"):
            self._failed(at, event.id, event.name, "", event.state, event.why or event.state, job=True)

    def _failed(
        self, at: int, ident: str, name: str, model: str, outcome: str, text: str, *, job: bool = False
    ) -> None:
        known, command = self._requests.pop(ident, ("", ""))
        command = filled_text(command, model)
        self.failures.append(
            FailureShape(
                ident, self._moments.utc(at), known or name or None, command or None, model or None, job, outcome, text
            )
        )

    def _remember(self, ident: str, name: str, command: str) -> None:
        self._requests[ident] = (name, command)
        if len(self._requests) > _MOST_NAMED:
            del self._requests[next(iter(self._requests))]

    # Limits and changes.

    def _limited(
        self, seq: int, at: int, event: ev.Paused | ev.Reduced | ev.Refused | ev.BackedOff | ev.BudgetReached
    ) -> None:
        if isinstance(event, ev.BackedOff):
            if event.manual:
                self._changed(seq, at, event)
            else:
                limit = self._limit(event.key, "backoff")
                limit.times += 1
                limit.reason = event.reason
        elif isinstance(event, ev.BudgetReached):
            limit = self._limit(event.budget, "budget")
            limit.times += 1
            limit.percent = max(limit.percent or 0, event.percent)
        elif isinstance(event, ev.Paused):
            if event.incident:
                self._limit(event.pool, "rate_limit").times += 1
            elif not event.cause:
                self._changed(seq, at, event)
        elif isinstance(event, ev.Reduced) or event.why in LOWERING:
            self._limit(event.pool, "rate_limit").reductions += 1

    def _limit(self, what: str, kind: str) -> DigestLimitShape:
        return self._limits.setdefault((what, kind), DigestLimitShape(what, kind, 0, 0, None, None))

    def _changed(self, seq: int, at: int, event: ev.Event) -> None:
        tag = str(event.__struct_config__.tag)
        self.changes.append(ChangeShape(seq, self._moments.utc(at), tag, sentence(event, at)))


def _end_text(event: ev.Released) -> str:
    """How a run ended, in a few words: `rate_limited, exit 1, 429 Too Many Requests`."""
    end = f"signal {event.signal}" if event.signal else "" if event.exit_code is None else f"exit {event.exit_code}"
    kind = "" if event.outcome == "local_error" and end else event.outcome
    _, _, evidence = event.evidence.rpartition(": ")
    return ", ".join(dict.fromkeys(part for part in (kind, end, evidence) if part))
