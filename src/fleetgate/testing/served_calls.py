"""What the fake provider served: calls and tokens, by model, key and project."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from fleetgate.core.usage import Usage


class ServedCalls:
    """Sums of usage. A test may read them from another thread."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str], Usage] = {}

    def add(self, model: str, key: str, project: str, usage: Usage) -> None:
        whose = (model, key, project)
        self._sums[whose] = self._sums.get(whose, Usage()).plus(usage)

    @property
    def total(self) -> Usage:
        total = Usage()
        for usage in list(self._sums.values()):
            total = total.plus(usage)
        return total

    def by(self, part: str) -> Mapping[str, Usage]:
        """The sums by `model`, `key` or `project`."""
        place = ("model", "key", "project").index(part)
        sums: dict[str, Usage] = {}
        for whose, usage in list(self._sums.items()):
            sums[whose[place]] = sums.get(whose[place], Usage()).plus(usage)
        return sums

    def rows(self) -> list[dict[str, object]]:
        """Every sum, as JSON."""
        names = ("model", "key", "project")
        return [
            {**dict(zip(names, whose, strict=True)), **structs.asdict(usage)} for whose, usage in self._sums.items()
        ]
