"""Marks that count once and not for ever: sign-in codes that were not used yet, and sessions that were ended.

A service in one process keeps them in memory. Several processes behind one port share a folder that only their user can
enter; a mark is a file, and its name a hash, so no file shows a secret.
"""

from __future__ import annotations

import os
from hashlib import sha256
from time import monotonic
from typing import NamedTuple, Protocol

_MOST = 10_000


class Marks(Protocol):
    """Marks by name. The clock is the machine's monotonic one, which all its processes share."""

    def put(self, name: str, text: str, for_s: float) -> None: ...

    def get(self, name: str) -> str | None:
        """The text of a mark; None when there is none, or not any more."""

    def take(self, name: str) -> str | None:
        """The same, and the mark is gone. Only one caller gets it."""


class Mark(NamedTuple):
    text: str
    until: float


class MarksInMemory:
    """Marks of one process."""

    def __init__(self) -> None:
        self._all: dict[str, Mark] = {}

    def put(self, name: str, text: str, for_s: float) -> None:
        now = monotonic()
        self._all = {each: mark for each, mark in self._all.items() if mark.until > now}
        if len(self._all) >= _MOST:
            del self._all[next(iter(self._all))]
        self._all[name] = Mark(text, now + for_s)

    def get(self, name: str) -> str | None:
        mark = self._all.get(name)
        return mark.text if mark is not None and mark.until > monotonic() else None

    def take(self, name: str) -> str | None:
        text = self.get(name)
        self._all.pop(name, None)
        return text


class MarkFiles:
    """Marks of all processes that have this folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def put(self, name: str, text: str, for_s: float) -> None:
        self._remove_old()
        path = self._path(name)
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8", opener=_private) as file:
            file.write(f"{monotonic() + for_s} {text}")
        os.replace(file.name, path)

    def get(self, name: str) -> str | None:
        return self._read(self._path(name))

    def take(self, name: str) -> str | None:
        path = self._path(name)
        text = self._read(path)
        try:
            os.unlink(path)
        except FileNotFoundError:
            return None  # another process was faster
        return text

    def _path(self, name: str) -> str:
        return f"{self._folder}/{sha256(name.encode()).hexdigest()}"

    def _read(self, path: str) -> str | None:
        try:
            with open(path, encoding="utf-8") as file:
                until, _, text = file.read().partition(" ")
        except FileNotFoundError:
            return None
        return text if float(until) > monotonic() else None

    def _remove_old(self) -> None:
        for name in os.listdir(self._folder):
            path = f"{self._folder}/{name}"
            if "." not in name and self._read(path) is None:
                try:
                    os.unlink(path)
                except FileNotFoundError:
                    pass


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
