"""Codex: `codex exec --json …`.

`error` and `turn.failed` are its error records; an `error` that starts with "Reconnecting" is a call being made again.
An `item` of type `error` is a warning, and no activity. In text mode the answer goes to stdout and everything else,
tool output included, to stderr, where the last thing it says is `ERROR: …`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from fleetgate.signals.agents.agent import (
    ACTIVE,
    ERROR,
    GOOD_END,
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
from fleetgate.signals.agents.model_aliases import named
from fleetgate.signals.agents.settings_files import as_table, looked_up, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetgate.core.model_names import Model
    from fleetgate.signals.agents.agent import Rule
    from fleetgate.signals.outcome import Outcome

_WITH_VALUE = frozenset(
    (
        *("-c", "--config", "--enable", "--disable", "-m", "--model", "--local-provider", "-p", "--profile"),
        *("-i", "--image", "-s", "--sandbox", "-a", "--ask-for-approval", "-C", "--cd", "--add-dir"),
        *("--output-schema", "--color", "-o", "--output-last-message"),
    )
)
_THREADS = ("max_threads", "max_concurrent_threads_per_session")  # how many helpers, in `[agents]`
_SUBCOMMANDS = frozenset(("resume", "review", "fork", "help"))

_LOCAL = "gpt-oss:20b"  # what `--oss` uses where no model is named
PROXY = "fleetgate"  # how the proxy is named to it: see cli/run/proxy_environment.py

_DAYS = 3
_START_BYTES = 4096

_BROKEN_OFF = r"(?:stream disconnected before completion: )?"
_RULES: tuple[Rule, ...] = (
    ("quota", "quota_exceeded", r"Quota exceeded\. Check your plan and billing"),
    ("quota", "credits", r"Your workspace is out of credits|You(?:'re| are) out of credits"),
    ("quota", "spend_cap", r"You(?:'ve)? hit your spend cap"),
    ("quota", "not_included", r"To use Codex with your ChatGPT plan, upgrade"),
    ("usage_window", "usage_limit", r"You've (?:hit|reached) your usage limit"),
    ("overloaded", "capacity", r"Selected model is at capacity"),
    ("overloaded", "high_demand", rf"{_BROKEN_OFF}We're currently experiencing high demand"),
    ("rate_limited", "rate_limit", rf"{_BROKEN_OFF}(?:rate limit exceeded|Rate limit reached)\b"),
    ("rate_limited", "try_again", r"(?:.{0,200}\bPlease )?try again in [0-9.]+ ?m?s\b"),
    ("auth", "refresh", r"Your access token could not be refreshed"),
    ("auth", "expired", r"Your (?:authentication|session) (?:token )?(?:has )?expired"),
)
_STATUS = r"(?:exceeded retry limit, last status|unexpected status):? ([45][0-9]{2})\b ?[A-Za-z -]{0,40}(?:: (.*))?"
_NAMED = r"You've hit your usage limit for (.{1,60}?)\. Switch to another model"
_RECONNECTING = r"Reconnecting\.\.\. [0-9]+/[0-9]+(?: \((.*)\))?"
_RETRYING = r"(?:stream error: )?(.*); retrying [0-9]+/[0-9]+ in [0-9.]+ ?m?s\b"  # of older versions


class _Failure(Struct):
    message: Any = None


class _Record(Struct):
    thread_id: Any = None
    message: Any = None
    error: _Failure | None = None


class _Payload(Struct):
    type: Any = None
    role: Any = None
    message: Any = None
    error: _Failure | None = None


class _Kept(Struct):
    """A record of a rollout."""

    type: str = ""
    payload: _Payload | None = None


class Codex(Agent):
    name = "codex"
    says_done = True
    model_flags = ("-m", "--model")
    provider = "openai"
    tells_retries_in_text = True
    version_flags = ("--version", "-V")
    managing_commands = frozenset(
        (
            *("apply", "a", "archive", "completion", "debug", "delete", "doctor", "features", "help", "login"),
            *("logout", "mcp", "migrate-nfs-db", "migrate-rollouts", "plugin", "sandbox", "unarchive", "update"),
        )
    )
    stale = (r"Error: .*\b(?:no rollout found for thread id|no thread with id)\b",)

    def said_model(self, args: Sequence[str], environ: Mapping[str, str]) -> str | None:
        return super().said_model(args, environ) or self._set(args, "model")

    def kept_model(self, args: Sequence[str], environ: Mapping[str, str], folder: str) -> str | None:
        """By the profile, in a file of its own or, of older versions, in config.toml; then by config.toml."""
        if "--oss" in args:
            return _LOCAL
        kept = [*self._kept(args, environ)]
        return next((found for table in kept if (found := looked_up(table, "model"))), None)

    def model_named(self, said: str, args: Sequence[str], environ: Mapping[str, str]) -> str:
        provider = self._provider(args, environ)
        return named(said, "openai") if provider == "openai" else named(f"{provider}/{said}")

    def with_model(self, args: Sequence[str], model: Model, environ: Mapping[str, str]) -> list[str] | None:
        """By its flag; otherwise by its config, which goes before any subcommand."""
        if model.provider != self._provider(args, environ):
            return None
        if self.option(args, *self.model_flags) is not None:
            return super().with_model(args, model, environ)
        return ["-c", f'model="{model.name}"', *args]

    def _provider(self, args: Sequence[str], environ: Mapping[str, str]) -> str:
        if "--oss" in args:
            return self.option(args, "--local-provider") or "ollama"
        found = self._set(args, "model_provider")
        if not found:
            kept = (looked_up(table, "model_provider") for table in self._kept(args, environ))
            found = next((told for told in kept if told), "")
        return found if found and found != PROXY else "openai"

    def _set(self, args: Sequence[str], key: str) -> str | None:
        """The last value that `-c KEY=VALUE` gives; VALUE is TOML, or text without quotes."""
        found = None
        for index, word in enumerate(args):
            if word == "--":
                break
            name, equals, pair = word.partition("=")
            if not equals:
                pair = args[index + 1] if index + 1 < len(args) else ""
            if name not in ("-c", "--config"):
                continue
            set_key, equals, value = pair.partition("=")
            if equals and set_key.strip() == key:
                found = value.strip().strip("\"'")
        return found

    def _kept(self, args: Sequence[str], environ: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        root = self.own_folder(environ, "CODEX_HOME", ".codex")
        if not root:
            return
        config = as_table(read_text(f"{root}/config.toml"))
        profile = self.option(args, "-p", "--profile") or looked_up(config, "profile")
        if profile and "/" not in profile:
            yield as_table(read_text(f"{root}/{profile}.config.toml"))
            profiles = config.get("profiles")
            named_so = profiles.get(profile) if isinstance(profiles, dict) else None
            yield named_so if isinstance(named_so, dict) else {}
        yield config

    def with_subagents(self, args: Sequence[str], environ: Mapping[str, str], most: int) -> list[str]:
        """By its config, which goes before any subcommand. The older of its two names is known to all versions."""
        kept = [table.get("agents") for table in self._kept(args, environ)]
        said = any(self._set(args, f"agents.{name}") for name in _THREADS)
        said = said or any(name in table for table in kept if isinstance(table, dict) for name in _THREADS)
        return list(args) if said else ["-c", f"agents.{_THREADS[0]}={most}", *args]

    def mode(self, args: Sequence[str]) -> str:
        running = any(word in ("exec", "e") for word in args)
        return "stream" if running and ("--json" in args or "--experimental-json" in args) else ""

    def resumes_in(self, args: Sequence[str]) -> bool:
        return "resume" in args or "fork" in args

    def resumed(self, args: Sequence[str], session: str) -> list[str] | None:
        """`codex exec [options] resume ID [prompt]`: the options before it are those of `exec`."""
        if "exec" not in args:
            return None
        at = list(args).index("exec") + 1
        while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "--"):
            at += 2 if args[at] in _WITH_VALUE else 1
        if at < len(args) and args[at] in _SUBCOMMANDS:
            return None
        return [*args[:at], "resume", session, *args[at:]]

    # --- records

    def record(self, line: bytes, context: Context) -> AgentReport | None:
        kind = type_of(line)
        if kind.startswith(b"item."):
            return AgentReport() if b'"type":"error"' in line[:200] else ACTIVE
        if kind == b"turn.completed":
            return GOOD_END
        if kind not in (b"thread.started", b"error", b"turn.failed"):
            return AgentReport() if kind else None
        found = decode(line, _Record) or _Record()
        if kind == b"thread.started":
            return AgentReport(session=session_id(found.thread_id))
        message = text_of(found.error.message if found.error is not None else found.message)
        if again := _tried_again(message):
            return AgentReport(RETRY, self._judge(again[1] or "", context) or self._local(message))
        return AgentReport(ERROR, self._judge(message, context) or self._local(message))

    def _local(self, message: str) -> Outcome:
        return self.outcome("local_error", "error", message)

    # --- its rollouts

    def session_files(self, environ: Mapping[str, str], folder: str, since_wall_ms: int) -> Iterator[str]:
        """In a folder for each day, by the local date; the first record of each names the working directory."""
        from datetime import UTC, datetime, timedelta

        from fleetgate.signals.redaction import readable

        root = self.own_folder(environ, "CODEX_HOME", ".codex")
        since = datetime.fromtimestamp(since_wall_ms / 1000, UTC).astimezone()
        here = b'"cwd":' + msgspec.json.encode(readable(folder)) + b","
        for later in range(_DAYS):
            place = os.path.join(root, "sessions", f"{since + timedelta(days=later):%Y/%m/%d}")
            names = os.listdir(place) if os.path.isdir(place) else []
            paths = (os.path.join(place, name) for name in names if name.endswith(".jsonl"))
            yield from (path for path in paths if here in _start_of(path))

    def kept(self, line: bytes, context: Context) -> AgentReport | None:
        found = decode(line, _Kept)
        if found is None or found.payload is None:
            return None
        payload = found.payload
        if found.type == "response_item":
            return None if payload.role == "user" or payload.role == "developer" else ACTIVE
        if found.type != "event_msg" or payload.type not in ("task_complete", "error"):
            return None
        message = text_of(payload.error.message if payload.error is not None else payload.message)
        if payload.type == "task_complete" and payload.error is None:
            return None  # also after an `error`
        return AgentReport(ERROR, self._judge(message, context) or self._local(message))

    # --- its message, in a record or as text

    def _judge(self, message: str, context: Context) -> Outcome | None:
        plain = message.replace("’", "'").strip()
        if found := self.by_rules(_RULES, message, context, _family(plain)):
            return found
        if quoted := re.match(_STATUS, plain, re.DOTALL):
            return self.by_status("openai", int(quoted[1]), quoted[2] or "", context, seen=message)
        if plain.startswith("Access blocked by Cloudflare"):
            return self.outcome("server_error", "cloudflare", message)
        return None

    def retry_in_text(self, out: list[str], err: list[str], context: Context) -> Outcome | None:
        """The same messages, as the last line of stderr."""
        again = _tried_again(err[-1].removeprefix("ERROR: ")) if err else None
        return self._judge(again[1] or "", context) if again else None

    def last_words(self, end: AgentEnd, context: Context) -> Outcome | None:
        """`ERROR: …` as the last line of stderr. One that is followed by anything was printed by a tool."""
        lines = end.err[:-2] if end.err[-2:-1] == ["tokens used"] else end.err
        if end.exit_code is None or not lines:
            return None
        start, colon, message = lines[-1].partition("ERROR: ")
        return self._judge(message, context) if colon and not start else None

    def session_in(self, start: str) -> str:
        """Before the prompt, it prints a table about the run."""
        found = re.search(r"\nsession id: ([\w-]{1,128})\n", start.partition("\nuser\n")[0])
        return session_id(found[1]) if found else ""


def _tried_again(message: str) -> re.Match[str] | None:
    """A message about a call that is being made again, with why it was refused."""
    return re.match(_RECONNECTING, message, re.DOTALL) or re.match(_RETRYING, message, re.DOTALL)


def _start_of(path: str) -> bytes:
    if os.path.islink(path) or not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read(_START_BYTES)


def _family(message: str) -> str:
    """The models of a limit with a name: `GPT-5.3-Codex-Spark` is `gpt-5.3-codex-spark`."""
    named = re.match(_NAMED, message)
    return re.sub(r"[^a-z0-9._-]+", "-", named[1].lower()).strip("-") if named else ""


AGENT = Codex()
