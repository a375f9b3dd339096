"""The one definition of every key of config.toml. Reading, the page docs/config.md and the sentence about an
unknown key are all made from it; a key that is not here does not exist.

Defaults are not repeated: they are taken from Settings and from the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from msgspec import Struct, field

from fleetgate.config import value_types as v
from fleetgate.config.errors import BadValue
from fleetgate.config.settings import TOLD, TOLD_BY_DEFAULT, HostAuto, JobSettings, Notify, Provider, Settings
from fleetgate.config.units import format_duration, format_size, parse_duration_ms, parse_size
from fleetgate.core.model_names import KINDS, shown
from fleetgate.core.pools.effective_caps import BUILT_IN, COOLDOWN_MS, MAX_HOLD_MS, ON_429


class Scalar(Struct, frozen=True):
    """One value. `read` returns it in Fleetgate's unit or raises BadValue or BadName."""

    what: str
    read: Callable[[object], Any]


class Array(Struct, frozen=True):
    """Values of one shape."""

    what: str
    item: Shape


class Table(Struct, frozen=True):
    """Named keys."""

    what: str
    keys: tuple[Key, ...]


class Short(Struct, frozen=True):
    """A table that may be shortened to the value of its key `key`: `host = 3` for `host = { cap = 3 }`."""

    what: str
    key: str
    table: Table


class Map(Struct, frozen=True):
    """A table whose keys the user names. `special` names have another shape than the rest."""

    what: str
    placeholder: str
    read_name: Callable[[str], str]
    value: Shape
    special: dict[str, Shape] = field(default_factory=dict)


Shape = Scalar | Array | Table | Short | Map


class Key(Struct, frozen=True):
    """One key: its doc is a sentence, its example TOML, its default as the page shows it ("" is none)."""

    name: str
    shape: Shape
    doc: str
    example: str
    default: str = ""
    required: bool = False
    tried: tuple[str, ...] = ()  # other names that people try


def read_cap_selector(text: str, providers: Collection[str] = ()) -> str:
    """A selector, where an option that has slipped out of its table is no provider: see `read_selector`."""
    if text in CAP_OPTIONS:
        raise BadValue(f"{shown(text)} is an option of a cap, not a selector: write SELECTOR = {{ {text} = … }}")
    return v.read_selector(text, providers)


def _by_kind(defaults: dict[str, str]) -> str:
    if len(defaults) == 1:
        return next(iter(defaults.values()))
    return "; ".join(f"{default} in `[{kind}]`" for kind, default in defaults.items())


def _built_in(kind: str) -> str:
    return ", ".join(f'`"{rule.selector}" = {rule.cap}`' for rule in BUILT_IN if rule.kind == kind)


_DURATION = Scalar("duration", parse_duration_ms)
_SOME_SIZE = Scalar("size", v.read_some_size)

_CAP = Key(
    "cap",
    Scalar("whole number from 1", v.read_cap),
    "The maximum number of slots in use.",
    "4",
    tried=("limit", "slots", "concurrency", "max_concurrency"),
)
_HOST_CAP = Key(
    "cap",
    Scalar('whole number from 1, or "auto"', v.read_host_cap),
    'The maximum number of agents on one machine, or `"auto"`: as many as free memory allows.',
    '"auto"',
    tried=("limit", "slots", "concurrency", "max_concurrency"),
)


def _common(*kinds: str, family: bool = False) -> tuple[Key, ...]:
    """The options of every cap, with the defaults of the kinds that it is for."""
    return (
        Key(
            "cooldown",
            _DURATION,
            "How long a released slot still counts as used. "
            'With `on_429 = "adapt"` it is learned unless you set it here. '
            "Without `cap` it is remembered, and applies once you set a cap.",
            '"350ms"',
            _by_kind({kind: format_duration(COOLDOWN_MS[kind]) for kind in kinds}),
        ),
        Key(
            "max_hold",
            _DURATION,
            "How long a slot may be held before it is reclaimed; `0` means no limit.",
            '"2h"',
            _by_kind({kind: format_duration(MAX_HOLD_MS[kind]) if MAX_HOLD_MS[kind] else "no limit" for kind in kinds}),
            tried=("timeout", "ttl"),
        ),
        Key(
            "name",
            Scalar("name", v.read_cap_name),
            "The name in the reason when this cap is reached: `NAME_concurrency_cap`.",
            '"opus"',
            "the claude family's (`opus`, `sonnet` or `haiku`), else none" if family else "",
        ),
    )


