"""Gemini CLI: `gemini -p … --output-format stream-json`.

The last record is `result`, whose `status` decides; an `error` record may be a mere warning. With `--output-format
json` one object, spread over lines, is printed at the end: on stdout a `response`, on stderr an `error`. Its exit codes
are its own; in both modes that of a refused call is the HTTP status modulo 256. What it does on its way (calls that are
made again, reports of errors) it tells on stderr in lines of a shape of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fleetgate.signals.agents.agent import (
    ACTIVE,
    ERROR,
    GOOD_END,
    LONG_MS,
    Agent,
    AgentEnd,
    AgentReport,
    Context,
    decode,
    session_id,
    text_of,
    type_of,
)
from fleetgate.signals.agents.model_aliases import named
from fleetgate.signals.agents.settings_files import as_object, looked_up, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetgate.signals.agents.agent import Rule
    from fleetgate.signals.outcome import Outcome

_ACTIVITY = frozenset((b"tool_use", b"tool_result"))
_EXITS = {
    41: ("auth", "not authenticated"),
    401 % 256: ("auth", "HTTP 401"),
    402 % 256: ("quota", "HTTP 402"),
    429 % 256: ("rate_limited", "HTTP 429"),
    500 % 256: ("server_error", "HTTP 500"),
    502 % 256: ("server_error", "HTTP 502"),
    503 % 256: ("overloaded", "HTTP 503"),
    504 % 256: ("server_error", "HTTP 504"),
}
_STATUSES = {
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "INTERNAL": 500,
    "DEADLINE_EXCEEDED": 504,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "INVALID_ARGUMENT": 400,
}
_KINDS = ("pro", "flash", "flash-lite")
_CLASS = r"(?:\w+Error: )?"
_RULES: tuple[Rule, ...] = (
    ("usage_window", "daily_quota", rf"{_CLASS}You have exhausted your (?:daily )?quota\b"),
    ("usage_window", "quota_exhausted", r".{0,300}\b(?:QUOTA_EXHAUSTED|Your quota will reset after)\b"),
    ("overloaded", "capacity", r".{0,300}\bMODEL_CAPACITY_EXHAUSTED\b"),
    ("overloaded", "capacity", rf"{_CLASS}(?:You have exhausted your capacity|No capacity available)\b"),
    ("overloaded", "overloaded", rf"{_CLASS}The model is overloaded\b"),
    ("usage_window", "terminal_quota", r"TerminalQuotaError\b"),
    ("rate_limited", "retryable_quota", r"RetryableQuotaError\b"),
    ("rate_limited", "rate_limit", r".{0,300}\b(?:RATE_LIMIT_EXCEEDED|Please retry in [0-9.]+ ?m?s)\b"),
    ("rate_limited", "exhausted", rf"{_CLASS}(?:Resource has been exhausted|RESOURCE_EXHAUSTED|Quota exceeded for)\b"),
    ("auth", "key", rf"{_CLASS}API key (?:not valid|expired)\b"),
    ("auth", "method", r"Invalid auth method|Please set an Auth method|When using \w+(?: \w+)?, you must"),
)
_WRAPPED = r"\[API Error: (.*?)(?: \(Status: (\w+)\))?\](?:\n.*)?$"
_REPORT = r"Error when talking to Gemini API(?: Full report available at: \S+)? (.*)"
_ATTEMPT = r"Attempt [0-9]+ failed(?: with status ([0-9]{3}))?\b"
_SUGGESTED = r"Suggested retry after ([0-9.]+ ?m?s)\b"  # the provider's, other than what it waits itself
_TRYING_AGAIN = 3  # lines of one notice


class _Error(Struct):
    message: Any = None
    code: Any = None
    status: Any = None


class _Record(Struct):
    """Of a stream's record, of the one object at the end, and of a response's body."""

    status: Any = None
    severity: Any = None
    message: Any = None
    session_id: Any = None
    error: _Error | None = None


class Gemini(Agent):
    name = "gemini"
    says_done = True
    model_flags = ("-m", "--model")
    model_variables = ("GEMINI_MODEL",)
    address_variables = ("GOOGLE_GEMINI_BASE_URL",)
    provider = "google"
    version_flags = ("--version", "-v", "--list-extensions", "-l", "--list-sessions", "--delete-session")
    managing_commands = frozenset(("mcp", "extensions", "extension", "skills", "skill", "hooks", "hook"))

    def kept_model(self, args: Sequence[str], environ: Mapping[str, str], folder: str) -> str | None:
        home = environ.get("HOME", "")
        for place in (folder, home):
            settings = as_object(read_text(f"{place}/.gemini/settings.json")) if place else {}
            if found := looked_up(settings, "model", "name") or looked_up(settings, "model"):
                return found
        return None

    def sent_elsewhere(self, args: Sequence[str], environ: Mapping[str, str], folder: str) -> str:
        """With a login of Google's, or on Vertex, it calls other places than Gemini's API."""
        for name in ("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA"):
            if environ.get(name, "").lower() in ("1", "true"):
                return f"{name} is set"
        return ""

    def model_named(self, said: str, args: Sequence[str], environ: Mapping[str, str]) -> str:
        """`auto` uses pro and flash: the scarcer one counts."""
        word = said.strip().removeprefix("models/")
        kind = "pro" if word.startswith("auto") else word
        return named(f"gemini-{kind}-latest" if kind in _KINDS else word, self.provider)

    def mode(self, args: Sequence[str]) -> str:
        return {"stream-json": "stream", "json": "single"}.get(self.option(args, "-o", "--output-format") or "", "")

    # --- records

    def record(self, line: bytes, context: Context) -> AgentReport | None:
        if line.startswith(b'  "'):
            return _member(line)
        kind = type_of(line)
        if kind in _ACTIVITY:
            return ACTIVE
        if kind == b"message":
            return ACTIVE if b'"role":"assistant"' in line[:120] else AgentReport()
        if kind not in (b"init", b"error", b"result"):
            return AgentReport() if kind else None
        found = decode(line, _Record) or _Record()
        if kind == b"init":
            return AgentReport(session=session_id(found.session_id))
        if kind == b"error":
            told = self.outcome("local_error", "error", text_of(found.message))
            return AgentReport(ERROR, told) if found.severity == "error" else AgentReport()
        if found.status == "success":
            return GOOD_END
        message = text_of(found.error.message) if found.error is not None else ""
        return AgentReport(ERROR, self._judge(message, context) or self._unknown(message))

    def _unknown(self, message: str) -> Outcome:
        return self.outcome("local_error", "error", message)

    # --- its message, in a record or as text

    def _judge(self, message: str, context: Context) -> Outcome | None:
        wrapped = re.match(_WRAPPED, message.strip(), re.DOTALL)
        inner, status = (wrapped[1], wrapped[2] or "") if wrapped else (message.strip(), "")
        if inner.startswith(("{", "_ApiError: {", "ApiError: {")):
            return self._response(inner[inner.index("{") :], context)
        found = self.by_rules(_RULES, inner, context)
        if found is not None:
            return self._of_this_model(found, context) if found.kind == "usage_window" else found
        return self.by_status("gemini", _STATUSES[status], inner, context) if status in _STATUSES else None

    def _of_this_model(self, found: Outcome, context: Context) -> Outcome:
        """Its quotas are for one model, and end at midnight in California where nothing else is said."""
        from fleetgate.signals.clock_times import next_midnight_ms

        now, wait_ms = context.now_wall_ms(), found.wait_ms
        midnight = next_midnight_ms("America/Los_Angeles", -8, now) if wait_ms is None else None
        return replace(found, scope="model", wait_ms=midnight - now if midnight is not None else wait_ms)

    def _response(self, body: str, context: Context) -> Outcome | None:
        """The provider's own response, as JSON."""
        found = decode(body, _Record)
        error = found.error if found is not None else None
        if error is None:
            return None
        code = error.code if isinstance(error.code, int) else _STATUSES.get(text_of(error.status), 0)
        return self.by_status("gemini", code, body, context) if 400 <= code < 600 else None

    def notice(self, err: list[str], context: Context) -> Outcome | None:
        for index in range(len(err) - 1, -1, -1):
            if again := re.match(_ATTEMPT, err[index]):
                text = " ".join(err[index : index + _TRYING_AGAIN])
                found = self.outcome(_kind_of(again[1], text), "attempt", text, context)
                if asked_for := re.search(_SUGGESTED, text):
                    from fleetgate.signals.wait_times import wait_from_duration

                    return replace(found, wait_ms=wait_from_duration(asked_for[1]))
                return found if (found.wait_ms or 0) >= LONG_MS else replace(found, wait_ms=None)
        return None

    def last_words(self, end: AgentEnd, context: Context) -> Outcome | None:
        if end.exit_code is None:
            return None
        return self._object(end, context) or self._report(end, context)

    def _object(self, end: AgentEnd, context: Context) -> Outcome | None:
        """The one object of `--output-format json`, at the end of stderr."""
        start = end.raw_err.rfind("\n{\n")
        found = decode(end.raw_err[start + 1 :].strip(), _Record) if start >= 0 or end.raw_err.startswith("{") else None
        if found is None or found.error is None:
            return None
        message = text_of(found.error.message)
        if told := self._judge(message, context):
            return told
        code = found.error.code
        if isinstance(code, int) and 400 <= code < 600:
            return self.by_status("gemini", code, message, context)
        return None

    def _report(self, end: AgentEnd, context: Context) -> Outcome | None:
        for index in range(len(end.err) - 1, -1, -1):
            line = end.err[index]
            if report := re.match(_REPORT, line):
                return self._judge(report[1], context)
            if line.startswith("[API Error: ") and (found := self._judge(line, context)):
                return found
        return None

    def by_exit(self, exit_code: int) -> Outcome | None:
        kind, seen = _EXITS.get(exit_code, ("", ""))
        return self.outcome(kind, f"exit_{exit_code}", f"exit {exit_code}: {seen}") if kind else None


def _kind_of(status: str | None, text: str) -> str:
    if status:
        return _EXITS.get(int(status) % 256, ("local_error", ""))[0]
    said = rf"{_SUGGESTED}|exhausted|quota|rate limit|\b429\b"
    return "rate_limited" if re.search(said, text, re.IGNORECASE) else "server_error"


def _member(line: bytes) -> AgentReport | None:
    """A member of the one object, by its two spaces: what is deeper, or inside a string, has more or is escaped."""
    if line.startswith(b'  "response": "'):
        return ACTIVE if len(line.rstrip(b"\r,")) > len(b'  "response": ""') else AgentReport()
    if line.startswith(b'  "session_id": "'):
        return AgentReport(session=session_id(line.rstrip(b'",\r')[17:].decode("ascii", "replace")))
    return None


AGENT = Gemini()
