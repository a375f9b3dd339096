"""The outcome of an agent on a terminal, from the session files that it keeps (rules R2, R4).

Claude Code and Codex keep a file for each session, one record a line, with the refusals that they gave up on. Where and
how, the agents know (`Agent.session_files`, `Agent.kept`). What others write says too little: see docs/signals.md.

The rule: only what is certain counts. One regular file of this working directory was written since the start, not two;
of it, only its end is read, and only records made since the start. A refusal stands only as the last thing that
happened, and no longer than it lasts.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from fleetgate.signals.agents.agent import ACTIVITY, DONE, ERROR, Agent, AgentReport, Context, decode
from fleetgate.signals.outcome import Outcome

_END_BYTES = 262_144
_MOST_FILES = 2000
_FRESH_MS = 600_000  # a refusal that names no end is believed so long


class _Stamped(Struct):
    timestamp: str


class _Spoken(Struct):
    model: str = ""


class _Answer(Struct):
    message: _Spoken | None = None


def judge_by_files(
    agent: Agent, environ: Mapping[str, str], since_wall_ms: int, now_wall_ms: int, model: str = ""
) -> Outcome | None:
    """The refusal with which the session ended that this agent ran here since then, if there is one."""
    try:
        files = _written(agent.session_files(environ, os.getcwd(), since_wall_ms), since_wall_ms)
    except OSError:
        return None
    return judge_file(agent, files[0], since_wall_ms, now_wall_ms, model) if len(files) == 1 else None


def judge_file(agent: Agent, path: str, since_wall_ms: int, now_wall_ms: int, model: str = "") -> Outcome | None:
    """The refusal with which the session of this file ended, if it was since then and still stands."""
    try:
        lines = _last_lines(path)
    except OSError:
        return None
    stands: tuple[Outcome, int] | None = None
    for line in lines:
        at, told = _told(agent, line, model)
        if told is None or at is None or at < since_wall_ms:
            continue
        if told.what == ERROR and told.outcome is not None:
            stands = told.outcome, at
        elif told.what in (ACTIVITY, DONE):
            stands = None
    return None if stands is None else _still(*stands, now_wall_ms)


def models_in_file(path: str) -> list[str]:
    """The models that answered at the end of a session of Claude Code, the last one last."""
    try:
        found = [decode(line, _Answer) for line in _last_lines(path) if b'"assistant"' in line]
    except OSError:
        return []
    names = [record.message.model for record in found if record is not None and record.message is not None]
    return [name for name in names if name.startswith("claude")]


def _told(agent: Agent, line: bytes, model: str) -> tuple[int | None, AgentReport | None]:
    """When a record was made, and what it tells; a wait that it names begins then."""
    record = decode(line, _Stamped)
    try:
        at = int(datetime.fromisoformat(record.timestamp).timestamp() * 1000) if record is not None else None
    except (ValueError, OverflowError):
        at = None
    return (None, None) if at is None else (at, agent.kept(line, Context(model, lambda: at)))


def _still(found: Outcome, at: int, now: int) -> Outcome | None:
    age = max(0, now - at)
    if found.wait_ms is None:
        return found if age <= _FRESH_MS else None
    return replace(found, wait_ms=found.wait_ms - age) if found.wait_ms > age else None


def _written(paths: Iterable[str], since_wall_ms: int) -> list[str]:
    """Those that are regular files and were written since then: at most two, as more than one is too many."""
    found: list[str] = []
    for number, path in enumerate(paths):
        if number >= _MOST_FILES or len(found) == 2:
            break
        about = os.lstat(path)
        if stat.S_ISREG(about.st_mode) and about.st_mtime_ns // 1_000_000 >= since_wall_ms:
            found.append(path)
    return found


def _last_lines(path: str) -> list[bytes]:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        start = max(0, os.fstat(file.fileno()).st_size - _END_BYTES)
        file.seek(start)
        lines = file.read(_END_BYTES).split(b"\n")
    return lines[1:] if start else lines
