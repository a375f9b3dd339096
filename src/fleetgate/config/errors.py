"""Problems of a configuration. All are reported together, each with its place, what was found and what is valid
(rule C6). The edge maps `ConfigError` to exit 78 and `BadValue` to a usage error."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.core.errors import FleetgateError

Path = tuple[str | int, ...]  # of a key in a document
Problems = list[tuple[Path, str]]  # what is wrong at which key


class BadValue(FleetgateError, ValueError):
    """A value that cannot be what it should be; the sentence says what was found and what is valid."""


class ConfigProblem(Struct, frozen=True):
    """One thing that is wrong. `where` is a file or an environment variable; `line` 0 is not known."""

    where: str
    text: str
    line: int = 0
    key: str = ""

    def __str__(self) -> str:
        place = f"{self.where}:{self.line}" if self.line else self.where
        return f"{place}: {self.key}: {self.text}" if self.key else f"{place}: {self.text}"


class ConfigError(FleetgateError):
    """A configuration that cannot be used, with all its problems; nothing of it was taken."""

    def __init__(self, *problems: ConfigProblem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
