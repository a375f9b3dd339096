"""Output for people: aligned columns, calm colours on a terminal, plain text that can be grepped elsewhere.

On a terminal the table is fitted to the width: columns that may be cut are cut, the widest first; then optional
columns are left out. In a pipe only commands are cut.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from fleetgate.cli.output.cells import cell_width, cut_to_width, styled
from fleetgate.present.text import printable

GAP = "  "
_LONGEST_IN_PIPE = 80
_NARROWEST = 6
_PLAIN = str.maketrans(
    {
        "…": "...",
        "█": "#",
        "▓": "%",
        "▒": "~",
        "░": ".",
        "–": "-",
        "’": "'",
        **dict(zip("▁▂▃▄▅▆▇", "_,-=+*%", strict=True)),
    }
)


class Cell(NamedTuple):
    """A text and the style that it has on a terminal."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """`least` is the width to which it may well be cut, 0: never. Of those that can be spared, the last goes first.

    A name is cut in its middle, since names often differ at the end; other texts are cut at the end.
    """

    title: str
    least: int = 0
    right: bool = False
    spare: bool = False
    name: bool = False
    long: bool = False  # a command, which is cut even where there is no width to fit into


class Screen:
    """Where output goes. Lines are collected, and written at once by `show`."""

    def __init__(self, width: int | None = None) -> None:
        """`width`: of a terminal on which the caller draws the lines."""
        self.terminal = width is not None or sys.stdout.isatty()
        self.unicode = can_show("█░…–")
        self.width = self._width() if width is None else width
        self._lines: list[list[Cell]] = []

    def line(self, *cells: str | Cell) -> None:
        """One line of text, not cut."""
        self._lines.append([_clean(cell) for cell in cells])

    def prose(self, text: str, indent: str = "", first: Sequence[Cell] = ()) -> None:
        """A sentence, wrapped on a terminal; `first` stands before it, `indent` before the other lines."""
        room = None if self.width is None else max(self.width, 30) - sum(cell_width(cell.text) for cell in first)
        line, *others = _wrapped(printable(text), room, 0 if first else len(indent))
        self.line(*first, line)
        for other in others:
            self.line(indent, other)

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]]) -> None:
        """Aligned columns under their titles; columns in which nothing stands are left out."""
        cells = [[_clean(each) for each in row] for row in rows]
        kept = [index for index in range(len(columns)) if any(row[index].text for row in cells)]
        widths = self._fitted(columns, cells, kept)
        self._lines.append(self._row([Cell(column.title, "dim") for column in columns], columns, widths))
        for row in cells:
            self._lines.append(self._row(row, columns, widths))

    def bar(self, taken: int, limit: int, longest: int = 8) -> str:
        """How full a pool is; one block for each slot of a small one. Nothing where there is no terminal."""
        if not self.terminal or limit < 1:
            return ""
        length = min(limit, longest)
        full = min(taken * length // limit, length)
        if taken and not full:
            full = 1
        return "█" * full + "░" * (length - full)

    def take(self) -> list[list[Cell]]:
        """What was collected, to be drawn elsewhere."""
        lines, self._lines = self._lines, []
        return lines

    def show(self) -> bool:
        """Print the collected lines; False when the reader has left."""
        colour = self.terminal and wants_colour()
        return say("".join(_drawn(line, colour=colour) + "\n" for line in self.take()))

    def _width(self) -> int | None:
        given = os.environ.get("COLUMNS", "")
        if given.isascii() and given.isdecimal() and 0 < int(given) < 10_000:
            return int(given)
        if not self.terminal:
            return None
        try:
            return os.get_terminal_size(sys.stdout.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def _fitted(self, columns: Sequence[Column], cells: list[list[Cell]], kept: list[int]) -> dict[int, int]:
        """The width of each column that is shown."""
        full = {i: max([len(columns[i].title), *(cell_width(row[i].text) for row in cells)]) for i in kept}
        if self.width is None:
            return {i: min(width, _LONGEST_IN_PIPE) if columns[i].long else width for i, width in full.items()}
        room = self.width + len(GAP)
        least = {i: columns[i].least for i in kept if columns[i].least}
        while True:
            widths = _narrowed(full, least, room)
            spare = [i for i in full if columns[i].spare]
            if sum(widths.values()) + len(GAP) * len(widths) <= room:
                return widths
            if not spare:
                return _narrowed(widths, dict.fromkeys(least, _NARROWEST), room)
            del full[spare[-1]]
            least.pop(spare[-1], None)

    def _row(self, row: Sequence[Cell], columns: Sequence[Column], widths: dict[int, int]) -> list[Cell]:
        line: list[Cell] = []
        for i, width in widths.items():
            text = self.cut(row[i].text, width, in_middle=columns[i].name)
            blank = " " * (width - cell_width(text))
            line.append(Cell(blank + text if columns[i].right else text + blank, row[i].style))
            line.append(Cell(GAP))
        return line

    def cut(self, text: str, width: int, *, in_middle: bool = False) -> str:
        """The text in so many columns at most, with a mark where some of it is left out."""
        if cell_width(text) <= width:
            return text
        mark = "…" if self.unicode else "..."
        if text.isascii():
            kept = max(width - len(mark), 0)
            tail = kept * 2 // 3 if in_middle else 0
            return text[: kept - tail] + mark + text[len(text) - tail :]
        return cut_to_width(text, max(width - len(mark), 0)).rstrip() + mark


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]], empty: str = "") -> None:
    """Print a table, or the sentence `empty` where there are no rows."""
    screen = Screen()
    if rows or not empty:
        screen.table(columns, rows)
    else:
        screen.line(empty)
    screen.show()


def say(text: str) -> bool:
    """Print to stdout now. False: the reader has left (`fleetgate history | head`), which is no error."""
    try:
        sys.stdout.write(showable(text))
        sys.stdout.flush()
    except BrokenPipeError:
        # Discard what is still in the buffer, so that flushing it at the end does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return False
    return True


def can_show(text: str) -> bool:
    """Whether the encoding of stdout has these characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _clean(cell: str | Cell) -> Cell:
    """A cell that cannot move the cursor, wherever its text is from."""
    text, style = (cell, "") if isinstance(cell, str) else cell
    return Cell(printable(text), style)


