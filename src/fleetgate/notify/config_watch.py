"""The targets that the config file names now: a running process follows the file."""

from __future__ import annotations

from collections.abc import Callable

from fleetgate.config.file import ConfigWatch, Loaded
from fleetgate.config.settings import Notify


class NotifyFile:
    """The `[[notify]]` of one config file. `say` is told once when the file cannot be read; then the last ones stay."""

    def __init__(self, path: str, loaded: Loaded | None, say: Callable[[str], None]) -> None:
        self._config = ConfigWatch(path, loaded, say)

    def targets(self) -> tuple[Notify, ...]:
        """As the file says now."""
        loaded = self._config.current()
        return () if loaded is None else loaded.settings.notify
