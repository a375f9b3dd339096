"""Claude Code: `claude -p … --output-format stream-json`.

Its last record is `result`, and `is_error` in it decides, not `subtype` (a refused run says `success`). Before that, a
refused call shows as `system`/`api_retry` while it is made again, as `rate_limit_event` with `status: rejected` when a
window of the plan is used up, and as an `assistant` record with an `error` of its own when it is given up. In text mode
the same message is all that it prints, on stdout or stderr, with exit 1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fleetgate.config.model_families import CLAUDE
from fleetgate.signals.agents.agent import (
    ACTIVE,
    ERROR,
    GOOD_END,
    LONG_MS,
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
from fleetgate.signals.agents.settings_files import as_object, looked_up, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetgate.core.model_names import Model
    from fleetgate.signals.agents.agent import Rule
    from fleetgate.signals.outcome import Outcome

_RESUMING = frozenset(("--resume", "-r", "--continue", "-c", "--session-id", "--from-pr"))
# It calls Claude through another's cloud.
_HOSTED = ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY")
_FAMILIES = r"\b(opus|sonnet|haiku|fable)\b"

_RULES: tuple[Rule, ...] = (
    ("quota", "spend_limit", r"You've (?:hit|reached) your (?:org's )?(?:monthly )?spend limit"),
    ("quota", "credit_balance", r"(?:Your )?Credit balance is too low"),
    ("usage_window", "extra_usage", r"You're out of (?:extra usage|usage credits)\b.{0,20}\bresets\b"),
    ("quota", "usage_credits", r"You're out of (?:extra usage|usage credits)|.{1,20} requires usage credits"),
    ("quota", "org_usage", r"Your org is out of usage|Your group's usage limit is set to \$0"),
    ("quota", "not_included", r"Your slot type doesn't include|Your usage allocation has been disabled"),
    ("usage_window", "limit", r"You've (?:hit|reached) your (?:[\w'.-]+ ){0,4}limit\b"),
    ("usage_window", "limit_reached", r"Claude (?:AI )?usage limit reached"),
    ("usage_window", "limit_reached", r"(?:5-hour|Session|Weekly|Opus|Sonnet|Haiku)(?: [\w-]+){0,2} limit reached"),
    ("overloaded", "overloaded", r"API Error: (?:Repeated )?529\b|Repeated 529 Overloaded errors"),
    ("overloaded", "high_load", r"\w+ is experiencing high load, please"),
    ("rate_limited", "limiting", r"API Error: Server is temporarily limiting requests"),
    ("auth", "not_logged_in", r"Not logged in\b|Please run /login\b|Session expired\. Please run /login"),
    ("auth", "key", r"Invalid API key\b"),
    ("auth", "token", r"(?:Your )?OAuth (?:token|session) (?:has |was |is )?(?:expired|revoked|invalid)"),
    (
        "auth",
        "organization",
        r"(?:This|Your) organization has (?:been )?disabled\b|This service is disabled for your org",
    ),
    ("auth", "organization", r"Your ANTHROPIC_API_KEY belongs to a disabled organization"),
    # It says itself that this may be the network, or the gateway.
    ("server_error", "authentication_error", r"Authentication error · "),
)
# An answer that is an error has one of these; so may one whose tool call has such a field.
_MARKS = (b'"error":"', b'"is_api_error_message":true')
# `API Error: 500 …`, `API Error: Request rejected (429) · …`, `API Error (429 {…}) · Retrying in 2892 seconds…`
_STATUS = r"(?:Failed to authenticate\. )?API Error(?:: Request rejected)?[: (]{1,3}([45][0-9]{2})\)?(?: · | )?(.*)"
_AGAIN = r"API Error\b.*\bRetrying in [0-9]+ seconds"
_CODES = {
    "rate_limit": "rate_limited",
    "overloaded": "overloaded",
    "authentication_failed": "auth",
    "oauth_org_not_allowed": "auth",
    "billing_error": "quota",
    "server_error": "server_error",
}


class _LimitInfo(Struct, rename="camel"):
    status: Any = None
    resets_at: Any = None
    rate_limit_type: Any = None


class _Record(Struct):
    """The fields of records that matter; those of `message` and of tools are passed over."""

    type: str = ""
    subtype: Any = None
    session_id: Any = None
    is_error: Any = None
    result: Any = None
    errors: Any = None
    api_error_status: Any = None
    error: Any = None
    is_api_error_message: Any = None
    error_status: Any = None
    retry_delay_ms: Any = None
    attempt: Any = None
    parent_tool_use_id: Any = None
    rate_limit_info: _LimitInfo | None = None


class _Kept(Struct, rename="camel"):
    """A record of a transcript."""

    type: str = ""
    is_sidechain: Any = None
    is_api_error_message: Any = None
    api_error_status: Any = None
    error: Any = None
    quota_limits: _LimitInfo | None = None


class _Part(Struct):
    text: Any = None


class _Message(Struct):
    content: list[_Part] = []


class _Spoken(Struct):
    message: _Message | None = None


class Claude(Agent):
    name = "claude"
    says_done = True
    model_flags = ("--model",)
    model_variables = ("ANTHROPIC_MODEL",)
    address_variables = ("ANTHROPIC_BASE_URL",)
    provider = "anthropic"
    subagents_variable = "CLAUDE_CODE_MAX_CONCURRENT_SUBAGENTS"
    version_flags = ("--version", "-v")
    managing_commands = frozenset(
        (
            *("auth", "auto-mode", "config", "doctor", "gateway", "import", "install", "kill", "logs", "mcp"),
            *("migrate-installer", "plugin", "plugins", "purge", "rm", "setup-token", "stop", "update", "upgrade"),
        )
    )
    stale = (r"No conversation found with session ID",)
    tells_retries_in_text = True

    def kept_model(self, args: Sequence[str], environ: Mapping[str, str], folder: str) -> str | None:
        """By `--settings`, then the settings of the project, then those of the user."""
        for settings in self._settings(args, environ, folder):
            if found := looked_up(settings, "env", "ANTHROPIC_MODEL") or looked_up(settings, "model"):
                return found
        return None

    def sent_elsewhere(self, args: Sequence[str], environ: Mapping[str, str], folder: str) -> str:
        for name in _HOSTED:
            if environ.get(name, "") not in ("", "0", "false"):
                return f"{name} is set"
        for settings in self._settings(args, environ, folder):
            for name in (*_HOSTED, "ANTHROPIC_BASE_URL"):
                if looked_up(settings, "env", name) not in ("", "0", "false"):
                    return f"its settings set {name}"
        return ""

    def _settings(self, args: Sequence[str], environ: Mapping[str, str], folder: str) -> list[dict[str, Any]]:
        """What it is told by files, the nearest first."""
        given = self.option(args, "--settings") or ""
        own = self.own_folder(environ, "CLAUDE_CONFIG_DIR", ".claude")
        texts = [given if given.lstrip().startswith("{") else read_text(os.path.join(folder, given)) if given else ""]
        if folder:
            texts += [read_text(f"{folder}/.claude/{name}") for name in ("settings.local.json", "settings.json")]
        if own:
            texts.append(read_text(f"{own}/settings.json"))
        return [as_object(text) for text in texts if text]

    def model_named(self, said: str, args: Sequence[str], environ: Mapping[str, str]) -> str:
        """`ANTHROPIC_DEFAULT_OPUS_MODEL` and the like say what an alias stands for; `default` depends on the plan."""
        if said.strip().lower() == "default":
            return ""
        found = super().model_named(said, args, environ)
        family = found.removeprefix("anthropic/claude-").removesuffix("-latest")
        meant = environ.get(f"ANTHROPIC_DEFAULT_{family.upper()}_MODEL", "") if family in CLAUDE else ""
        return super().model_named(meant, args, environ) if meant else found

    def with_model(self, args: Sequence[str], model: Model, environ: Mapping[str, str]) -> list[str] | None:
        """Not on Bedrock or Vertex, which have names of their own."""
        hosted = any(environ.get(name, "") not in ("", "0") for name in _HOSTED)
        return None if hosted else super().with_model(args, model, environ)

    def mode(self, args: Sequence[str]) -> str:
        return {"stream-json": "stream", "json": "single"}.get(self.option(args, "--output-format") or "", "")

    def resumes_in(self, args: Sequence[str]) -> bool:
        return any(word.partition("=")[0] in _RESUMING for word in args)

    def resumed(self, args: Sequence[str], session: str) -> list[str] | None:
        return None if self.resumes_in(args) else ["--resume", session, *args]

    # --- records

    def record(self, line: bytes, context: Context) -> AgentReport | None:
        if line[:1] == b"[":  # `--output-format json --verbose`: all records in one line
            records = decode(line, list[_Record]) or []
            return self._told(records[-1], line, context) if records else None
        kind = type_of(line)
        if kind == b"stream_event":
            return ACTIVE
        if kind == b"user":
            return ACTIVE if b'"tool_result"' in line else None
        if kind == b"assistant" and not any(mark in line for mark in _MARKS):
            return ACTIVE
        if kind not in (b"assistant", b"result", b"rate_limit_event", b"system"):
            return None
        found = decode(line, _Record)
        return self._told(found, line, context) if found is not None else None

    def _told(self, found: _Record, line: bytes, context: Context) -> AgentReport | None:
        session = session_id(found.session_id)
        if found.type == "result":
            return self._result(found, session, context)
        if found.type == "rate_limit_event":
            window = self._window(found.rate_limit_info, context)
            return AgentReport(RETRY, window, session) if window is not None else None
        if found.type == "assistant":
            if not text_of(found.error) and found.is_api_error_message is not True:
                return ACTIVE
            if found.parent_tool_use_id:  # a helper of the agent failed: the agent itself goes on
                return None
            spoken = decode(line, _Spoken)
            parts = spoken.message.content if spoken is not None and spoken.message is not None else []
            text = " ".join(text_of(part.text) for part in parts)
            return AgentReport(ERROR, self._refused(text, 0, text_of(found.error), context), session)
        if found.subtype == "api_retry":
            return AgentReport(RETRY, self._retry(found, context), session)
        return AgentReport(session=session)

    def _result(self, found: _Record, session: str, context: Context) -> AgentReport:
        if found.is_error is not True and found.subtype == "success":
            return AgentReport(GOOD_END.what, None, session)
        errors = found.errors if isinstance(found.errors, list) else []
        text = text_of(found.result) or " ".join(text_of(error) for error in errors) or text_of(found.subtype)
        status = found.api_error_status if isinstance(found.api_error_status, int) else 0
        if found.is_error is not True:  # stopped by a limit that the user set: turns, budget
            return AgentReport(ERROR, self.outcome("local_error", text_of(found.subtype) or "result", text), session)
        return AgentReport(ERROR, self._refused(text, status, "", context), session)

    def _window(self, info: _LimitInfo | None, context: Context) -> Outcome | None:
        if info is None or info.status != "rejected":
            return None
        from fleetgate.signals.provider_vocabulary import family_of_window
        from fleetgate.signals.wait_times import wait_from_epoch

        name = text_of(info.rate_limit_type)
        reset = (
            info.resets_at if isinstance(info.resets_at, int | float) and not isinstance(info.resets_at, bool) else ""
        )
        wait_ms = wait_from_epoch(reset, context.now_wall_ms())
        seen = f"rate_limit_event: {name or 'a limit'} rejected, resets at {reset or 'an unknown time'}"
        family = family_of_window(name, context.model_name)
        return self.outcome("usage_window", "rate_limit_event", seen, family=family, wait_ms=wait_ms)

    def _retry(self, found: _Record, context: Context) -> Outcome:
        status = found.error_status if isinstance(found.error_status, int) else 0
        code = text_of(found.error)
        kind = "overloaded" if status == 529 else _CODES.get(code) or _kind_of(status)
        delay = found.retry_delay_ms
        asked_for = isinstance(delay, int | float) and _own_most_ms(found.attempt) < delay < 10**10
        wait_ms = int(delay) if asked_for else None
        return self.outcome(kind, "api_retry", f"api_retry: {code} {status or ''}", wait_ms=wait_ms)

    # --- its transcripts

    def session_files(self, environ: Mapping[str, str], folder: str, since_wall_ms: int) -> Iterator[str]:
        root = self.own_folder(environ, "CLAUDE_CONFIG_DIR", ".claude")
        place = os.path.join(root, "projects", re.sub(r"[^A-Za-z0-9]", "-", folder))
        yield from (os.path.join(place, name) for name in os.listdir(place) if name.endswith(".jsonl"))

    def kept(self, line: bytes, context: Context) -> AgentReport | None:
        """The answers; `isSidechain` ones are those of its helpers."""
        found = decode(line, _Kept) if b'"assistant"' in line else None
        if found is None or found.type != "assistant" or found.is_sidechain is True:
            return None
        if found.is_api_error_message is not True:
            return ACTIVE
        spoken = decode(line, _Spoken)
        parts = spoken.message.content if spoken is not None and spoken.message is not None else []
        status = found.api_error_status if isinstance(found.api_error_status, int) else 0
        text = " ".join(text_of(part.text) for part in parts)
        told = self._refused(text, status, text_of(found.error), context)
        window = self._window(found.quota_limits, context)
        return AgentReport(
            ERROR, replace(told, wait_ms=window.wait_ms) if window and told.kind == window.kind else told
        )

    # --- its message, in a record or as text

    def _refused(self, text: str, status: int, code: str, context: Context) -> Outcome:
        """The outcome of a message that is known to be an error of a call, or of the run."""
        found = self._by_text(text, context)
        if found is not None:
            return found
        if status >= 400:
            return self.by_status("anthropic", status, text, context)
        return self.outcome(_CODES.get(code, "local_error"), code or "result", text, context)

    def _by_text(self, text: str, context: Context) -> Outcome | None:
        limit = re.split(r"[·∙|]|\bresets\b", text[:200])[0]  # after it, it may advise another family
        named = re.search(_FAMILIES, limit, re.IGNORECASE)
        family = f"claude-{named[1].lower()}-*" if named else ""
        if found := self.by_rules(_RULES, text, context, family):
            return found
        if quoted := re.match(_STATUS, text, re.DOTALL):
            return self._by_quoted_status(int(quoted[1]), quoted[2], text, context)
        return None

    def _by_quoted_status(self, status: int, body: str, text: str, context: Context) -> Outcome:
        found = self.by_status("anthropic", status, body.rstrip(") "), context, seen=text)
        if found.wait_ms is not None or found.kind not in ("rate_limited", "overloaded", "server_error"):
            return found
        from fleetgate.signals.wait_times import find_wait

        return replace(found, wait_ms=find_wait(text, context.now_wall_ms()))  # `Retrying in 2892 seconds`

    def retry_in_text(self, out: list[str], err: list[str], context: Context) -> Outcome | None:
        """`API Error (429 {…}) · Retrying in 3 seconds… (attempt 1/10)`, as the last line of stderr."""
        found = self._by_text(err[-1], context) if err and re.match(_AGAIN, err[-1], re.DOTALL) else None
        own_wait = found is not None and (found.wait_ms or 0) < LONG_MS
        return replace(found, wait_ms=None) if found is not None and own_wait else found

    def last_words(self, end: AgentEnd, context: Context) -> Outcome | None:
        """In text mode the message is the last line, or the only one."""
        for lines in (end.err, end.out):
            if lines and not lines[-1].startswith(("{", "[")) and (found := self._by_text(lines[-1], context)):
                return found
        return None


def _own_most_ms(attempt: object) -> float:
    """Its longest wait before this attempt, unless the provider asks for more: half a second, doubling. Twice that,
    in case it changes."""
    if not isinstance(attempt, int) or not 1 <= attempt <= 15:
        return LONG_MS
    return min(max(1250.0 * (1 << (attempt - 1)), 5000.0), LONG_MS)


def _kind_of(status: int) -> str:
    if status in (401, 403):
        return "auth"
    return "rate_limited" if status == 429 else "server_error" if status >= 500 else "local_error"


AGENT = Claude()
