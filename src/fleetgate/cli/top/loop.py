"""The loop of `fleetgate top`: follow the log, read keys, draw.

The log is read a few times a second, which is one query. The full state is read only after a change, or once a second
for the ages, and never for more than a small part of the time. Signals are handled in the loop, so that they interrupt
neither a transaction nor an escape sequence.
"""

from __future__ import annotations

import os
import select
import signal
from time import monotonic

from fleetgate.cli import exit_codes
from fleetgate.cli.read_only_gate import current
from fleetgate.cli.top.actions import perform
from fleetgate.cli.top.keys import Keys
from fleetgate.cli.top.layout import frame
from fleetgate.cli.top.selection import QUIT, Ui
from fleetgate.cli.top.snapshot import GateView, snapshot
from fleetgate.cli.top.terminal import Display
from fleetgate.cli.top.trend import MOST_EVENTS, Trend
from fleetgate.core.errors import FleetgateError, InternalError
from fleetgate.core.state.state import State
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.runner.signal_pipe import SignalPipe

FOLLOW_S = 0.25
LOOK_S = 1.0  # even when nothing has happened
_SURROUNDINGS_S = 2.0  # foreign agents, memory, deadlines that have passed
_ESCAPE_S = 0.05  # how long the rest of an escape sequence may take
_IDLE = 25  # reading the full state takes at most this fraction of the time (1/25)
_SIGNALS = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Live:
    """One user at one terminal."""

    def __init__(self, gate: DirectGate, display: Display) -> None:
        self._gate = gate
        self._display = display
        self._ui = Ui()
        self._keys = Keys()
        self._trend = Trend()
        self._trouble = ""
        state = current(gate, warn=self._note)
        self._seq = state.seq
        begin(self._trend, gate, state)
        self._shot: GateView = snapshot(gate, state)
        self._state = state
        self._changed = False  # since the last look
        self._drawn = False  # as it is now
        self._follow_at = self._look_at = self._surroundings_at = self._not_before = 0.0

    def run(self) -> int:
        """Run until the user quits; the exit code."""
        signals = SignalPipe(_SIGNALS, keep_ignored=True)
        try:
            self._display.enter()
            while True:
                code = self._handle_signals(signals.read())
                if code is not None:
                    return code
                self._follow()
                self._draw()
                if not self._wait(signals.fd):
                    return exit_codes.OK
        finally:
            self._display.leave()
            signals.close()

    # The gate.

    def _follow(self) -> None:
        now = monotonic()
        if now >= self._follow_at:
            self._follow_at = now + FOLLOW_S
            try:
                self._catch_up(now)
            except InternalError:
                raise
            except FleetgateError as error:
                self._note(f"showing the last known state: {error}")
        if now >= self._look_at or (self._changed and now >= self._not_before):
            self._look()

    def _catch_up(self, now: float) -> None:
        if now >= self._surroundings_at:
            self._surroundings_at = now + _SURROUNDINGS_S
            self._trouble = ""
            self._state = current(self._gate, warn=self._note)
        else:
            self._state = self._gate.replica.catch_up()
        self._gate.orphan_stops.step(self._state.leases.values())
        seq = self._state.seq
        if seq != self._seq:
            self._changed = True
            for _, at, event in self._gate.log.history(self._seq) if seq > self._seq else ():
                self._trend.take(at, event)
            self._seq = seq

    def _look(self) -> None:
        began = monotonic()
        self._shot = snapshot(self._gate, self._state)
        self._trend.sample(self._shot.moments.now, len(self._shot.leases), self._shot.waiting)
        took = monotonic() - began
        self._changed = self._drawn = False
        self._not_before = began + took * _IDLE
        self._look_at = max(began + LOOK_S, self._not_before)

    def _note(self, text: str) -> None:
        self._trouble = text
        self._drawn = False

    # The person.

    def _draw(self) -> None:
        if self._drawn:
            return
        self._drawn = True
        width, height = self._display.size()
        lines = frame(self._shot, self._trend, self._ui, width, height, self._trouble)
        self._display.draw(lines, width)

    def _wait(self, signal_fd: int) -> bool:
        """Wait for a key, a signal, or the next update; False when the user quits."""
        keyboard = self._display.keyboard
        due = min(self._follow_at, self._look_at)
        timeout = _ESCAPE_S if self._keys.pending else max(due - monotonic(), 0)
        ready, _, _ = select.select([keyboard, signal_fd], [], [], timeout)
        if keyboard not in ready:
            return self._press(self._keys.flush()) if self._keys.pending and not ready else True
        data = self._display.read()
        return bool(data) and self._press(self._keys.feed(data))

    def _press(self, keys: list[str]) -> bool:
        for key in keys:
            self._drawn = False
            if key == "redraw":
                self._display.forget()
            wish = self._ui.press(key, self._shot)
            if wish is None:
                continue
            if wish.what == QUIT:
                return False
            try:
                self._ui.say(perform(self._gate, wish))
            except InternalError:
                raise
            except FleetgateError as error:
                self._ui.say(str(error), failed=True)
            self._follow_at = self._not_before = 0.0
            self._changed = True
        return True

    # Signals.

    def _handle_signals(self, numbers: list[int]) -> int | None:
        """Act on the signals that came; the exit code if one of them ends the program."""
        for number in numbers:
            self._drawn = False
            if number == signal.SIGWINCH:
                self._display.forget()
            elif number == signal.SIGTSTP:
                self._stop()
            elif number == signal.SIGCONT:
                self._display.enter()
            else:
                return 128 + number
        return None

    def _stop(self) -> None:
        """Ctrl-Z: restore the terminal, stop, and take the terminal again when continued."""
        self._display.leave()
        ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, ours)
        self._display.enter()
        self._look_at = self._follow_at = 0.0


def begin(trend: Trend, gate: DirectGate, state: State) -> None:
    """Fill the trend with the recent history of the log."""
    past = gate.log.history(max(state.seq - MOST_EVENTS, 0))
    trend.begin(past, gate.now(), len(state.leases), len(state.tickets))
