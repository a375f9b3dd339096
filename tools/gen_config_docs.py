"""Writes docs/config.md from the schema. A test compares the two."""

from __future__ import annotations

from pathlib import Path

from fleetgate.config.schema.cap_keys import HOST_CAP, MODEL_CAP, PLAIN_CAP
from fleetgate.config.schema.keys import SCHEMA
from fleetgate.config.schema.shapes import Array, Key, Map, OneOrMore, Table

INTRO = """\
# Configuration

<!-- Made from src/fleetgate/config/schema by tools/gen_config_docs.py: change that, not this. -->

Fleetgate works without a config file. With one, it is `config.toml` in the platform's config folder
(`~/.config/fleetgate/` on Linux, `~/Library/Application Support/fleetgate/` on macOS), or the file that
`FLEETGATE_CONFIG` names. `fleetgate config path` prints its location, `fleetgate config check FILE` validates one, and
`fleetgate config show` prints every value in force and where it comes from.

If several places set a value, the environment wins, then run-time settings (`fleetgate cap set`), then the file,
then the built-in value. A cap from the environment applies to requests of the process that has it.

A file with an error stops the command with exit 78. All errors are reported together, each with its line, its key, what
was found and what is valid.
"""

EXAMPLE = """\
# Candidates in order of preference, for commands that name no model.
models = ["anthropic/claude-sonnet-4-6", "openai/gpt-5"]

# A request's `since` counts for at most this much before it was queued.
seniority = "10m"

# Days, weeks and months of budgets begin at midnight here.
time_zone = "Europe/Berlin"

# Users whose processes the census (below) counts, besides your own.
census_users = ["ci"]

# Agent processes at the same time.
[agents]
# As many as free memory allows, at most 12. A plain number is a fixed cap: host = 3
host = { cap = "auto", reserve = "6GiB", per_agent = "512MiB", max = 12 }
# How many helpers of its own an agent may run at once.
subagents = 4
# Per project.
project = 6
# Per access key, and for one of them.
key = 4
"key:ci" = 2
# Names with / * or @ are written in quotes. Without an account it is a cap for each account.
"anthropic/claude-opus-*" = { cap = 4, reserve = 1, lendable = true }
"anthropic@work/claude-opus-*" = { cap = 8, name = "work_opus", max_hold = "4h" }

# Model calls in flight at once.
[requests]
umans = { cap = 4, cooldown = "350ms", on_429 = "step", usage_gate = true }
# The limit is learned: at most 50, or more if the provider allows it.
openai = { cap = 50, on_429 = "adapt", explore = true }
# After a refused call this account is served later for half an hour: the limit is tried less often.
"openai@slow" = { cap = 20, refusals = "expensive" }
# No cap: the cooldown is remembered, and applies when a cap is set.
openrouter = { cooldown = "1s" }

# Rates (periods up to 1h) and budgets (longer ones). All that a request needs are checked together.
[budgets]
"anthropic/claude-opus-*" = [
    { calls = 50, per = "1m" },
    { input = 400_000, per = "1m" },
    { output = 80_000, per = "1m" },
]
openai = { tokens = 2_000_000, per = "1m", burst = 500_000, when_empty = "fallback" }
# Each project.
project = { usd = 20, per = "day" }
# This one, which is never exceeded; its running agents are stopped when it is used up.
"project:nightly" = { usd = 5.50, per = "day", when_empty = "stop", estimate = "max" }
# One access key.
"key:ci" = { usd = 10, per = "day" }

# How the windows of a subscription are shared: people come first, and batch work keeps to the pace.
[plans]
anthropic = { reserve = "20%", pace = true, band = "100m", drain = "30m" }

# Two subscriptions as one, and an API key for what does not fit. A conversation keeps its account while it has room.
[accounts]
anthropic = { use = ["work", "spare"], then = ["api"], choose = "most-left", sticky = "conversation", patience = "20s" }

# Dollars per million tokens, instead of the published prices.
[prices]
"anthropic/claude-opus-*" = { input = 15.0, output = 75.0, cache_read = 1.5, cache_write = 18.75 }
# Local models cost nothing; without this, their cost is unknown.
ollama = { input = 0, output = 0 }

# Where a provider is, and where its key is found. Keys themselves never belong in this file.
[providers.umans]
base_url = "https://api.umans.ai/v1"
key_env = "UMANS_API_KEY"
api = "openai"
usage_path = "/usage"
usage_field = "usage.concurrent_sessions"
# The proxy: how long a request may wait, and how long it waits for the provider's next byte.
hold = "5m"
stall = "15m"
# After this long in the queue, a stream begins with comments, so that its client keeps waiting.
comment_after = "30s"
# What its responses report about its rates makes no rates here.
rates = "ignore"

[providers.anthropic]
credential_file = "~/.claude/.credentials.json"
# Where the proxy asks whose login a refreshed token is.
identity_path = "/v1/models"

# Another account of it.
[providers."anthropic@work"]
key_env = "WORK_ANTHROPIC_KEY"

# And one that agents log in to in a folder of its own.
[providers."anthropic@spare"]
env = { CLAUDE_CONFIG_DIR = "~/.claude-spare" }
# The proxy sends calls with this login only for agents of yours that are logged in to another account of the set.
share_login = "agents"

# What the proxy tries instead of a model that is rate-limited or overloaded.
[fallback]
"anthropic/claude-opus-4-6" = ["anthropic/claude-sonnet-4-6"]

# Projects that get more than others, or have a cap of their own.
[projects]
web = { weight = 3, cap = 8 }

# Batch jobs give way to people who wait for a slot.
[preempt]
after = "30s"

# Whose work gives way to whose, where a request does not say it itself.
[classes]
nightly = "batch"
support = "interactive"

# Agents that were started without Fleetgate count too, where their command line matches.
[[census]]
match = 'opencode.*-m (?P<model>\\S+)'

[[census]]
match = 'claude .*--model (?P<model>\\S+)'

# A command put before every agent's own; how long a refused agent may retry; and what happens to agents whose host is
# cut off from the store.
[run]
wrap = ["bwrap", "--dev-bind", "/", "/", "--die-with-parent"]
patience = "5m"
on_cutoff = "end"

# The HTTP service: where it listens, whether changes under /concurrency/ need the token too, the names that it is
# called by, whether the proxy writes an access log, and whether jobs can be submitted.
[serve]
host = "0.0.0.0"
port = 8080
concurrency_token = true
hosts = ["gate.example.org"]
access_log = false
submit = false
local_users = "self"            # the users of this machine that it trusts without the token
tls_cert = "/etc/fleetgate/tls.pem"
tls_key = "/etc/fleetgate/tls.key"

# Users whom a reverse proxy has signed in. It shows a secret, and names the user in a header.
[serve.trust_user_header]
header = "X-Forwarded-User"
from = ["127.0.0.1"]
secret_file = "/etc/fleetgate/proxy-secret"
users = { alice = "admin", bob = "operator" }
role = "viewer"                 # of everyone else

# Jobs: how long finished jobs are kept, and how much output of each.
[jobs]
keep = "3d"
output = "16MiB"

# Where the service sends traces and metrics.
[otel]
endpoint = "http://127.0.0.1:4318"

# Notification targets: a chat whose URL is in the environment, a webhook, and a command.
[[notify]]
name = "team"
url_env = "TEAM_CHAT_URL"
events = ["failed", "login", "auto_reduced"]
per_hour = 10

[[notify]]
url = "https://example.org/hook"

[[notify]]
command = ["notify-send", "Fleetgate"]

# How long events are kept, and how much they may take.
[history]
keep = "30d"
size = "512MiB"

# How long the hourly sums of tokens and cost are kept.
[usage]
keep = "800d"
"""

