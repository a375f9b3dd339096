"""Bytes from a terminal as keys: `up`, `tab`, `escape`, or the letter itself."""

from __future__ import annotations

import codecs
import re

_ESCAPE = "\x1b"
_CONTROL = {
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x0c": "redraw",
    "\x15": "wipe",
}
_SEQUENCES = {
    "A": "up",
    "B": "down",
    "C": "right",
    "D": "left",
    "H": "home",
    "F": "end",
    "Z": "backtab",
    "1~": "home",
    "7~": "home",
    "4~": "end",
    "8~": "end",
    "5~": "pageup",
    "6~": "pagedown",
}
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)")
_BEGUN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?")


class Keys:
    """Takes what was read, in whatever pieces; unknown sequences are swallowed."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""

    @property
    def pending(self) -> bool:
        """Whether something was begun: an escape that may be the key, or the first byte of more."""
        return bool(self._text)

    def feed(self, data: bytes) -> list[str]:
        self._text += self._decoder.decode(data)
        keys = []
        while self._text:
            if self._text[0] != _ESCAPE:
                keys.append(self._text[0])
                self._text = self._text[1:]
            elif found := _SEQUENCE.match(self._text):
                keys.append(_SEQUENCES.get(found.group()[2:], ""))
                self._text = self._text[found.end() :]
            elif _BEGUN.fullmatch(self._text):
                break
            else:  # the key itself, and then something else
                keys.append("escape")
                self._text = self._text[1:]
        return [_CONTROL.get(key, key) for key in keys if _means_something(key)]

    def flush(self) -> list[str]:
        """Nothing more came: an escape was the key."""
        begun, self._text = self._text, ""
        return ["escape"] if begun == _ESCAPE else []


def _means_something(key: str) -> bool:
    return len(key) > 1 or key in _CONTROL or (key != "" and key.isprintable())
