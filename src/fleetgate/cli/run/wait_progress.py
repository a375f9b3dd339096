"""The progress of a waiting `fleetgate run`: one line that is updated on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from time import monotonic, time_ns

from fleetgate.config.units import format_duration
from fleetgate.core.entities import Reason
from fleetgate.core.views.pool_and_lease_views import TicketView
from fleetgate.present.text import place, printable, printable_lines
from fleetgate.present.wall_time import local_and_utc

_PLAIN_EVERY_S = 60.0


def say(text: str) -> None:
    """Print a message on stderr. A reader that has left, or never existed, does not stop the agent."""
    _write(f"fleetgate: {printable_lines(text)}\n")


def _write(text: str) -> None:
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    try:
        os.write(2, text.encode(encoding, "backslashreplace"))  # without a buffer, which main() would fail to flush
    except OSError:
        pass


class Progress:
    """Shows on stderr where in the queue this process is, and why; nothing with `quiet`."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = not quiet and os.isatty(2)
        self._drawn = False
        self._last: tuple[str, ...] = ()  # the reason that was printed last
        self._last_at = 0.0
        self._began = monotonic()
        self._trouble = ""
        self._trouble_at = 0.0

    def show(self, view: TicketView, now: int) -> None:
        if self._quiet:
            return
        reason = view.reason
        text = f"position {place(view.position, view.of, view.pool)}"
        if view.estimate_ms is not None:
            text += f", about {_range(*view.estimate_ms)}"
        text += f" ({reason.text}{self._until(reason, now)})"
        if self._terminal:
            waited = format_duration(int(monotonic() - self._began) * 1000, 2)
            self._draw(printable(f"fleetgate: waiting {waited}: {text}"))
            return
        # Positions and estimates change all the time: only a different reason is printed at once.
        why = (reason.code, reason.pool, reason.model, reason.cause)
        if why != self._last or monotonic() - self._last_at > _PLAIN_EVERY_S:
            self._last, self._last_at = why, monotonic()
            say(f"waiting: {text}")

    def _until(self, reason: Reason, now: int) -> str:
        """When the reason ends, if that is known."""
        if reason.until is None or reason.until - now >= 10**11:
            return ""
        if reason.cause == "usage_window":
            return f", until {local_and_utc(time_ns() // 1_000_000 + reason.until - now)}"
        return f", for {_about(reason.until - now)}"

    def trouble(self, text: str) -> None:
        """Print a problem that may go away: once, and again every minute while it lasts."""
        if text != self._trouble or monotonic() - self._trouble_at > _PLAIN_EVERY_S:
            self._trouble, self._trouble_at = text, monotonic()
            self.clear()
            say(f"{text} (still trying)")

    def _draw(self, text: str) -> None:
        try:
            width = os.get_terminal_size(2).columns
        except OSError:
            width = 80
        if len(text) >= width:
            text = text[: max(width - 2, 1)] + "…"
        _write(f"\r\x1b[K{text}")
        self._drawn = True

    def clear(self) -> None:
        """Remove the line, for the agent."""
        if self._drawn:
            _write("\r\x1b[K")
            self._drawn = False


def _range(low_ms: int, high_ms: int) -> str:
    low, high = _about(low_ms), _about(high_ms)
    return high if low == high else f"{low} to {high}"


def _about(ms: int) -> str:
    """A duration, no more precise than it is known."""
    if ms < 1000:
        return "1s"
    if ms < 60_000:
        return format_duration(ms // 1000 * 1000, 1)
    return format_duration(ms // 60_000 * 60_000, 2)
