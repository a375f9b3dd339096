"""Claude Code: the result that it prints, and the transcripts that it keeps."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fleetgate.core.usage import Usage
from fleetgate.signals.agents.agent import decode, session_id, text_of, type_of
from fleetgate.signals.agents.settings_files import as_object, read_text
from fleetgate.signals.agents.usage.records import AgentStart, UsageRecords, names_in, wall_ms, written_since
from fleetgate.signals.agents.usage.reports import ModelUsage, RecordedUsage, field, usage_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetgate.core.plans.reading import PlanReading

_MODEL_COUNTS = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens", "outputTokens")
_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")


class _Result(Struct):
    """What a result, or the last record of a transcript, tells about usage: `since` is what no result told before."""

    type: str = ""
    uuid: Any = None
    num_turns: Any = None
    usage: Any = None
    models: Any = msgspec.field(default=None, name="modelUsage")
    since: Any = msgspec.field(default=None, name="model_usage_since_last_result")


class _LimitEvent(Struct):
    type: str = ""
    rate_limit_info: Any = None


class _Answer(Struct):
    id: Any = None
    model: Any = None
    usage: Any = None


class _Answered(Struct):
    """An answer in a transcript."""

    type: str = ""
    timestamp: Any = None
    message: _Answer | None = None


class ClaudeUsage(UsageRecords):
    marks = (b'"type":"result"',)
    plan_marks = (b'"rate_limit_event"',)
    record_marks = (b'"usage":{', b'"cost-state"')

    def reported(self, line: bytes, resumed: bool) -> RecordedUsage | None:
        """By its result. `modelUsage` is all that the session has used, also before it was resumed."""
        if line[:1] == b"[":
            results = [each for each in decode(line, list[_Result]) or [] if each.type == "result"]
            found = results[-1] if results else None
        else:
            found = decode(line, _Result) if type_of(line) == b"result" else None
        if found is None:
            return None
        if isinstance(found.since, dict):
            return RecordedUsage(_by_model(found.since, found.num_turns), id=text_of(found.uuid))
        models = found.models if isinstance(found.models, dict) else {}
        if models and not resumed:
            return RecordedUsage(_by_model(models, found.num_turns), is_total=True)
        model = next(iter(models)) if len(models) == 1 else ""
        return RecordedUsage((ModelUsage(model, _usage(found.usage, found.num_turns)),), id=text_of(found.uuid))

    def plan_windows(self, line: bytes, now_wall_ms: int, model: str) -> tuple[PlanReading, ...]:
        from fleetgate.signals.agents.plan_windows import window_in_event

        if line[:1] == b"[":
            events = [each for each in decode(line, list[_LimitEvent]) or [] if each.type == "rate_limit_event"]
        else:
            event = decode(line, _LimitEvent) if type_of(line) == b"rate_limit_event" else None
            events = [] if event is None else [event]
        infos = [each.rate_limit_info for each in events if isinstance(each.rate_limit_info, dict)]
        found = [window_in_event(info, now_wall_ms, model) for info in infos]
        is_array = line[:1] == b"["  # which comes at the end of the run, however long ago its events were
        return tuple(replace(each, is_floor=True) if is_array else each for each in found if each is not None)

    def files(self, start: AgentStart) -> Iterator[str]:
        """Of each session, its helpers' transcripts and then its own, which may have a total of them all."""
        sessions = [*start.sessions]
        root = self.agent.own_folder(start.environ, "CLAUDE_CONFIG_DIR", ".claude")
        place = os.path.join(root, "projects", re.sub(r"[^A-Za-z0-9]", "-", start.folder))
        if not sessions:
            files = (os.path.join(place, name) for name in names_in(place) if name.endswith(".jsonl"))
            written = written_since(files, start.since_wall_ms)
            sessions = [os.path.basename(path)[:-6] for path in written] if len(written) == 1 else []
        for session in sessions:
            helpers = os.path.join(place, session, "subagents")
            yield from (os.path.join(helpers, name) for name in names_in(helpers) if name.endswith(".jsonl"))
            yield os.path.join(place, f"{session}.jsonl")

    def recorded(self, line: bytes) -> RecordedUsage | None:
        """Of a transcript: its answers, each in several lines, and at its end what it used in all."""
        if b'"cost-state"' in line and type_of(line) == b"cost-state":
            found = decode(line, _Result)
            return RecordedUsage(_by_model(found.models, 0), is_total=True) if found is not None else None
        answered = decode(line, _Answered)
        if answered is None or answered.type != "assistant" or answered.message is None:
            return None
        answer = answered.message
        if answer.model == "<synthetic>" or not isinstance(answer.usage, dict):
            return None
        part = ModelUsage(text_of(answer.model), _usage(answer.usage, 1))
        return RecordedUsage((part,), text_of(answer.id), at_ms=wall_ms(answered.timestamp))

    def session_of(self, environ: Mapping[str, str], pid: int) -> str:
        root = self.agent.own_folder(environ, "CLAUDE_CONFIG_DIR", ".claude")
        return session_id(as_object(read_text(f"{root}/sessions/{pid}.json")).get("sessionId")) if root else ""


def _by_model(models: Any, turns: Any) -> tuple[ModelUsage, ...]:
    """`{"claude-opus-4-6": {"inputTokens": 12, …, "costUSD": 0.01}}`; the turns count for the first."""
    parts: list[ModelUsage] = []
    for model, told in models.items() if isinstance(models, dict) else ():
        counts = [field(told, name) for name in _MODEL_COUNTS]
        used = usage_of(*counts, calls=0 if parts else turns, dollars=field(told, "costUSD"))
        parts.append(ModelUsage(text_of(model), used))
    return tuple(parts) or (ModelUsage("", usage_of(calls=0)),)


def _usage(told: Any, calls: Any) -> Usage:
    counts = [field(told, name) for name in _COUNTS]
    return usage_of(*counts, calls=calls if any(counts) else 0)


RECORDS = ClaudeUsage
