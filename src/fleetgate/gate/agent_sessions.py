"""Sessions of agents that were remembered, for the next run with the same key to resume.

Beside the log, one row for each host, agent, provider, account and key: an agent knows only its own sessions, those
of one provider's account are of no use to another's, and they are files on one machine. No decision depends on them.
That only one run at a time has a key is decided by the engine (`session_taken`).

The rule: what is handed out has been checked, since it becomes an argument of a program and any user may write it.
"""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from fleetgate.core.model_names import parse_model
from fleetgate.log.protocol import SideWrite
from fleetgate.signals.agents.agent import session_id

if TYPE_CHECKING:
    from fleetgate.log.protocol import Log

TABLE = "sessions"
KEEP_MS = 90 * 86_400_000  # a session that was not used for so long is forgotten


class Place(NamedTuple):
    """What a session is remembered by."""

    host: str
    agent: str
    provider: str  # "" of a run without a model
    account: str
    key: str

    @property
    def row(self) -> str:
        return msgspec.json.encode(self).decode()


class Sided(Protocol):
    """Reads a value beside the log."""

    def side_value(self, table: str, key: str) -> bytes | None: ...


class Remembered(msgspec.Struct, frozen=True):
    """What a row holds."""

    session: str
    at: int  # wall time in ms: when it was last used


def place(host: str, agent: str, model: str, key: str) -> Place:
    """Where the session of a run is kept; `model` is the candidate that was chosen, "" for none."""
    if not model:
        return Place(host, agent, "", "", key)
    name = parse_model(model)
    return Place(host, agent, name.provider, name.account, key)


def find(log: Sided, where: Place) -> str:
    """The session to resume; empty when none is known."""
    value = log.side_value(TABLE, where.row)
    found = _read(value) if value is not None else None
    return found.session if found is not None else ""


def remember(where: Place, session: str) -> SideWrite:
    return SideWrite(TABLE, where.row, msgspec.json.encode(Remembered(session, time_ns() // 1_000_000)))


def forget(where: Place) -> SideWrite:
    return SideWrite(TABLE, where.row, None)


def every(log: Log) -> list[tuple[Place, Remembered]]:
    """All that are remembered, the last used first."""
    found = []
    for row, value in log.side_items(TABLE):
        where, remembered = _place(row), _read(value)
        if where is not None and remembered is not None:
            found.append((where, remembered))
    return sorted(found, key=lambda pair: (-pair[1].at, pair[0]))


def outdated(log: Log) -> list[SideWrite]:
    """The writes that delete sessions which were not used for long."""
    horizon = time_ns() // 1_000_000 - KEEP_MS
    return [forget(where) for where, remembered in every(log) if remembered.at < horizon]


def _place(row: str) -> Place | None:
    try:
        return msgspec.json.decode(row, type=Place)
    except msgspec.MsgspecError:
        return None


def _read(value: bytes) -> Remembered | None:
    try:
        found = msgspec.json.decode(value, type=Remembered)
    except msgspec.MsgspecError:
        return None
    return found if session_id(found.session) else None
