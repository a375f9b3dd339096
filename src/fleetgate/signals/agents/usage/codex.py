"""Codex: the end of a turn that it prints, and the rollouts that it keeps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from fleetgate.core.usage import Usage
from fleetgate.signals.agents.agent import decode, text_of, type_of
from fleetgate.signals.agents.usage.records import AgentStart, UsageRecords, wall_ms, written_since
from fleetgate.signals.agents.usage.reports import ModelUsage, RecordedUsage, count, field, usage_of

_MOST_FOLDERS = 2000  # one for each day


class _Turn(Struct):
    usage: Any = None


class _Counted(Struct):
    type: Any = None
    model: Any = None
    info: Any = None
    rate_limits: Any = None


class _CountRecord(Struct):
    """A record of a rollout, as far as it tells about usage."""

    type: str = ""
    timestamp: Any = None
    payload: _Counted | None = None


class CodexUsage(UsageRecords):
    marks = (b'"turn.completed"',)
    record_marks = (b'"token_count"', b'"turn_context"')
    files_report_plan = True
    reports_cost = False

    def reported(self, line: bytes, resumed: bool) -> RecordedUsage | None:
        """`turn.completed` has all that the session has used: of a resumed one, that is too much."""
        found = decode(line, _Turn) if type_of(line) == b"turn.completed" and not resumed else None
        if found is None or not isinstance(found.usage, dict):
            return None
        return RecordedUsage((ModelUsage("", _usage(found.usage)),), is_total=True)

    def prefers_files(self, args: Sequence[str]) -> bool:
        return True

    def files(self, start: AgentStart) -> Iterator[str]:
        """Of a session that is known, wherever it is; it is in the folder of the day on which it began."""
        if not start.sessions:
            files = self.agent.session_files(start.environ, start.folder, start.since_wall_ms)
            written = written_since(files, start.since_wall_ms)
            yield from written if len(written) == 1 else ()
            return
        root = self.agent.own_folder(start.environ, "CODEX_HOME", ".codex")
        ends = tuple(f"-{session}.jsonl" for session in start.sessions)
        for number, (place, _, names) in enumerate(os.walk(os.path.join(root, "sessions"))):
            yield from (os.path.join(place, name) for name in names if name.endswith(ends))
            if number >= _MOST_FOLDERS:
                return

    def recorded(self, line: bytes) -> RecordedUsage | None:
        """`token_count`, which may be written again: after each call the total is another one."""
        found = decode(line, _CountRecord)
        payload = found.payload if found is not None else None
        if found is None or payload is None:
            return None
        at = wall_ms(found.timestamp)
        if found.type == "turn_context":
            return RecordedUsage(model=text_of(payload.model), at_ms=at)
        last, total = field(payload.info, "last_token_usage"), field(payload.info, "total_token_usage")
        if found.type != "event_msg" or payload.type != "token_count":
            return None
        limits = payload.rate_limits if isinstance(payload.rate_limits, dict) else None
        if not isinstance(last, dict):
            return None if limits is None else RecordedUsage(at_ms=at, limits=limits)
        state = [count(field(total, name)) for name in ("input_tokens", "output_tokens")]
        return RecordedUsage((ModelUsage("", _usage(last)),), f"{state}", at_ms=at, limits=limits)


def _usage(told: Any) -> Usage:
    """Its input includes what was read from the cache and written to it."""
    read, written = count(field(told, "cached_input_tokens")), count(field(told, "cache_write_input_tokens"))
    fresh = max(count(field(told, "input_tokens")) - read - written, 0)
    return usage_of(fresh, read, written, field(told, "output_tokens"))


RECORDS = CodexUsage
