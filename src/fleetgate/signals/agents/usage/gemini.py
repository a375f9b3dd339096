"""Gemini CLI: the stats that it prints at its end, and the chats that it keeps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from fleetgate.core.usage import Usage
from fleetgate.signals.agents.agent import decode, text_of, type_of
from fleetgate.signals.agents.settings_files import as_object, read_text
from fleetgate.signals.agents.usage.records import AgentStart, UsageRecords, names_in, wall_ms, written_since
from fleetgate.signals.agents.usage.reports import ModelUsage, RecordedUsage, count, field, usage_of


class _Stats(Struct):
    stats: Any = None


class _Answered(Struct):
    """An answer in the file of a session."""

    type: Any = None
    id: Any = None
    timestamp: Any = None
    model: Any = None
    tokens: Any = None


class GeminiUsage(UsageRecords):
    marks = (b'"type":"result"',)
    record_marks = (b'"tokens":{',)
    reports_cost = False

    def reported(self, line: bytes, resumed: bool) -> RecordedUsage | None:
        """By the stats of its result, which do not tell how many calls there were: one for each model at least."""
        found = decode(line, _Stats) if type_of(line) == b"result" else None
        models = field(found.stats, "models") if found is not None else None
        if not isinstance(models, dict):
            return None
        parts = []
        for model, told in models.items():
            prompt, cached = count(field(told, "input_tokens")), count(field(told, "cached"))
            # The total has the tokens of its thoughts, too.
            output = max(count(field(told, "total_tokens")) - prompt, count(field(told, "output_tokens")))
            parts.append(ModelUsage(text_of(model), usage_of(max(prompt - cached, 0), cached, 0, output)))
        return RecordedUsage(tuple(parts), is_total=True)

    def reported_at_end(self, end: bytes) -> RecordedUsage | None:
        """By the stats of the one object, the last member of it."""
        start = end.rfind(b'\n  "stats": {')
        found = decode(b"{" + end[start:].strip(), _Stats) if start >= 0 else None
        models = field(found.stats, "models") if found is not None else None
        if not isinstance(models, dict):
            return None
        parts = []
        for model, told in models.items():
            calls = count(field(told, "api", "totalRequests")) - count(field(told, "api", "totalErrors"))
            parts.append(ModelUsage(text_of(model), _usage(field(told, "tokens"), "prompt", "candidates", calls)))
        return RecordedUsage(tuple(parts), is_total=True)

    def files(self, start: AgentStart) -> Iterator[str]:
        """Of one session of this folder; what the folder is called, a file of its own says."""
        root = f"{start.environ.get('HOME', '')}/.gemini"
        projects = as_object(read_text(f"{root}/projects.json")).get("projects")
        name = text_of(field(projects, start.folder))
        place = os.path.join(root, "tmp", name, "chats")
        if not name or "/" in name:
            return
        files = [os.path.join(place, each) for each in names_in(place) if each.endswith(".jsonl")]
        ends = tuple(f"-{session[:8]}.jsonl" for session in start.sessions)
        written = [path for path in written_since(files, start.since_wall_ms) if not ends or path.endswith(ends)]
        yield from written if len(written) == 1 else ()

    def recorded(self, line: bytes) -> RecordedUsage | None:
        found = decode(line, _Answered)
        if found is None or found.type != "gemini" or not isinstance(found.tokens, dict):
            return None
        part = ModelUsage(text_of(found.model), _usage(found.tokens, "input", "output", 1))
        return RecordedUsage((part,), text_of(found.id), at_ms=wall_ms(found.timestamp))


def _usage(told: Any, prompt: str, answer: str, calls: int) -> Usage:
    """Its prompt includes what was read from the cache."""
    cached, tool = count(field(told, "cached")), count(field(told, "tool"))
    given = max(count(field(told, prompt)) - cached, 0) + tool
    return usage_of(given, cached, 0, count(field(told, answer)) + count(field(told, "thoughts")), calls=calls)


RECORDS = GeminiUsage
