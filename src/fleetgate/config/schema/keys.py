"""The one definition of every key of config.toml. Reading, the page docs/config.md and the sentence about an
unknown key are all made from it; a key that is not here does not exist.

Defaults are not repeated: they are taken from Settings and from the engine.
"""

from __future__ import annotations

from fleetgate.config import value_types as v
from fleetgate.config.schema.account_keys import ACCOUNTS, ACCOUNTS_DOC, ACCOUNTS_EXAMPLE
from fleetgate.config.schema.budget_keys import BUDGETS, PRICE, read_budget_selector, read_price_selector
from fleetgate.config.schema.cap_keys import (
    AGENT_CAPS,
    CALL_CAPS,
    MODEL_CAP,
    built_in_caps,
    read_agents_selector,
    read_cap_selector,
)
from fleetgate.config.schema.notify_keys import TARGET
from fleetgate.config.schema.plan_keys import PLAN, PREEMPT, PREEMPT_DOC, PROJECTS, PROJECTS_DOC
from fleetgate.config.schema.provider_keys import PROVIDER
from fleetgate.config.schema.serve_keys import SERVE
from fleetgate.config.schema.shapes import Array, Key, Map, Scalar, Table
from fleetgate.config.settings import JobSettings, Settings
from fleetgate.config.units import format_duration, format_size, parse_duration_ms

_DURATION = Scalar("duration", parse_duration_ms)
_SOME_SIZE = Scalar("size", v.read_some_size)

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
            Map("table of caps", "SELECTOR", read_agents_selector, MODEL_CAP, AGENT_CAPS),
            "Caps on agent processes, by selector. `subagents` is something else: how many helpers of its own an agent "
            "may run at once, which Claude Code and Codex are told when they are started.",
            '{ host = 3, "anthropic/claude-opus-*" = 4 }',
            f"{built_in_caps('agents')}, each only where no selector of yours matches",
        ),
        Key(
            "requests",
            Map("table of caps", "SELECTOR", read_cap_selector, MODEL_CAP, CALL_CAPS),
            "Caps on model calls in flight, by selector. `session` is each session of an agent, with its helpers.",
            '{ umans = { cap = 4, cooldown = "350ms" } }',
            "nothing is capped",
        ),
        Key(
            "budgets",
            Map("table of budgets", "SELECTOR", read_budget_selector, BUDGETS),
            "Rates and budgets, by selector: how many calls, tokens or dollars may be used per period.",
            '{ openai = { tokens = 2_000_000, per = "1m" }, project = { usd = 20, per = "day" } }',
            "none, except the rates that providers report",
        ),
        Key(
            "plans",
            Map("table of plans", "PROVIDER", v.read_provider_name, PLAN),
            "How the windows of a subscription (5 hours, a week) are shared between the classes of work, for each "
            "account of a provider or for one (`PROVIDER@ACCOUNT`). Without a table, windows hold nothing back.",
            '{ anthropic = { reserve = "20%", pace = true, drain = "30m" } }',
            "none",
        ),
        Key("accounts", ACCOUNTS, ACCOUNTS_DOC, ACCOUNTS_EXAMPLE, "each account is used only where it is named"),
        Key(
            "time_zone",
            Scalar("name of a time zone", v.read_time_zone),
            "The zone in which days, weeks and months of budgets begin.",
            '"Europe/Berlin"',
            "that of the machine whose file is in force",
            tried=("timezone", "tz"),
        ),
        Key(
            "prices",
            Map("table of prices", "SELECTOR", read_price_selector, PRICE),
            "What models cost, by selector, in dollars per million tokens. It overrides the prices of `genai-prices` "
            "(the extra `prices`). A model without a price has an unknown cost.",
            '{ "ollama" = { input = 0, output = 0 } }',
            "those of `genai-prices`",
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
        Key("projects", PROJECTS, PROJECTS_DOC, "{ web = { weight = 3, cap = 8 } }", "all projects are equal"),
        Key("preempt", PREEMPT, PREEMPT_DOC, '{ after = "30s" }', "no job gives way"),
        Key(
            "classes",
            Map(
                "table of classes",
                "PROJECT",
                v.read_project_name,
                Scalar('"interactive", "normal" or "batch"', v.read_class),
            ),
            "The class of a project's requests, where they do not say it themselves: which work gives way to which.",
            '{ nightly = "batch", support = "interactive" }',
            "jobs are batch, runs on a terminal are interactive, everything else is normal",
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
        SERVE,
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
            "otel",
            Table(
                "OpenTelemetry",
                (
                    Key(
                        "endpoint",
                        Scalar("URL", v.read_base_url),
                        "Where `fleetgate serve` sends traces and metrics of runs and proxied calls, as OTLP over "
                        "HTTP. Needs the extra `otel`. Headers for it come from `OTEL_EXPORTER_OTLP_HEADERS`.",
                        '"http://127.0.0.1:4318"',
                        "none",
                    ),
                ),
            ),
            "Traces and metrics for OpenTelemetry.",
            '{ endpoint = "http://127.0.0.1:4318" }',
        ),
        Key(
            "notify",
            Array(
                "array of tables",
                TARGET,
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
        Key(
            "usage",
            Table(
                "the sums of usage",
                (
                    Key(
                        "keep",
                        Scalar("duration", v.read_some_duration_ms),
                        "How long the hourly sums of tokens and cost are kept.",
                        '"400d"',
                        format_duration(Settings().usage_keep_ms),
                    ),
                ),
            ),
            "How long usage is kept (`fleetgate usage`).",
            '{ keep = "400d" }',
        ),
    ),
)
