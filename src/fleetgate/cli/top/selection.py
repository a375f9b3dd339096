"""What a person has on the screen: the pane, the selection, the filter, a question; and what keys do to these.

A thing is selected, not a position: when the queue moves, the selection moves with its ticket. A change of the
gate is a `Wish`, which names the thing as it was when the key was pressed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fleetgate.cli.top.panes import BACKOFFS, LEASES, PANES, POOLS, TICKETS
from fleetgate.cli.top.snapshot import GateView
from fleetgate.present.request_text import label
from fleetgate.present.text import printable

QUIT = "quit"

# Key -> what is wished, the pane that it is about, and what to say elsewhere.
_WISHES = {
    "c": ("cancel", TICKETS, "c cancels a ticket: select one in QUEUE (Tab)"),
    "s": ("stop", LEASES, "s stops an agent: select one in RUNNING (Tab)"),
    "b": ("bump", TICKETS, "b moves a ticket to the front: select one in QUEUE (Tab)"),
    "p": ("pause", POOLS, "p pauses or resumes a pool: select one in POOLS (Tab)"),
    "+": ("raise", POOLS, "+ raises the cap of a pool: select one in POOLS (Tab)"),
    "=": ("raise", POOLS, "+ raises the cap of a pool: select one in POOLS (Tab)"),
    "-": ("lower", POOLS, "- lowers the cap of a pool: select one in POOLS (Tab)"),
    "r": ("restore", POOLS, "r restores a pool that was auto-reduced: select one in POOLS (Tab)"),
    "x": ("clear", BACKOFFS, "x clears a backoff: select one in BACKOFFS (Tab)"),
}
_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1, "home": -(10**9), "g": -(10**9), "end": 10**9, "G": 10**9}
_LONGEST_FILTER = 60


class Wish(NamedTuple):
    """Something to be done to the gate: `what`, and to which view."""

    what: str
    item: Any


class Ui:
    """Keys in, wishes out."""

    def __init__(self) -> None:
        self.focus = POOLS
        self.filter = ""
        self.typing = False  # a filter
        self.help = False
        self.question: Wish | None = None
        self.message = ""
        self.failed = False  # the message is about an error
        self.page = 10  # lines that the focused pane has
        self.first = [0] * len(PANES)  # of what is visible
        self._keys = [""] * len(PANES)  # what is selected
        self._places = [0] * len(PANES)  # and where it was

    # What is shown.

    def items(self, pane: int, shot: GateView) -> Sequence[Any]:
        """What passes the filter."""
        items = PANES[pane].items(shot)
        wanted = self.filter.casefold()
        if not wanted:
            return items
        return [item for item in items if wanted in PANES[pane].words(item).casefold()]

    def place(self, pane: int, items: Sequence[Any]) -> int:
        """The position of the selected item now; if it is gone, the same position."""
        if not items:
            return 0
        wanted, place = self._keys[pane], min(self._places[pane], len(items) - 1)
        if wanted and PANES[pane].key(items[place]) != wanted:
            key = PANES[pane].key
            place = next((i for i, item in enumerate(items) if key(item) == wanted), place)
        self._select(pane, items, place)
        return place

    def selected(self, shot: GateView) -> Any:
        """The view in the focused pane; None where it is empty."""
        items = self.items(self.focus, shot)
        return items[self.place(self.focus, items)] if items else None

    def say(self, text: str, *, failed: bool = False) -> None:
        self.message, self.failed = printable(text), failed

    # Keys.

    def press(self, key: str, shot: GateView) -> Wish | None:
        """What a key does here; what it wishes of the gate."""
        if self.typing:
            self._type(key)
            return None
        if self.question is not None:
            return self._answer(key)
        self.message = ""
        if self.help:
            self.help = False
            return None
        if key == "q":
            return Wish(QUIT, None)
        if key in _WISHES:
            return self._wish(key, shot)
        self._look(key, shot)
        return None

    def _look(self, key: str, shot: GateView) -> None:
        """Keys that change only what is seen."""
        if key in ("tab", "right"):
            self._turn(1, shot)
        elif key in ("backtab", "left"):
            self._turn(-1, shot)
        elif key in ("1", "2", "3", "4"):
            self.focus = int(key) - 1
        elif key in _STEPS:
            self._move(_STEPS[key], shot)
        elif key in ("pageup", "pagedown"):
            self._move(self.page if key == "pagedown" else -self.page, shot)
        elif key == "/":
            self.typing = True
        elif key == "escape":
            self.filter = ""
        elif key in ("?", "h"):
            self.help = True
        elif key not in ("redraw", "enter", "backspace", "wipe"):
            self.say(f"{key} has no function here: ? lists the keys", failed=True)

    def _turn(self, step: int, shot: GateView) -> None:
        """To the next pane in which something stands."""
        for _ in PANES:
            self.focus = (self.focus + step) % len(PANES)
            if self.items(self.focus, shot):
                return

    def _move(self, step: int, shot: GateView) -> None:
        items = self.items(self.focus, shot)
        if items:
            place = self.place(self.focus, items) + step
            self._select(self.focus, items, min(max(place, 0), len(items) - 1))

    def _select(self, pane: int, items: Sequence[Any], place: int) -> None:
        self._keys[pane], self._places[pane] = PANES[pane].key(items[place]), place

    def _wish(self, key: str, shot: GateView) -> Wish | None:
        what, pane, elsewhere = _WISHES[key]
        item = self.selected(shot)
        if self.focus != pane or item is None:
            if what == "cancel" and self.focus == LEASES and item is not None:
                elsewhere = "it has a slot and is not waiting: s stops it"
            self.say(elsewhere, failed=True)
            return None
        if what not in ("cancel", "stop"):
            return Wish(what, item)
        self.question = Wish(what, item)
        request = item.lease if what == "stop" else item.ticket
        text = label(request)
        self.say(f"{what} {request.id}{f' ({text[:40]})' if text else ''}? y/n")
        return None

    def _answer(self, key: str) -> Wish | None:
        wish, self.question = self.question, None
        if key in ("y", "Y"):
            self.message = ""
            return wish
        self.say("nothing was changed")
        return None

    def _type(self, key: str) -> None:
        """One more letter of the filter."""
        self.message = ""
        if key == "enter":
            self.typing = False
        elif key == "escape":
            self.typing, self.filter = False, ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif key == "wipe":
            self.filter = ""
        elif len(key) == 1 and len(self.filter) < _LONGEST_FILTER:
            self.filter += key
