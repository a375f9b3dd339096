"""The keys of a provider's table in config.toml: where it is, where its credential is, and how the proxy treats it."""

from __future__ import annotations

from fleetgate.config import value_types as v
from fleetgate.config.errors import BadValue
from fleetgate.config.schema.shapes import Key, Map, Scalar, Table
from fleetgate.config.settings import SHARE_LOGIN, Provider
from fleetgate.config.units import format_duration, found, parse_duration_ms

_DURATION = Scalar("duration", parse_duration_ms)
_NAMES_OF_SECRETS = frozenset(("KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD"))
_BEGINNINGS_OF_KEYS = (
    "sk-",
    "sk_",
    "gsk_",
    "xai-",
    "AIza",
    "pplx-",
    "eyJ",
    "fgk_",
    "ghp_",
    "github_pat_",
    "hf_",
    "AKIA",
    "Bearer ",
)


def read_login_variable(text: str) -> str:
    """The name of a variable that leads an agent to its login; never one that holds a key."""
    if not (text.isascii() and text.isidentifier()):
        raise BadValue('not a variable\'s name, for example "CLAUDE_CONFIG_DIR"')
    if text.upper().startswith("FLEETGATE_"):
        raise BadValue("Fleetgate sets its own variables; valid are those of agents, for example CLAUDE_CONFIG_DIR")
    if text.upper().rpartition("_")[2] in _NAMES_OF_SECRETS:
        raise BadValue("a variable for a key, which never belongs in this file: name the variable in key_env instead")
    return text


def read_login_value(value: object) -> str:
    """The value of such a variable, which is shown: never a key."""
    valid = 'text without control characters, for example "~/.claude-work"'
    if not isinstance(value, str) or not value or len(value) > 2000 or not value.isprintable():
        raise BadValue(f"found {found(value)}; valid is {valid}")
    if value.startswith(_BEGINNINGS_OF_KEYS):
        raise BadValue(f"found what may be a key (not shown), which never belongs in this file; valid is {valid}")
    return value


def read_identity_path(value: object) -> str:
    if value == "" or (
        isinstance(value, str)
        and value.startswith("/")
        and value.isascii()
        and value.isprintable()
        and " " not in value
    ):
        return str(value)
    valid = 'a path that starts with /, for example "/v1/models", or an empty text'
    raise BadValue(f"found {found(value)}; valid is {valid}")


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
        Key(
            "rates",
            Scalar('"follow" or "ignore"', v.read_rates),
            "Whether the rates that the provider reports in its responses make rates here.",
            '"ignore"',
            f'`"{Provider().rates}"`',
        ),
        Key(
            "identity_path",
            Scalar("path of a URL", read_identity_path),
            "Where the proxy asks whose login a new token is, before it counts the first call: the answer to "
            "`GET base_url + identity_path` names the organization in a header. An empty text turns it off.",
            '"/v1/models"',
            '`"/v1/models"` for `anthropic`, else none',
        ),
        Key(
            "share_login",
            Scalar(
                " or ".join(f'"{choice}"' for choice in SHARE_LOGIN), lambda value: v.read_choice(value, SHARE_LOGIN)
            ),
            "Which calls the proxy may send with the login of this account, if they did not bring it: none, those that "
            "your own agents make with another login of yours, all calls of yours, or also those of others whom the "
            "service trusts (access keys, local users). See [accounts](accounts.md#logins).",
            '"owner"',
            f'`"{Provider().share_login}"`',
        ),
        Key(
            "env",
            Map("table of variables", "NAME", read_login_variable, Scalar("text", read_login_value)),
            "Variables for agents that hold a slot of this account, so that they use its login. A leading `~/` is the "
            "home folder, `{account}` the account; a value with `{account}` holds for all accounts of the provider.",
            '{ CLAUDE_CONFIG_DIR = "~/.claude-work" }',
            "none",
        ),
    ),
)
