"""opencode: the end of each step, as it prints it and as its database has it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fleetgate.signals.agents.agent import decode, text_of, type_of
from fleetgate.signals.agents.usage.records import AgentStart, UsageRecords
from fleetgate.signals.agents.usage.reports import ModelUsage, RecordedUsage, count, field, usage_of

# The sessions of a run with those of its helpers, and the end of each of their steps since then.
_SESSIONS = "SELECT id FROM session WHERE parent_id IS NULL AND directory = ? AND time_updated >= ? LIMIT 2"
_STEPS = """
    WITH RECURSIVE own(id) AS (
        SELECT ? UNION SELECT session.id FROM session JOIN own ON session.parent_id = own.id
    )
    SELECT part.id, part.data, message.data, part.time_created
    FROM own JOIN part ON part.session_id = own.id JOIN message ON message.id = part.message_id
    WHERE part.time_created >= ? AND part.data LIKE '%"step-finish"%' LIMIT 50000
"""


class _Step(Struct):
    id: Any = None
    type: Any = None
    tokens: Any = None
    cost: Any = None


class _StepRecord(Struct):
    part: _Step | None = None


class _Message(Struct):
    provider: Any = msgspec.field(default=None, name="providerID")
    model: Any = msgspec.field(default=None, name="modelID")


class OpenCodeUsage(UsageRecords):
    marks = (b'"step_finish"', b'"step-finish"')

    def reported(self, line: bytes, resumed: bool) -> RecordedUsage | None:
        if type_of(line) not in (b"step_finish", b"step-finish"):
            return None
        found = decode(line, _StepRecord)
        return None if found is None or found.part is None else _step(found.part, "", None)

    def prefers_files(self, args: Sequence[str]) -> bool:
        return True

    def kept(self, start: AgentStart) -> list[RecordedUsage]:
        """By its database, which also has the steps of its helpers, and the model of each."""
        home = start.environ.get("HOME", "")
        own = start.environ.get("XDG_DATA_HOME") or (f"{home}/.local/share" if home.startswith("/") else "")
        path = start.environ.get("OPENCODE_DB") or f"{own}/opencode/opencode.db"
        if not own or os.path.islink(path) or not os.path.isfile(path):
            return []
        try:
            database = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=1)
            try:
                return _steps(database, start)
            finally:
                database.close()
        except sqlite3.Error:
            return []


def _steps(database: sqlite3.Connection, start: AgentStart) -> list[RecordedUsage]:
    sessions = list(start.sessions)
    if not sessions:
        rows = database.execute(_SESSIONS, (start.folder, start.since_wall_ms)).fetchall()
        sessions = [row[0] for row in rows] if len(rows) == 1 else []
    found = []
    for session in sessions:
        for ident, data, message, at in database.execute(_STEPS, (session, start.since_wall_ms)):
            step, named = decode(text_of(data), _Step), decode(text_of(message), _Message) or _Message()
            report = _step(step, f"{text_of(named.provider)}/{text_of(named.model)}", at) if step is not None else None
            if report is not None:
                found.append(replace(report, id=text_of(ident)))
    return found


def _step(step: _Step, model: str, at: int | None) -> RecordedUsage | None:
    """Of some versions, its output includes the tokens of its reasoning; the total tells."""
    told = step.tokens
    if step.type != "step-finish" or not isinstance(told, dict):
        return None
    read, written = count(field(told, "cache", "read")), count(field(told, "cache", "write"))
    given, spoken, thought = (count(field(told, name)) for name in ("input", "output", "reasoning"))
    rest = count(field(told, "total")) - given - read - written
    output = min(max(rest, spoken), spoken + thought) if "total" in told else spoken + thought
    used = usage_of(given, read, written, output, dollars=step.cost)
    return RecordedUsage((ModelUsage(model.strip("/"), used),), text_of(step.id), at_ms=at)


RECORDS = OpenCodeUsage
