"""The terminal as a sheet to draw on, and given back as it was.

Plain escape sequences that every terminal of the last decades knows. Whatever is drawn was made printable before:
only what is written here moves the cursor.
"""

from __future__ import annotations

import os
import select
import sys
import termios

from fleetgate.cli.output.cells import cell_width, styled
from fleetgate.cli.output.table import Cell, Screen, showable, wants_colour
from fleetgate.present.text import printable

Line = list[Cell]
_Mode = list[int | list[bytes | int]]  # of a terminal, as termios has it

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # the other screen, no cursor, no wrapping
_LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"


class Display:
    """Two files that are terminals: stdin and stdout, unless others are named."""

    def __init__(self, keyboard: int = 0, out: int = 1) -> None:
        self.keyboard, self._out = keyboard, out
        self._saved: _Mode | None = None
        self._drawn: list[str] = []
        self._colour = wants_colour()

    def enter(self) -> None:
        """Take the terminal; also again, after something else may have changed it."""
        if self._saved is None:
            self._saved = termios.tcgetattr(self.keyboard)
        mode = termios.tcgetattr(self.keyboard)
        mode[0] &= ~(termios.IXON | termios.ICRNL)
        mode[3] &= ~(termios.ECHO | termios.ICANON)  # ISIG stays: Ctrl-C and Ctrl-Z are signals
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self.keyboard, termios.TCSADRAIN, mode)
        self._write(_ENTER)
        self.forget()

    def leave(self) -> None:
        """Give it back. Twice is fine."""
        if self._saved is None:
            return
        saved, self._saved = self._saved, None
        try:
            self._write(_LEAVE)
            termios.tcsetattr(self.keyboard, termios.TCSADRAIN, saved)
        except (OSError, termios.error):
            pass  # hung up: there is nothing to give back

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            size = os.get_terminal_size(self._out)
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

    def forget(self) -> None:
        """Draw everything again the next time."""
        self._drawn = []

    def draw(self, lines: list[Line], width: int) -> None:
        """Show these lines; only what differs from what is there is written."""
        screen = Screen(width)
        texts = [painted(line, screen, width, colour=self._colour) for line in lines]
        parts = [] if self._drawn else ["\x1b[0m\x1b[2J"]
        for number, text in enumerate(texts):
            if number >= len(self._drawn) or self._drawn[number] != text:
                # Wiped first: behind a line as wide as the terminal its last letter would be wiped.
                parts.append(f"\x1b[{number + 1};1H\x1b[K{text}")
        if len(texts) < len(self._drawn):
            parts.append(f"\x1b[{len(texts) + 1};1H\x1b[J")
        self._drawn = texts
        self._write("".join(parts))

    def read(self) -> bytes:
        """What was typed; nothing when the terminal is gone."""
        try:
            return os.read(self.keyboard, 4096)
        except BlockingIOError:
            return b"\0"  # which is no key
        except OSError:
            return b""

    def _write(self, text: str) -> None:
        data = showable(text).encode(sys.stdout.encoding or "ascii", "replace")
        while data:
            try:
                data = data[os.write(self._out, data) :]
            except BlockingIOError:  # another program made the terminal non-blocking
                select.select([], [self._out], [])


def painted(line: Line, screen: Screen, width: int, *, colour: bool) -> str:
    """A line as it is written: fitted into the width, and harmless."""
    parts, used = [], 0
    for cell in line:
        text = printable(cell.text)
        room = width - used
        if cell_width(text) > room:
            text = screen.cut(text, room)
            if cell_width(text) > room:
                text = "." * room
        used += cell_width(text)
        parts.append(styled(text, cell.style, colour=colour))
        if used >= width:
            break
    return "".join(parts)
