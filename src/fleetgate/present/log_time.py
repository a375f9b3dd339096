"""Times of the log as wall time, for text and JSON."""

from __future__ import annotations

from time import localtime, strftime
from typing import Protocol

from fleetgate.gate.liveness import process_identity
from fleetgate.log.clock import steady
from fleetgate.present.text import span
from fleetgate.present.wall_time import utc

_SAME_DAY_MS = 20 * 3_600_000
FAR_MS = 10**11  # three years from now: a pause without an end

Json = dict[str, object]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import tzinfo


class Timed(Protocol):
    """A gate, which knows the log's time."""

    def now(self) -> int: ...

    def wall_offset_ms(self) -> int: ...


def offset_ms(gate: Timed) -> int:
    """What to add to times of the log to make wall time of them."""
    return steady(gate.wall_offset_ms())


class LogTimes:
    """Times of the log as wall time. Made for each answer."""

    def __init__(self, gate: Timed) -> None:
        self.now = gate.now()
        self.offset_ms = offset_ms(gate)
        self._gone: dict[str, bool | None] = {}

    def utc(self, at: int | None) -> str | None:
        """RFC 3339; None for none, and for a time without end."""
        return utc(at + self.offset_ms) if at else None

    def local(self, at: int) -> str:
        """Month, day and time where the reader is."""
        return strftime("%m-%d %H:%M:%S", localtime((at + self.offset_ms) // 1000))

    def clock(self, at: int, zone: tzinfo | None = None) -> str:
        """`at 14:00`, or `on 2026-12-01 at 00:00` if that is more than 20 hours away; in a zone, or where we are."""
        from datetime import datetime

        form = "at %H:%M" if abs(at - self.now) < _SAME_DAY_MS else "on %Y-%m-%d at %H:%M"
        return datetime.fromtimestamp((at + self.offset_ms) / 1000, zone).strftime(form)

    def ago(self, at: int) -> str:
        return f"{span(self.now - at)} ago"

    def gone(self, process: str) -> bool | None:
        """Whether a process is gone by now, looked at once: it may hold much."""
        if process not in self._gone:
            self._gone[process] = process_identity.is_gone(process)
        return self._gone[process]

    def left(self, until: int) -> str | None:
        """How long until then; None when it has no end."""
        return None if until - self.now > FAR_MS else span(until - self.now)
