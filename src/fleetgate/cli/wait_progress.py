"""What a waiting `fleetgate run` shows: one updating line on a terminal, plain lines elsewhere (SPEC R1)."""

from __future__ import annotations

import os
import sys
from time import monotonic, time_ns

from fleetgate.config.units import format_duration
from fleetgate.core.views.pool_and_lease_views import TicketView
from fleetgate.present.text import place, printable, printable_lines
from fleetgate.present.wall_time import local_and_utc

_PLAIN_EVERY_S = 60.0
_COMMAND_CHARS = 24  # of a command: enough to know it by, and the position has room beside it


def say(text: str) -> None:
    """A line of ours on stderr. Who reads it may have left, or never been there: the agent is run all the same."""
    _write(f"fleetgate: {printable_lines(text)}\n")


def _write(text: str) -> None:
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    try:
        os.write(2, text.encode(encoding, "backslashreplace"))  # no buffer, that main() would fail to flush
    except OSError:
        pass


class Progress:
    """Says where in the queue we are, on stderr. `quiet` says nothing."""

    def __init__(self, what: str, *, quiet: bool) -> None:
        self._what = _short(what)
        self._quiet = quiet
        self._terminal = not quiet and os.isatty(2)
        self._drawn = False
        self._last: tuple[str, ...] = ()  # the reason that was told last
        self._last_at = 0.0
        self._began = monotonic()
        self._trouble = ""
        self._trouble_at = 0.0

    def show(self, view: TicketView, now: int) -> None:
        if self._quiet:
            return
        reason = view.reason
        text = f"position {place(view.position, view.of, view.pool)}: {reason.text}"
        if reason.until is not None and reason.until - now < 10**11:
            if reason.cause == "usage_window":
                text += f", until {local_and_utc(time_ns() // 1_000_000 + reason.until - now)}"
            else:
                text += f", for {_about(reason.until - now)}"
        if view.estimate_ms is not None:
            low, high = (_about(ms) for ms in view.estimate_ms)
            text += f"; about {low} to {high}" if low != high else f"; about {high}"
        if self._terminal:
            waited = format_duration(int(monotonic() - self._began) * 1000, 2)
            self._draw(printable(f"fleetgate: {self._what} waits {waited}, {text}"))
            return
        # Numbers change all the time: only another reason is news.
        why = (reason.code, reason.pool, reason.model, reason.cause)
        if why != self._last or monotonic() - self._last_at > _PLAIN_EVERY_S:
            self._last, self._last_at = why, monotonic()
            say(f"{self._what} waits, {text}")

    def trouble(self, text: str) -> None:
        """Something is wrong and may pass by itself: say so once, and now and then as long as it lasts."""
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
        """Leave the terminal as it was, for the child."""
        if self._drawn:
            _write("\r\x1b[K")
            self._drawn = False


def _short(command: str) -> str:
    """A command for a line of ours: prompts among its arguments are long, and may hold newlines and escapes."""
    line = " ".join("".join(char if char.isprintable() else " " for char in command).split())
    return line if len(line) <= _COMMAND_CHARS else line[: _COMMAND_CHARS - 1] + "…"


def _about(ms: int) -> str:
    """A duration as people say it: no more precise than is known."""
    if ms < 1000:
        return "1s"
    if ms < 60_000:
        return format_duration(ms // 1000 * 1000, 1)
    return format_duration(ms // 60_000 * 60_000, 2)
