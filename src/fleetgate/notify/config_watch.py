"""The targets that the config file names now: a running process follows the file."""

from __future__ import annotations

import os
from collections.abc import Callable

from fleetgate.config.errors import ConfigError
from fleetgate.config.file import Loaded, load
from fleetgate.config.settings import Notify


class NotifyFile:
    """The `[[notify]]` of one config file. `say` is told once when the file cannot be read; then the last ones stay."""

    def __init__(self, path: str, loaded: Loaded | None, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._seen: object = None
        self._targets = () if loaded is None else loaded.settings.notify

    def targets(self) -> tuple[Notify, ...]:
        """As the file says now. It is read when its stat has changed."""
        seen = self._look()
        if seen == self._seen:
            return self._targets
        self._seen = seen
        try:
            loaded = load(self._path)
        except ConfigError as error:
            self._say(f"{error} (going on as before)")
            return self._targets
        self._targets = () if loaded is None else loaded.settings.notify
        return self._targets

    def _look(self) -> object:
        try:
            about = os.stat(self._path)
        except OSError:
            return None
        return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