VALUES = """\
- A **model** is `provider/model` or `provider@account/model`; the account is `default` when it is left out.
- A **selector** is `host` (one pool for each machine), `project` (one for each project) or `project:NAME`, `key` (one
  for each access key) or `key:NAME`, `provider` or `provider/model`, the last two with `@account` and `*` globs.
  Without an account it makes one pool for each account. Requests without an access key are in no pool of `key`.
- The amounts of a **budget** are whole numbers or text like `"400k"` and `"2M"`; dollars have up to 6 decimals and are
  exact.
- A **cap** is a whole number from 1, or a table of the keys below. `host = 3` is short for `host = { cap = 3 }`.
- A **duration** is text like `"350ms"`, `"10m"`, `"1h30m"`, `"24h"` or `"2d"`; a bare number is seconds.
- A **size** is text like `"512MiB"`, `"6GiB"` or `"1.5G"` (the same as GiB; `GB` is 1000 MB); a bare number is bytes.
"""

VARIABLES = {
    "FLEETGATE_HOME": ("The state folder, an absolute path.", "/var/lib/fleetgate"),
    "FLEETGATE_CONFIG": ("The config file.", "~/fleet/fleetgate.toml"),
    "FLEETGATE_STORE": (
        "The store, SQLite or PostgreSQL (docs/postgres.md); by default SQLite in the state folder.",
        "sqlite:///var/lib/fleetgate",
    ),
    "FLEETGATE_AGENTS": ("Caps on agents, by selector.", "host=5,anthropic/claude-opus-*=6"),
    "FLEETGATE_REQUESTS": ("Caps on model calls, by selector.", "umans=4"),
    "FLEETGATE_MODELS": ("Candidates where a command names no model.", "anthropic/claude-sonnet-4-6,openai/gpt-5"),
    "FLEETGATE_PROVIDERS": ("Only these providers may be used.", "anthropic,umans"),
    "FLEETGATE_HOST": ("The name of this host; processes with another name count as another host.", "builder-7"),
    "FLEETGATE_TOKEN": ("The token for changes over HTTP, instead of the one in the state folder.", "…"),
    "FLEETGATE_SERVICE": (
        "A service elsewhere, which commands that read or change the gate ask instead of the store of this machine.",
        "https://gate.example.org",
    ),
    "FLEETGATE_KEY": ("The access key for such a service, or for `fleetgate key --service`.", "…"),
    "FLEETGATE_BYPASS": ("Run without a slot; recorded in the history.", "1"),
    "FLEETGATE_SANDBOX_DISABLED": ("Skip `[run] wrap`.", "1"),
    "AIDEVOPS_OPUS_CONCURRENCY_CAP": ("Replaces every agents cap on claude opus.", "6"),
    "AIDEVOPS_HEADLESS_MODELS": ("As `FLEETGATE_MODELS`, which wins.", "anthropic/claude-sonnet-4-6"),
    "AIDEVOPS_HEADLESS_PROVIDER_ALLOWLIST": ("As `FLEETGATE_PROVIDERS`, which wins.", "anthropic"),
    "AIDEVOPS_HEADLESS_SANDBOX_DISABLED": ("As `FLEETGATE_SANDBOX_DISABLED`, which wins.", "1"),
}


