"""The words of the providers: how they name a refusal, in codes and in sentences, and what it applies to.

A code is what the provider's API documents. A sentence is believed only where codes do not tell cases apart (a spend
limit comes as a `rate_limit_error`), and only in the provider's own message. Gateways pass on the errors of others, so
every provider's words are understood from everyone; its name only names the rule.
"""

from __future__ import annotations

import re

_DIALECTS = (  # the first whose word is in the provider's name
    ("openrouter", "openrouter"),
    ("azure", "azure"),
    ("anthropic", "anthropic"),
    ("claude", "anthropic"),
    ("codex", "codex"),
    ("chatgpt", "codex"),
    ("openai", "openai"),
    ("gemini", "gemini"),
    ("google", "gemini"),
    ("vertex", "gemini"),
    ("groq", "groq"),
    ("mistral", "mistral"),
)


def dialect_of(provider: str) -> str:
    """How this provider's rules are called: its own name, if it is one we have tables for, else `other`."""
    name = provider.lower()
    return next((dialect for word, dialect in _DIALECTS if word in name), "other")


# --- codes -----------------------------------------------------------------------------------------------------

QUOTA_CODES = frozenset(
    (
        *("billing_error", "enforced_spend_limit_reached", "spend_limit_reached"),  # Anthropic
        *("insufficient_quota", "credit_balance_exhausted", "billing_hard_limit_reached", "billing_not_active"),
        *("usage_not_included", "deactivated_workspace"),  # the Codex back end
        *("exceeded_current_quota_error", "insufficient_balance", "insufficient_credits", "payment_required"),
    )
)
WINDOW_CODES = frozenset(
    (
        "usage_limit_reached",  # the Codex back end
        *("gousagelimiterror", "freeusagelimiterror"),  # opencode
        "quota_exhausted",  # Gemini
    )
)
OVERLOADED_CODES = frozenset(
    (
        "overloaded_error",  # Anthropic
        *("server_is_overloaded", "engine_overloaded", "engine_overloaded_error", "model_overloaded", "overloaded"),
        "capacity_exceeded",  # Groq
        *("unavailable", "model_capacity_exhausted"),  # Gemini
    )
)
RATE_CODES = frozenset(
    (
        "rate_limit_error",  # Anthropic
        *("rate_limit_exceeded", "slow_down", "too_many_requests", "rate_limited", "throttlingexception"),
        *("resource_exhausted", "ratelimitexceeded"),  # Gemini
        "1300",  # Mistral
    )
)
AUTH_CODES = frozenset(
    (
        *("authentication_error", "permission_error"),  # Anthropic
        *("invalid_api_key", "invalid_authentication", "account_deactivated", "missing_scope"),  # OpenAI
        *("token_expired", "token_revoked", "token_invalidated", "refresh_token_reused"),  # the Codex back end
        *("unauthenticated", "permission_denied", "api_key_invalid"),  # Gemini
        "organization_restricted",  # Groq
    )
)
# A request that is wrong stays wrong, whenever it is sent.
REQUEST_CODE = re.compile(
    r"invalid_(?!api_key|auth)\w+|context_length\w*|content_\w+|unsupported_\w+|bad_request|not_found\w*|model_not_found"
    r"|request_too_large|failed_precondition|string_above_max_length|\w*moderation\w*"
)

# --- sentences -------------------------------------------------------------------------------------------------