_FOR_MODELS = (
    Key(
        "on_429",
        Scalar('"adapt", "step", "pause" or "fixed"', v.read_on_429),
        'What a rate limit does. `"adapt"` (only in `[requests]`): it pauses the pool briefly, and Fleetgate finds and '
        'follows the limit, up to the cap. `"step"`: it pauses the pool and lowers its limit by 1 until a person '
        'sets the cap again. `"pause"`: it only pauses the pool. `"fixed"`: nothing.',
        '"step"',
        _by_kind({kind: f'`"{rule}"`' for kind, rule in ON_429.items()}),
    ),
    Key(
        "explore",
        Scalar("true or false", v.read_flag),
        'With `on_429 = "adapt"`: whether the limit may grow above the cap, one proven call at a time.',
        "true",
        "false",
    ),
    Key(
        "usage_gate",
        Scalar("true or false", v.read_flag),
        "Ask the provider for its own count before a waiting request starts.",
        "true",
        "false",
    ),
)
_FOR_HOST = (
    Key(
        "reserve",
        Scalar("size", parse_size),
        'With `cap = "auto"`: the memory that is left free for other programs.',
        '"6GiB"',
        format_size(HostAuto().reserve_bytes),
    ),
    Key(
        "per_agent",
        _SOME_SIZE,
        'With `cap = "auto"`: the memory that one agent is expected to need.',
        '"512MiB"',
        format_size(HostAuto().per_agent_bytes),
    ),
    Key(
        "max",
        Scalar("whole number from 1", v.read_cap),
        'With `cap = "auto"`: the most agents, however much memory is free.',
        "8",
        str(HostAuto().max),
    ),
)

_MODEL_KEYS = (_CAP, *_common(*KINDS, family=True), *_FOR_MODELS)
_PLAIN_KEYS = (_CAP, *_common(*KINDS))
_HOST_KEYS = (_HOST_CAP, *_common("agents"), *_FOR_HOST)
CAP_OPTIONS = frozenset(key.name for key in _MODEL_KEYS + _HOST_KEYS)

MODEL_CAP = Short("cap", "cap", Table("a cap on models", _MODEL_KEYS))
PLAIN_CAP = Short("cap", "cap", Table("a cap on `host` or `project`", _PLAIN_KEYS))
HOST_CAP = Short("cap", "cap", Table("the cap on agents of one machine", _HOST_KEYS))

PROVIDER = Table(
    "a provider",
    (
        Key(
            "base_url",
            Scalar("URL", v.read_base_url),
            "Where the provider's API is. Needed for `usage_path`.",
            '"https://api.umans.ai/v1"',
        ),
        Key(
            "key_env",
            Scalar("name of an environment variable", v.read_key_env),
            "The variable that holds the API key. The key itself never belongs in this file.",
            '"UMANS_API_KEY"',
            tried=("api_key", "apikey", "key", "token", "secret"),
        ),
        Key(
            "credential_file",
            Scalar("path", v.read_credential_file),
            "The file that holds the credential, absolute or below `~/`; instead of `key_env`.",
            '"~/.local/share/opencode/auth.json"',
        ),
        Key(
            "api",
            Scalar('"openai", "anthropic" or "gemini"', v.read_api),
            "The API that the provider speaks.",
            '"openai"',
            'the provider\'s name where it is one of them, `"gemini"` for `google`, else `"openai"`',
        ),
        Key(
            "usage_path",
            Scalar("path of a URL", v.read_usage_path),
            "Where the provider reports its usage: `GET base_url + usage_path`. Goes with `usage_field`.",
            '"/usage"',
        ),
        Key(
            "usage_field",
            Scalar("names joined by dots", v.read_usage_field),
            "Where in the answer the number of calls in flight is. Goes with `usage_path`.",
            '"usage.concurrent_sessions"',
        ),
        Key(
            "hold",
            _DURATION,
            "How long the proxy lets a request wait in the queue, or for a rate limit to end, before it answers 429.",
            '"10m"',
            format_duration(Provider().hold_ms),
        ),
        Key(
            "stall",
            Scalar("duration", v.read_some_duration_ms),
            "How long the proxy waits for the provider's next byte, or for a client to take one, before it gives up.",
            '"15m"',
            format_duration(Provider().stall_ms),
        ),
        Key(
            "comment_after",
            _DURATION,
            "After how long in the queue a stream through the proxy begins with comments, so that its client waits on.",
            '"30s"',
            "never",
        ),
    ),
)