def _narrowed(widths: dict[int, int], least: dict[int, int], room: int) -> dict[int, int]:
    """The widths, those in `least` cut until all fits or no more can be cut: always the widest first."""
    widths = dict(widths)
    over = sum(widths.values()) + len(GAP) * len(widths) - room
    while over > 0 and (wide := [i for i in least if widths[i] > least[i]]):
        widths[max(wide, key=lambda i: widths[i])] -= 1
        over -= 1
    return widths


def _wrapped(text: str, room: int | None, indent: int) -> list[str]:
    """The lines of a sentence; a `command` in it is kept whole, so that it can be copied."""
    if room is None or len(text) <= room:
        return [text]
    from textwrap import wrap

    parts = text.split("`")
    parts[1::2] = [part.replace(" ", "\0") for part in parts[1::2]]  # not blanks while wrapping
    lines = wrap("`".join(parts), max(room - indent, 20), break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def showable(text: str) -> str:
    """The text in characters that stdout can take."""
    if text.isascii() or can_show(text):
        return text
    text = text.translate(_PLAIN)
    encoding = sys.stdout.encoding or "ascii"
    return text.encode(encoding, "replace").decode(encoding)


def wants_colour() -> bool:
    """Whether colours may be drawn on the terminal (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("", "dumb")


def _drawn(line: list[Cell], *, colour: bool) -> str:
    """A line without the blanks at its end."""
    length = len("".join(cell.text for cell in line).rstrip())
    parts = []
    for cell in line:
        text = cell.text[: max(length, 0)]
        length -= len(text)
        parts.append(styled(text, cell.style, colour=True) if colour else text)
    return "".join(parts)
