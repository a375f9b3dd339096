"""opencode: `opencode run -m provider/model --format json …`.

Every record has `type`, `timestamp` and `sessionID`. An `error` record has the provider's own response in it, which is
judged like any response. Nothing is printed while it retries, unless `--print-logs` sends its log to
stderr: there each refused call is a line with the provider's message, though without the status. Without `--format
json` the answer goes to stdout, and everything else, tool output included, to stderr: there only a last line that is an
error counts, and only when the exit code says so too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fleetgate.signals.agents.agent import (
    ACTIVITY,
    ERROR,
    LONG_MS,
    REMAINS,
    RETRY,
    Agent,
    AgentEnd,
    AgentReport,
    Context,
    decode,
    session_id,
    text_of,
    type_of,
)
from fleetgate.signals.agents.settings_files import as_object, folders_up, looked_up, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetgate.signals.agents.agent import Rule
    from fleetgate.signals.outcome import Outcome

_RESUMING = frozenset(("--session", "-s", "--continue", "-c"))
# As they are, and as older and newer versions spell them. `done` ends a run without saying how.
_ACTIVITY = frozenset(
    (
        *(b"text", b"reasoning", b"tool", b"tool_use", b"tool-invocation", b"tool-result", b"tool_result"),
        *(b"step-start", b"step_start", b"step-finish", b"step_finish"),
    )
)
_RULES: tuple[Rule, ...] = (
    ("quota", "quota_exceeded", r"Quota exceeded\. Check your plan and billing"),
    ("usage_window", "usage_limit", r"(?:AI_APICallError: )?.{0,60}\busage limit reached\b"),
    ("overloaded", "overloaded", r"(?:AI_APICallError: )?(?:Provider is overloaded|Overloaded)\b"),
    ("rate_limited", "too_many", r"(?:AI_APICallError: )?(?:Too Many Requests|Rate limit(?:ed| exceeded| reached))\b"),
    ("quota", "current_quota", r"You exceeded your current quota\b|.{0,40}credit balance is too low\b"),
    ("auth", "auth", r"(?:AI_LoadAPIKeyError|ProviderAuthError)\b"),
    ("auth", "key", r"(?:Incorrect API key provided|Invalid API key|invalid x-api-key|API key not valid)\b"),
)
_CONFIGS = ("opencode.json", "opencode.jsonc", ".opencode/opencode.json", ".opencode/opencode.jsonc")
_USED_UP = ("GoUsageLimitError", "FreeUsageLimitError")


# A line of its log about the model that was asked for, not the small one for titles.
_LOGGED = r'timestamp=\S+ level=ERROR run=\S+ message="stream error" .*\bsmall=false .*\berror\.error="(.*)"'
_WRAPPING = r"(?:AI_\w+: )?(?:Failed after [0-9]+ attempts?\. Last error: )?"
_REFUSED: tuple[Rule, ...] = (
    *_RULES,
    ("rate_limited", "rate_limit", r".{0,200}\b(?:exceed|exceeds|exceeded|reached|hit)\b.{0,60}\brate[ -]limit"),
)


class _Data(Struct, rename="camel"):
    message: Any = None
    status_code: Any = None
    response_headers: Any = None
    response_body: Any = None


class _Error(Struct):
    name: Any = None
    data: _Data | None = None
    message: Any = None


class _ErrorRecord(Struct):
    error: _Error | None = None


class _State(Struct):
    status: Any = None


class _Tool(Struct):
    state: _State | None = None


class _ToolRecord(Struct):
    part: _Tool | None = None


class _Status(Struct):
    type: Any = None
    message: Any = None
    next: Any = None  # when it calls again, in ms


class _Properties(Struct):
    status: _Status | None = None


class _StatusRecord(Struct):
    status: _Status | None = None
    properties: _Properties | None = None


class OpenCode(Agent):
    name = "opencode"
    model_flags = ("-m", "--model")
    version_flags = ("--version", "-v")
    managing_commands = frozenset(
        (
            *("auth", "completion", "db", "debug", "export", "import", "mcp", "models", "plug", "plugin", "providers"),
            *("session", "stats", "uninstall", "upgrade"),
        )
    )
    stale = (r"(?:Error: )?Session not found",)
    spellings = (
        ("bedrock", "amazon-bedrock"),
        ("vertex", "google-vertex"),
        ("fireworks", "fireworks-ai"),
        ("together", "togetherai"),
    )

    def kept_model(self, args: Sequence[str], environ: Mapping[str, str], folder: str) -> str | None:
        """By its config: what is nearest to the command wins, and in it the model of the agent that `--agent` names.

        Then by what was used last.
        """
        texts = [environ.get("OPENCODE_CONFIG_CONTENT", "")]
        paths = [f"{place}/{name}" for place in folders_up(folder) for name in _CONFIGS]
        if environ.get("OPENCODE_CONFIG"):
            paths.append(environ["OPENCODE_CONFIG"])
        home = environ.get("HOME", "")
        own = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
        paths += [f"{own}/opencode/{name}" for name in (*_CONFIGS[:2], "config.json") if own]
        configs = [as_object(text) for text in (*texts, *(read_text(path) for path in paths)) if text]
        agent = self.option(args, "--agent")
        for keys in ((("agent", agent, "model"),) if agent else ()) + (("model",),):
            for config in configs:
                if found := looked_up(config, *keys):
                    return found
        return _last_used(environ.get("XDG_STATE_HOME") or (f"{home}/.local/state" if home else ""))

    def model_place(self, args: Sequence[str]) -> int | None:
        """Of `run` after the word; before any option of the call without a subcommand."""
        if "run" in args:
            return list(args).index("run") + 1
        return 0 if not args or args[0].startswith("-") else None

    def mode(self, args: Sequence[str]) -> str:
        return "stream" if "run" in args and self.option(args, "--format") == "json" else ""

    def resumes_in(self, args: Sequence[str]) -> bool:
        return any(word.partition("=")[0] in _RESUMING for word in args)

    def resumed(self, args: Sequence[str], session: str) -> list[str] | None:
        if "run" not in args or self.resumes_in(args):
            return None
        at = list(args).index("run") + 1
        return [*args[:at], "--session", session, "--continue", *args[at:]]

    def record(self, line: bytes, context: Context) -> AgentReport | None:
        kind = type_of(line)
        session = _session(line)
        if kind in _ACTIVITY:
            return AgentReport(REMAINS if kind == b"tool_use" and _failed(line) else ACTIVITY, None, session)
        if kind == b"session.status":
            return self._status(line, session, context)
        if kind != b"error":
            return AgentReport(session=session) if kind else None
        found = decode(line, _ErrorRecord)
        error = found.error if found is not None and found.error is not None else _Error()
        return AgentReport(ERROR, self._judge(error, context), session)

    def _status(self, line: bytes, session: str, context: Context) -> AgentReport:
        """What it is doing: `retry` is a call that is being made again."""
        found = decode(line, _StatusRecord) or _StatusRecord()
        status = found.status or (found.properties.status if found.properties is not None else None)
        if status is None or status.type != "retry":
            return AgentReport(session=session)
        message = text_of(status.message)
        judged = self.by_rules(_REFUSED, message, context) or self.outcome("local_error", "retry", message)
        wait_ms = status.next - context.now_wall_ms() if isinstance(status.next, int) else 0
        return AgentReport(RETRY, replace(judged, wait_ms=wait_ms) if wait_ms > LONG_MS else judged, session)

    def _judge(self, error: _Error, context: Context) -> Outcome:
        data = error.data or _Data(error.message)
        name, message, body = text_of(error.name), text_of(data.message), text_of(data.response_body)
        if name == "ProviderAuthError":
            return self.outcome("auth", name, message or name)
        headers = _headers(data.response_headers)
        status = data.status_code if isinstance(data.status_code, int) and 400 <= data.status_code < 600 else 0
        for marker in _USED_UP:
            if marker in body or marker in message:
                told = self.by_status(context.provider, 429, body or message, context, headers=headers)
                return self.outcome("usage_window", marker, message or body, context, wait_ms=told.wait_ms)
        found = self.by_rules(_RULES, message, context)
        # Its own sentences about a plan say more than the status; about the rest, the response does.
        if status and (found is None or found.kind not in ("usage_window", "quota")):
            return self.by_status(context.provider, status, body or message, context, headers=headers)
        return found or self._by_body(body, context) or self.outcome("local_error", name or "error", message or name)

    def _by_body(self, body: str, context: Context) -> Outcome | None:
        """A response without its status: only a code that says what it is counts."""
        from fleetgate.signals.classify_http import classify_stream_error

        told = classify_stream_error(context.provider, body, context.now_wall_ms(), context.model_name)
        if told is None or told.kind == "server_error":
            return None
        return replace(told, rule=f"{self.name}.{told.rule}")

    def notice(self, err: list[str], context: Context) -> Outcome | None:
        for line in reversed(err):
            if logged := re.match(_LOGGED, line):
                message = logged[1].replace('\\"', '"')
                return self.by_rules(_REFUSED, re.sub(_WRAPPING, "", message, count=1), context)
        return None

    def last_words(self, end: AgentEnd, context: Context) -> Outcome | None:
        if end.exit_code is None or not end.err:
            return None
        start, colon, message = end.err[-1].partition("Error: ")
        return self.by_rules(_RULES, message, context) if colon and not start else None


def _last_used(state: str) -> str | None:
    """The model that heads its list of recent ones."""
    recent = as_object(read_text(f"{state}/opencode/model.json")).get("recent") if state else None
    first = recent[0] if isinstance(recent, list) and recent else None
    provider, model = looked_up(first, "providerID"), looked_up(first, "modelID")
    return f"{provider}/{model}" if provider and model else None


def _session(line: bytes) -> str:
    """The id beside the type: before anything that a tool or a model could have said."""
    start = line.find(b'"sessionID":"', 0, 120)
    if start < 0:
        return ""
    end = line.find(b'"', start + 13, start + 160)
    return session_id(line[start + 13 : end].decode("ascii", "replace")) if end > 0 else ""


def _failed(line: bytes) -> bool:
    """A tool that failed: that is also what a run that breaks off leaves behind, after the error."""
    if b'"status":"error"' not in line:
        return False
    found = decode(line, _ToolRecord)
    state = found.part.state if found is not None and found.part is not None else None
    return state is not None and state.status == "error"


def _headers(value: object) -> dict[str, str]:
    pairs = value.items() if isinstance(value, dict) else ()
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


AGENT = OpenCode()