def render() -> str:
    """The whole page."""
    return "\n".join(
        [
            INTRO,
            "## An example with every key\n",
            f"```toml\n{EXAMPLE}```\n",
            "## Values\n",
            VALUES,
            "## Keys\n",
            "At the top of the file:\n",
            _rows([key for key in SCHEMA.keys if not isinstance(key.shape, Table)]),
            *_sections(),
            "## Environment\n",
            "An empty variable is an unset one.\n",
            _variables(),
        ]
    )


def _sections() -> list[str]:
    """A section for each table: caps first, then what the schema has, in its order."""
    sections = [
        _section("`[agents]` and `[requests]`: a cap on models", MODEL_CAP.table),
        _section("`[agents] host`", HOST_CAP.table),
        _section("`[agents] project`, `[requests] host` and `[requests] project`", PLAIN_CAP.table),
    ]
    for key in SCHEMA.keys:
        shape = key.shape
        if isinstance(shape, Map) and isinstance(shape.value, OneOrMore):
            sections.append(_section(f"`[{key.name}]`: {shape.value.table.what}", shape.value.table))
        elif isinstance(shape, Map) and isinstance(shape.value, Table):
            sections.append(_section(f"`[{key.name}.{shape.placeholder}]`", shape.value))
        elif isinstance(shape, Array) and isinstance(shape.item, Table):
            sections.append(_section(f"`[[{key.name}]]`", shape.item))
        elif isinstance(shape, Table):
            sections.append(_section(f"`[{key.name}]`", shape))
            inner = [(each.name, each.shape) for each in shape.keys]
            sections += [_section(f"`[{key.name}.{name}]`", of) for name, of in inner if isinstance(of, Table)]
    return sections


def _section(title: str, table: Table) -> str:
    return f"### {title}\n\n{_rows(list(table.keys))}"


def _rows(keys: list[Key]) -> str:
    rows = ["| key | value | default | meaning | example |", "| --- | --- | --- | --- | --- |"]
    for key in keys:
        default = "required" if key.required else key.default or "none"
        cells = [f"`{key.name}`", key.shape.what, default, key.doc, f"`{key.example}`"]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _variables() -> str:
    rows = ["| variable | meaning | example |", "| --- | --- | --- |"]
    rows += [f"| `{name}` | {doc} | `{example}` |" for name, (doc, example) in VARIABLES.items()]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    page = Path(__file__).parent.parent / "docs" / "config.md"
    page.write_text(render(), encoding="utf-8")
