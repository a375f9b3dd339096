"""On which line of a valid TOML text a key is. Needed only to tell where a problem is.

Not a parser: the text has been parsed, so this follows statements and steps over their values.
"""

from __future__ import annotations

from fleetgate.config.errors import Path

_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def line_of(path: Path, lines: dict[Path, int]) -> int:
    """The line of a key, or of the nearest key around it that has one; 0 when there is none."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return 0


def locate(text: str) -> dict[Path, int]:
    """The line of every table and of every key that is at the start of a statement."""
    return _Walk(text).lines


class _Walk:
    """One pass over a text."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n") + "\n"
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.counts: dict[Path, int] = {}  # how many [[tables]] of an array have been seen
        table: Path = ()
        line, counted = 1, 0
        while self._skip(" \t\n"):
            line += self.text.count("\n", counted, self.at)
            counted = self.at
            if self.text[self.at] == "[":
                table = self._header(line)
            elif self.text[self.at] != "#":
                self._note((*table, *self._key()), line)
            self._skip_value()

    def _note(self, path: Path, line: int) -> None:
        for end in range(1, min(len(path), 8) + 1):  # the schema is not deeper
            self.lines.setdefault(path[:end], line)

    def _header(self, line: int) -> Path:
        array = self.text.startswith("[[", self.at)
        self.at += 2 if array else 1
        path: Path = ()
        parts = self._key()
        for depth, part in enumerate(parts):
            path = (*path, part)
            if array and depth == len(parts) - 1:
                self.counts[path] = self.counts.get(path, 0) + 1
            if path in self.counts:
                path = (*path, self.counts[path] - 1)
        self._note(path, line)
        self.at = self.text.index("\n", self.at)
        return path

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._skip(" \t")
            start = self.at
            if self.text[start] in "\"'":
                self._skip_string()
                parts.append(_unquoted(self.text[start : self.at]))
            else:
                while self.text[self.at] in _BARE:
                    self.at += 1
                parts.append(self.text[start : self.at])
            self._skip(" \t")
            if self.text[self.at] != ".":
                return parts
            self.at += 1

    def _skip(self, chars: str) -> bool:
        """Step over `chars`; False at the end of the text."""
        while self.at < len(self.text) and self.text[self.at] in chars:
            self.at += 1
        return self.at < len(self.text)

    def _skip_value(self) -> None:
        """To the end of the statement, over strings, comments, and the lines of arrays."""
        depth = 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in "\"'":
                self._skip_string()
                continue
            if char == "#":
                self.at = self.text.index("\n", self.at)
                continue
            if char == "\n" and depth <= 0:
                return
            depth += (char in "[{") - (char in "]}")
            self.at += 1

    def _skip_string(self) -> None:
        quote = self.text[self.at]
        if self.text.startswith(quote * 3, self.at):
            quote *= 3
        self.at += len(quote)
        while self.at < len(self.text) and not self.text.startswith(quote, self.at):
            self.at += 2 if quote[0] == '"' and self.text[self.at] == "\\" else 1
        self.at += len(quote)
        while len(quote) == 3 and self.text.startswith(quote[0], self.at):  # """ may end in up to five quotes
            self.at += 1


def _unquoted(key: str) -> str:
    import tomllib

    return str(tomllib.loads(f"key = {key}")["key"])