SCHEMA = Table(
    "the file",
    (
        Key(
            "models",
            Array("array of models", Scalar("model", v.read_model)),
            "Candidates in order of preference, where an agent's command names no model; other commands take none.",
            '["anthropic/claude-sonnet-4-6", "openai/gpt-5"]',
            "none",
        ),
        Key(
            "seniority",
            _DURATION,
            "How much older than its queueing a request may count in the queue by its `since`.",
            '"10m"',
            "without limit",
        ),
        Key(
            "agents",
            Map("table of caps", "SELECTOR", read_cap_selector, MODEL_CAP, {"host": HOST_CAP, "project": PLAIN_CAP}),
            "Caps on agent processes, by selector.",
            '{ host = 3, "anthropic/claude-opus-*" = 4 }',
            f"{_built_in('agents')}, each only where no selector of yours matches",
        ),
        Key(
            "requests",
            Map("table of caps", "SELECTOR", read_cap_selector, MODEL_CAP, {"host": PLAIN_CAP, "project": PLAIN_CAP}),
            "Caps on model calls in flight, by selector.",
            '{ umans = { cap = 4, cooldown = "350ms" } }',
            "nothing is capped",
        ),
        Key(
            "providers",
            Map("table of providers", "NAME", v.read_provider_name, PROVIDER),
            "Where providers are and where their keys are found: those of the default account. "
            'Another account has a table of its own: `[providers."NAME@ACCOUNT"]`. '
            "Other names that agents use mean the same provider: `gemini` is `google`, `amazon-bedrock` is `bedrock`, "
            "`azure-openai` is `azure`.",
            '{ umans = { base_url = "https://api.umans.ai/v1", key_env = "UMANS_API_KEY" } }',
            "none",
        ),
        Key(
            "fallback",
            Map(
                "table of models",
                "MODEL",
                v.read_model,
                Array("array of models", Scalar("model", v.read_model)),
            ),
            "What the proxy tries instead of a model that is rate-limited or overloaded, in this order. "
            "Another provider must speak the same API, and have its `key_env`.",
            '{ "anthropic/claude-opus-4-6" = ["anthropic/claude-sonnet-4-6"] }',
            "none",
        ),
        Key(
            "census",
            Array(
                "array of tables",
                Table(
                    "a pattern of the census",
                    (
                        Key(
                            "match",
                            Scalar("regular expression", v.read_pattern),
                            "Matches the command line of agents started without Fleetgate. "
                            "They count in `host`, and in their model's pools when a group is named `model`.",
                            r"'opencode.*-m (?P<model>\S+)'",
                            required=True,
                        ),
                    ),
                ),
            ),
            "How to see agents that were started without Fleetgate, so that they count too.",
            r"[{ match = 'opencode.*-m (?P<model>\S+)' }]",
            "none",
        ),
        Key(
            "census_users",
            Array("array of names", Scalar("user", v.read_user)),
            "Whose processes the census looks at, besides the gate's own users: yours and the state folder's owner, "
            'or everyone in the group that the folder is writable for. `["*"]` is every user of the machine.',
            '["ci", "alice"]',
            "the gate's own users",
        ),
        Key(
            "run",
            Table(
                "`fleetgate run`",
                (
                    Key(
                        "wrap",
                        Array("array of text", Scalar("text", v.read_argument)),
                        "A command put before every agent's own, for example a sandbox. "
                        "`FLEETGATE_SANDBOX_DISABLED=1` skips it.",
                        '["bwrap", "--dev-bind", "/", "/"]',
                        "none",
                    ),
                    Key(
                        "patience",
                        _DURATION,
                        "How long an agent that hit a rate limit may retry without progress before it is stopped. "
                        "`0`: it is stopped at its first refusal.",
                        '"5m"',
                        format_duration(Settings().patience_ms),
                    ),
                    Key(
                        "on_cutoff",
                        Scalar('"keep" or "end"', v.read_on_cutoff),
                        "What happens to an agent whose host cannot reach a PostgreSQL store for 30 s. `keep`: it "
                        "continues, although its slot may go to another after 45 s. `end`: it is stopped first.",
                        '"end"',
                        '"keep"',
                    ),
                ),
            ),
            "How agents are run.",
            '{ wrap = ["bwrap", "--dev-bind", "/", "/"] }',
        ),
        Key(
            "serve",
            Table(
                "`fleetgate serve`",
                (
                    Key(
                        "concurrency_token",
                        Scalar("true or false", v.read_flag),
                        "Whether changes under `/concurrency/` need the token, even on loopback.",
                        "true",
                        "false",
                    ),
                    Key(
                        "hosts",
                        Array("array of names", Scalar("host name", v.read_host_name)),
                        "Names by which the service may be called, besides `localhost` and its addresses. "
                        "A request for another name is refused.",
                        '["gate.example.org"]',
                        "none",
                    ),
                    Key(
                        "access_log",
                        Scalar("true or false", v.read_flag),
                        "Whether the proxy writes a line of JSON for each request to `access.log` in the state folder.",
                        "true",
                        "true",
                    ),
                    Key(
                        "submit",
                        Scalar("true or false", v.read_flag),
                        "Whether jobs can be submitted over HTTP, with the token. A client that can submit a job "
                        "can run any command as the service's user.",
                        "false",
                        "only on loopback",
                    ),
                    Key(
                        "local_users",
                        Scalar('"self", "group" or "all"', v.read_local_users),
                        "Which users of this machine the service trusts on loopback without the token, to read and to "
                        'use the keys of this file through the proxy. `"self"`: its own user and root. `"group"`: also '
                        'the members of the group that shares the state folder. `"all"`: every user.',
                        '"group"',
                        '"self"',
                    ),
                ),
            ),
            "The HTTP service.",
            "{ concurrency_token = true }",
        ),
        Key(
            "jobs",
            Table(
                "jobs",
                (
                    Key(
                        "keep",
                        Scalar("duration", v.read_some_duration_ms),
                        "How long a finished job and its output are kept.",
                        '"7d"',
                        format_duration(JobSettings().keep_ms),
                    ),
                    Key(
                        "output",
                        _SOME_SIZE,
                        "How much output of one job is kept; the oldest part is dropped.",
                        '"64MiB"',
                        format_size(JobSettings().output_bytes),
                    ),
                ),
            ),
            "How long jobs and their output are kept.",
            '{ keep = "7d" }',
        ),
        Key(
            "notify",
            Array(
                "array of tables",
                Table(
                    "a notification target",
                    (
                        Key(
                            "name",
                            Scalar("name", v.read_target_name),
                            "What `fleetgate notify` calls it.",
                            '"team"',
                            "its number in the file",
                        ),
                        Key(
                            "url",
                            Scalar("URL", v.read_target_url),
                            "Where to send messages: `https://…` is a webhook that gets JSON; other schemes are those "
                            "of Apprise (Telegram, Slack, mail…), with the extra `notify`. Never shown or logged.",
                            '"tgram://…"',
                        ),
                        Key(
                            "url_env",
                            Scalar("name of an environment variable", v.read_key_env),
                            "The variable that holds the URL, instead of `url`.",
                            '"TEAM_CHAT_URL"',
                        ),
                        Key(
                            "command",
                            Array("array of text", Scalar("text", v.read_argument)),
                            "A command to run for each message instead, with the message as JSON on its stdin.",
                            '["notify-send", "Fleetgate"]',
                        ),
                        Key(
                            "events",
                            Array("array of events", Scalar("event", v.read_told)),
                            f"Which events to send: any of {', '.join(f'`{name}`' for name in TOLD)}.",
                            '["failed", "login"]',
                            ", ".join(f"`{name}`" for name in TOLD_BY_DEFAULT),
                        ),
                        Key(
                            "per_hour",
                            Scalar("whole number from 1", v.read_cap),
                            "The maximum number of messages per hour; further ones are summed up in one.",
                            "20",
                            str(Notify().per_hour),
                        ),
                    ),
                ),
            ),
            "Notification targets. `fleetgate worker` and `fleetgate notify run` send the messages.",
            '[{ url_env = "TEAM_CHAT_URL" }]',
            "none",
        ),
        Key(
            "history",
            Table(
                "the history",
                (
                    Key(
                        "keep",
                        Scalar("duration", v.read_some_duration_ms),
                        "How long events are kept.",
                        '"30d"',
                        format_duration(Settings().keep_ms),
                    ),
                    Key(
                        "size",
                        _SOME_SIZE,
                        "About how much space they may take; beyond it the oldest are dropped, however young.",
                        '"256MiB"',
                        format_size(Settings().keep_bytes),
                    ),
                ),
            ),
            "How long events are kept.",
            '{ keep = "30d" }',
        ),
    ),
)
