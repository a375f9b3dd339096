"""The meaning of a job's end (rule J3): done, back in the queue at no cost, retried after a pause, or failed.

Pure: the end of an attempt goes in, the edge that the job follows comes out.
"""

from __future__ import annotations

from typing import NamedTuple

from fleetgate.jobs.job_record import Job
from fleetgate.signals.outcome import KINDS, LIMITS

FIRST_PAUSE_MS = 5_000
LONGEST_PAUSE_MS = 600_000
UNNAMED_LIMIT_MS = 60_000  # a limit of a job that names no model: nothing is backed off, so it pauses by itself
MOST_LOSSES = 20  # a job that takes its worker down each time is not tried for ever

OK = "ok"
GIVE_WAY = "give_way"
CANCEL, HAND_BACK, BUDGET = "cancel", "hand_back", "budget"  # why we ended it, beside what runner/early_stop.py has


class JobVerdict(NamedTuple):
    """The edge to follow, and how long to wait before the next attempt."""

    edge: str
    why: str
    pause_ms: int = 0


class AttemptEnd(NamedTuple):
    """How an attempt ended."""

    outcome: str
    evidence: str = ""
    exit_code: int | None = None
    signal: int | None = None
    ended_because: str = ""
    wait_ms: int | None = None  # as the provider named it
    model: str = ""
    stale_session: bool = False
    hopeless: bool = False  # it could not even be started
    by: str = ""  # who cancelled it, if anyone did


def verdict(job: Job, ended: AttemptEnd, chance: float) -> JobVerdict:
    """What is to become of a job. `chance` is from 0 to 1, for the jitter."""
    if ended.ended_because == CANCEL or (ended.by and ended.outcome != OK):
        return JobVerdict("cancel", f"cancelled by {ended.by or 'a user'} while it was running")
    if ended.ended_because == HAND_BACK:
        return JobVerdict("hand_back", "its worker was stopped")
    if ended.ended_because == GIVE_WAY and ended.outcome != OK:
        return gave_way()
    if (
        ended.ended_because == BUDGET and ended.outcome != OK
    ):  # it waits until the budget has room, and goes on with its session (rule V7)
        return JobVerdict("limit", f"stopped: {ended.evidence}")
    if ended.outcome == OK:
        return JobVerdict("finish", "")
    what = told(ended)
    if ended.stale_session:
        return JobVerdict("limit", "its session was gone: once more without it")
    if ended.outcome in LIMITS:  # no reason to give it up: its model or account is backed off, and it waits for that
        return JobVerdict("limit", what, 0 if ended.model else ended.wait_ms or UNNAMED_LIMIT_MS)
    if ended.hopeless or job.failures >= job.spec.retries or not _retried(job.spec.retry_on, ended):
        return JobVerdict("fail", what)
    return JobVerdict("again", what, pause_ms(job.failures, chance))


def gave_way() -> JobVerdict:
    """What is to become of a job that was stopped for interactive work (rule W5)."""
    return JobVerdict("give_way", "it gave way to interactive work")


def lost(job: Job) -> JobVerdict:
    """What is to become of a job whose worker died."""
    if job.spec.on_lost != "retry":
        return JobVerdict("lose", "its worker died")
    if job.losses + 1 >= MOST_LOSSES:
        return JobVerdict("lose", f"its worker died {job.losses + 1} times")
    return JobVerdict("requeue", "its worker died")


def pause_ms(failures: int, chance: float) -> int:
    """Twice as long after each failure, and never the same for two jobs: from three quarters to five quarters."""
    whole = min(FIRST_PAUSE_MS << min(failures, 20), LONGEST_PAUSE_MS)
    return int(whole * (0.75 + 0.5 * chance))


def told(ended: AttemptEnd) -> str:
    """How it ended, in a few words."""
    if ended.ended_because == "overstayed":
        how = "ended by its time-out"
    elif ended.signal is not None:
        how = f"signal {ended.signal}"
    elif ended.exit_code is not None:
        how = f"exit {ended.exit_code}"
    else:
        how = ""
    kind = "" if ended.outcome == "local_error" else ended.outcome
    evidence = "" if ended.evidence == how else ended.evidence
    return ", ".join(part for part in (kind, how, evidence) if part)


def _retried(retry_on: tuple[str, ...], ended: AttemptEnd) -> bool:
    if not retry_on:
        return True
    code = ended.exit_code if ended.exit_code is not None else 128 + (ended.signal or 0)
    return ended.outcome in retry_on or str(code) in retry_on


def valid_retry_on(word: str) -> bool:
    """An exit code, or an outcome that is a failure."""
    return word in KINDS and word != OK if not word.isdecimal() else 0 < int(word) < 256
