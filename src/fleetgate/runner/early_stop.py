"""When an agent is ended early (rule R5).

| why | when |
| --- | --- |
| `rate_limited` | it was refused, and its patience is over (`runner/refusal_patience.py`) |
| `rate_limited` | without patience: it reported that in its first 30 s, and has done nothing since |
| `no_record` | not one record came within 3 min of its start |
| `silent` | it wrote nothing at all for 20 min, or as long as `--silence` allows |

`EarlyStop` only decides; `supervise` acts. Time is an argument, and is the agent's own: it stands still while the
machine sleeps, while the agent is stopped, while it waits for the reader of its output, and, until its first record,
while it waits for a processor. No agent is ended for a silence that it did not cause.

The rule: when in doubt, no agent is ended. If the reader of the records fails, only silence counts.
"""

from __future__ import annotations

from fleetgate.gate.liveness.process_group import is_living_member, pids_in_proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from fleetgate.runner.refusal_patience import Patience

    class Told(Protocol):
        """What the agent's records told up to now; see `signals.process.Reader`."""

        @property
        def records_seen(self) -> int: ...
        @property
        def activity(self) -> bool: ...
        @property
        def limited(self) -> object | None: ...


RATE_LIMITED = "rate_limited"
NO_RECORD = "no_record"
SILENT = "silent"

# From some output until its records are looked at: once for many pieces, and the activity that may follow is seen.
_SETTLE_MS = 200
_SETTLE_ACTIVE_MS = 2_000  # of one that has worked, more has to be read again
_STARVED_MS = 1_000
_NEVER = float("inf")


class EarlyStop:
    """Watches one agent. A rule whose time is None does not apply."""

    __slots__ = (
        "_early_until",
        "_group",
        "_look_at",
        "_patience",
        "_patient_until",
        "_record_by",
        "_silence_ms",
        "_silent_since",
        "_starved_ms",
        "_told",
        "_waits",
        "failed",
    )

    def __init__(
        self,
        told: Told,
        *,
        early_s: float | None = 30,
        record_s: float | None = 180,
        silence_s: float | None = 1200,
        patience: Patience | None = None,
    ) -> None:
        self.failed: Exception | None = None  # what reading the records raised, if it did
        self._told = told
        self._waits = (early_s, record_s)
        self._patience = patience
        self._silence_ms = _NEVER if silence_s is None else silence_s * 1000
        self._early_until = self._record_by = self._look_at = self._patient_until = _NEVER
        self._silent_since = 0.0
        self._group, self._starved_ms = 0, 0.0

    def begin(self, now_ms: float, group: int = 0) -> None:
        """The agent was started, in a process group of its own if it is known."""
        self._group = group
        early_s, record_s = self._waits
        self._early_until = -_NEVER if early_s is None else now_ms + early_s * 1000
        self._record_by = _NEVER if record_s is None else now_ms + record_s * 1000
        self._silent_since = now_ms

    def wrote(self, now_ms: float) -> None:
        """The agent wrote something."""
        self._silent_since = now_ms
        if self._look_at != _NEVER:
            return
        if self._patience is not None:
            self._look_at = now_ms + (_SETTLE_ACTIVE_MS if self._told.activity else _SETTLE_MS)
        elif now_ms <= self._early_until:
            self._look_at = now_ms + _SETTLE_MS

    def silent_ms(self, now_ms: float) -> float:
        """For how long the agent has written nothing."""
        return now_ms - self._silent_since

    def held_up(self, now_ms: float) -> None:
        """The agent may be waiting for the reader of its output."""
        self._silent_since = now_ms

    def stood_still(self, for_ms: float) -> None:
        """The agent was stopped for a while, and goes on."""
        self._early_until += for_ms
        self._record_by += for_ms
        self._look_at += for_ms
        self._silent_since += for_ms
        self._patient_until += for_ms
        if self._patience is not None:
            self._patience.stood_still(for_ms)

    def records_unread(self) -> None:
        """Records are not read from here on."""
        self._early_until, self._record_by, self._look_at = -_NEVER, _NEVER, _NEVER
        self._patience, self._patient_until = None, _NEVER

    def next_deadline(self) -> float:
        """When to ask for the verdict next, if nothing happens before."""
        return min(self._look_at, self._patient_until, self._record_by, self._silent_since + self._silence_ms)

    def verdict(self, now_ms: float) -> str:
        """Why the agent is to be ended now; empty if it is not."""
        try:
            why = self._by_records(now_ms)
        except Exception as error:
            self.failed, why = error, ""
            self.records_unread()
        if not why and now_ms >= self._silent_since + self._silence_ms:
            return SILENT
        return why

    def _by_records(self, now_ms: float) -> str:
        if self._patience is not None and now_ms >= min(self._look_at, self._patient_until):
            self._look_at = _NEVER
            self._patient_until = self._patience.deadline(now_ms)
            if now_ms >= self._patient_until:
                return RATE_LIMITED
        elif now_ms >= self._look_at:
            self._look_at = _NEVER
            if self._told.activity:
                self._early_until = -_NEVER
            elif self._told.limited is not None:
                return RATE_LIMITED
        if now_ms >= self._record_by:
            if not self._told.records_seen and self._was_starved():
                return ""
            self._record_by = _NEVER
            if not self._told.records_seen:
                return NO_RECORD
        return ""

    def _was_starved(self) -> bool:
        """Whether the agent waited for a processor, for so long that it counts; then its time stood still meanwhile."""
        waited_ms = waited_for_processor_ms(self._group) if self._group else 0.0
        news_ms, self._starved_ms = waited_ms - self._starved_ms, waited_ms
        if news_ms < _STARVED_MS:
            return False
        self.stood_still(news_ms)
        return True


def waited_for_processor_ms(group: int) -> float:
    """How long the one of a process group that waited longest was ready to run, and had to wait for a processor.

    As far as the system tells (Linux: /proc/PID/schedstat); on a machine with more work than processors that is most
    of the time that an agent takes to start.
    """
    members = [pid for pid in pids_in_proc() if is_living_member(pid, group)]
    return max(map(_run_delay_ms, members), default=0.0)


def _run_delay_ms(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e6
    except (OSError, ValueError, IndexError):
        return 0.0
