"""The demo's output: a live table on a terminal, plain lines elsewhere, and the comparison at the end.

The rule: everything fits 80 columns, and only characters that the console can encode are written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo.fleet import Progress

PLAIN_EVERY_S = 1.0

# state: (glyph, where only ASCII is understood, colour)
_GLYPHS = {
    "running": ("●", "R", "bold cyan"),
    "waiting": ("○", ".", "dim"),
    "done": ("✓", "+", "green"),
    "failed": ("✗", "x", "bold red"),
}


class Show(Protocol):
    def __call__(self, progress: Progress) -> None: ...


class View:
    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)

    def say(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, markup=False)

    @contextmanager
    def following(self) -> Iterator[Show]:
        """What is given to `show` is drawn, and its last state stays."""
        if not self.console.is_terminal:
            yield self._lines()
            return
        with Live(console=self.console, refresh_per_second=10) as live:
            yield lambda progress: live.update(self._table(progress))

    def compare(self, halves: list[tuple[str, Progress]]) -> None:
        """One column for each half, one row for each figure."""
        table = Table()
        table.add_column("")
        for name, _ in halves:
            table.add_column(name, justify="right")
        figures = [self._figures(half) for _, half in halves]
        for index, label in enumerate(("429s from the provider", "agents that failed", "most at once", "time")):
            table.add_row(label, *(column[index] for column in figures))
        self.console.print(table)

    def _figures(self, half: Progress) -> list[Text]:
        failed = half.number("failed")
        return [
            Text(str(half.refused), style="red" if half.refused else "green"),
            Text(f"{failed} of {len(half.states)}", style="red" if failed else "green"),
            Text(f"{half.most_at_once} agents"),
            Text(f"{half.elapsed_s:.1f} s"),
        ]

    def _table(self, progress: Progress) -> Group:
        table = Table(show_edge=False, pad_edge=False)
        for name in ("running", "waiting", "done", "failed", "429s so far", "most at once", "time"):
            table.add_column(name, justify="right")
        table.add_row(
            *(self._number(progress.number(state), _GLYPHS[state][2]) for state in _GLYPHS),
            Text(str(progress.refused), style="red" if progress.refused else "green"),
            str(progress.most_at_once),
            f"{progress.elapsed_s:.1f} s",
        )
        return Group(table, self._strip(progress), Text())

    def _number(self, number: int, style: str) -> Text:
        return Text(str(number), style=style if number else "dim")

    def _strip(self, progress: Progress) -> Text:
        ascii_only = self.console.options.ascii_only
        strip = Text("agents ")
        for state in progress.states:
            glyph, plain, style = _GLYPHS[state]
            strip.append(f" {plain if ascii_only else glyph}", style)
        return strip

    def _lines(self) -> Show:
        """Plain lines: at most one a second, only when something changed, and always the last one."""
        shown: tuple[tuple[str, ...], int] = ((), -1)
        shown_s = 0.0

        def show(progress: Progress) -> None:
            nonlocal shown, shown_s
            now_s, news = time.monotonic(), (progress.states, progress.refused)
            if news != shown and (progress.over or now_s - shown_s >= PLAIN_EVERY_S):
                shown, shown_s = news, now_s
                self.say(_line(progress))

        return show


def _line(progress: Progress) -> str:
    states = ", ".join(f"{progress.number(state)} {state}" for state in _GLYPHS)
    return f"{progress.elapsed_s:5.1f} s: {states}; {progress.refused} 429s; most at once {progress.most_at_once}"