# Money or credits are used up: waiting does not bring them back.
SPENT = re.compile(
    r"credit balance is too low|reached your specified (?:workspace )?api usage limits|spend(?:ing)?[ -](?:limit|cap)\b"
    r"|insufficient (?:credit|balance|fund|quota)|out of credits|used all (?:available|your) credits|key limit exceeded"
    r"|requires? more credits|billing (?:hard )?limit|credits? (?:is|are|has been|have been) exhausted",
    re.IGNORECASE,
)
# Billing from one provider, a limit per minute from another.
QUOTA = re.compile(r"exceeded your (?:current )?quota|check your plan and billing", re.IGNORECASE)
# Gemini: this model is not in the plan.
LIMIT_ZERO = re.compile(r"\blimit:\s{0,3}0(?![0-9.])")
WINDOW = re.compile(
    r"\busage limit (?:has been )?reached|\bhit your (?:\w+ ){0,2}limit\b|exhausted your daily quota"
    r"|\b(?:daily|weekly|monthly) (?:usage |request |token |rate )?(?:limit|quota)\b",
    re.IGNORECASE,
)
BUSY = re.compile(
    r"\boverloaded\b|experiencing (?:unusually )?high (?:demand|load|traffic)|\bat capacity\b|capacity (?:is )?exceeded"
    r"|not enough capacity|no capacity\b",
    re.IGNORECASE,
)
RATE = re.compile(r"rate[- ]?limit|too many requests|concurrent (?:connections|requests)", re.IGNORECASE)
# This one request is larger than a whole minute's share.
TOO_LARGE = re.compile(r"^request too large\b|tokens must be reduced in order to run", re.IGNORECASE)
# The key, its permissions, or the account it belongs to.
KEY = re.compile(
    r"\b(?:api[ _-]?)?keys?\b|\bpermissions?\b|credential|authenticat|not authorized|unauthori[sz]ed|\boauth\b"
    r"|\b(?:access|auth|bearer|refresh|security|invalid|expired) token"
    r"|\btoken (?:has |is )?(?:been )?(?:expired|invalid|revoked)"
    r"|(?:account|organi[sz]ation|workspace|subscription)\b.{0,40}\b(?:disabled|deactivated|suspended|restricted)",
    re.IGNORECASE,
)
# The same where a status is otherwise about the request, so in narrower words.
BAD_KEY = re.compile(
    r"api[ _-]?key (?:not (?:valid|found)|is invalid|invalid|expired|has expired)|(?:incorrect|invalid) api[ _-]?key"
    r"|(?:account|organi[sz]ation) has been (?:disabled|deactivated|suspended|restricted)",
    re.IGNORECASE,
)
# A gateway on the way to the provider answered.
GATEWAY = re.compile(
    r"gateway|\bproxy|cloudflare|cloudfront|akamai|fastly|nginx|zscaler|netskope|fortinet|forcepoint|squid|firewall"
    r"|\bwaf\b|captive portal|load balancer",
    re.IGNORECASE,
)
# Gemini's names of quotas: `GenerateRequestsPerDayPerProjectPerModel-FreeTier`.
PER_DAY = re.compile(r"per_?day|daily", re.IGNORECASE)
PER_MINUTE = re.compile(r"per_?minute", re.IGNORECASE)

_QUOTED = re.compile(r"\"[^\"]{0,400}\"|`[^`]{0,400}`|(?<!\w)'[^']{0,400}'(?!\w)")


def unquoted(message: str) -> str:
    """A message without what it quotes: that may be the request's, and is not the provider speaking."""
    return _QUOTED.sub(" ", message)


# --- models ----------------------------------------------------------------------------------------------------

_CLAUDE = re.compile(r"(?:[^ ]*/)?claude-(opus|sonnet|haiku)-[4-9]", re.IGNORECASE)
_ONE_FAMILY = re.compile(r"(?:5h|7d|five_hour|seven_day)_\w+")
_GLOB = re.compile(r"[*?\[\]]")


def family_of(model: str) -> str:
    """The models that Anthropic counts together with this one, as a glob; empty where it is counted alone."""
    found = _CLAUDE.match(model)
    return f"claude-{found[1].lower()}-*" if found else ""


def family_of_window(window: str, model: str) -> str:
    """The models that a window of a plan is about: `seven_day_opus`, `7d_oi`; empty for a window over all."""
    if not _ONE_FAMILY.fullmatch(window):
        return ""
    return next((f"claude-{name}-*" for name in ("opus", "sonnet", "haiku") if name in window), only(model))


def only(model: str) -> str:
    """A glob for one model, also for `claude-opus-4-6[1m]`."""
    return _GLOB.sub("?", model)
