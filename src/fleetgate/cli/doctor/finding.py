"""The findings of `fleetgate doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from fleetgate.present.text import count

ELSEWHERE = "export FLEETGATE_HOME=/some/folder/of/yours"
LISTED = 5


class Finding(Struct):
    """The result of one check. `level` is ok, warn or bad; `do` is the command that helps."""

    level: str
    text: str
    do: str | None = None
    check: str = ""  # its name, which `Visit.look` sets


Findings = Iterator[Finding]


def named(idents: list[str], what: str) -> str:
    """How many, and the first of them by name."""
    listed = ", ".join(idents[:LISTED])
    more = f" and {len(idents) - LISTED} more" if len(idents) > LISTED else ""
    return f"{count(len(idents), what)} ({listed}{more})"
