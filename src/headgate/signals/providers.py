"""The words of the providers: how they name a refusal, in codes and in sentences, and whom it concerns.

Tables, and the questions that `http` asks of them. A code is what the provider's API documents; a sentence is only believed where
codes do not tell cases apart (a spend limit comes as a `rate_limit_error`), and only in the provider's own message. Since
gateways pass on errors of others, every provider's words are understood from everyone; the name only names the rule.
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

QUOTA_CODES = frozenset(
    ("insufficient_quota", "credit_balance_exhausted", "enforced_spend_limit_reached", "billing_error")
    + ("billing_hard_limit_reached", "billing_not_active", "usage_not_included", "exceeded_current_quota_error")
    + ("insufficient_credits", "insufficient_balance", "insufficient_funds", "payment_required", "spend_limit_reached")
)
WINDOW_CODES = frozenset(("usage_limit_reached", "gousagelimiterror", "freeusagelimiterror", "quota_exhausted"))
OVERLOADED_CODES = frozenset(
    ("overloaded_error", "server_is_overloaded", "capacity_exceeded", "model_capacity_exhausted", "overloaded")
    + ("engine_overloaded_error", "engine_overloaded", "model_overloaded", "unavailable", "service_unavailable")
)
RATE_CODES = frozenset(
    ("rate_limit_exceeded", "rate_limit_error", "slow_down", "rate_limited", "too_many_requests", "1300")
    + ("resource_exhausted", "ratelimitexceeded", "throttlingexception")
)
AUTH_CODES = frozenset(
    ("authentication_error", "permission_error", "permission_denied", "unauthenticated", "api_key_invalid")
    + ("invalid_api_key", "invalid_authentication", "account_deactivated", "organization_restricted", "token_expired")
    + ("token_revoked", "token_invalidated", "refresh_token_reused", "missing_scope", "insufficient_permissions")
)
# A request that is wrong stays wrong, whoever sends it.
REQUEST_CODES = re.compile(
    r"invalid_(?!api_key|auth)\w+|context_length\w*|content_\w+|unsupported_\w+|bad_request|not_found\w*|request_too_large"
    r"|model_not_found|failed_precondition|string_above_max_length|\w*moderation\w*|cyber_policy\w*"
)

_SPENT = re.compile(
    r"credit balance is too low|reached your specified (?:workspace )?api usage limits|spend(?:ing)?[ -](?:limit|cap)\b"
    r"|insufficient (?:credit|balance|fund|quota)|out of credits|used all (?:available|your) credits|key limit exceeded"
    r"|requires? more credits|billing (?:hard )?limit|credits? (?:is|are|has been|have been) exhausted",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"exceeded your (?:current )?quota|check your plan and billing", re.IGNORECASE)
_LIMIT_ZERO = re.compile(r"\blimit:\s{0,3}0(?![0-9.])")
_WINDOW = re.compile(
    r"\busage limit (?:has been )?reached|\bhit your (?:\w+ ){0,2}limit\b|exhausted your daily quota"
    r"|\b(?:daily|weekly|monthly) (?:usage |request |token |rate )?(?:limit|quota)\b",
    re.IGNORECASE,
)
_BUSY = re.compile(
    r"\boverloaded\b|experiencing (?:unusually )?high (?:demand|load|traffic)|\bat capacity\b|capacity (?:is )?exceeded"
    r"|not enough capacity|no capacity\b",
    re.IGNORECASE,
)
_RATE = re.compile(r"rate[- ]?limit|too many requests|concurrent (?:connections|requests)", re.IGNORECASE)
_TOO_LARGE = re.compile(r"^request too large\b|tokens must be reduced in order to run", re.IGNORECASE)
_KEY = re.compile(
    r"\b(?:api[ _-]?)?keys?\b|\bpermissions?\b|credential|authenticat|not authorized|unauthori[sz]ed|\boauth\b"
    r"|\b(?:access|auth|bearer|refresh|security|invalid|expired) token|token (?:has |is )?(?:been )?(?:expired|invalid|revoked)"
    r"|(?:account|organi[sz]ation|workspace|subscription)\b.{0,40}\b(?:disabled|deactivated|suspended|restricted)",
    re.IGNORECASE,
)
_BAD_KEY = re.compile(
    r"api[ _-]?key (?:not (?:valid|found)|is invalid|invalid|expired|has expired)|(?:incorrect|invalid) api[ _-]?key"
    r"|(?:account|organi[sz]ation) has been (?:disabled|deactivated|suspended|restricted)",
    re.IGNORECASE,
)
_GATEWAY = re.compile(
    r"gateway|\bproxy|cloudflare|cloudfront|akamai|fastly|nginx|zscaler|netskope|fortinet|forcepoint|squid|firewall"
    r"|\bwaf\b|captive portal|load balancer|access denied by",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"\"[^\"]{0,400}\"|`[^`]{0,400}`|(?<!\w)'[^']{0,400}'(?!\w)")
_PER_DAY = re.compile(r"per_?day|daily", re.IGNORECASE)
_PER_MINUTE = re.compile(r"per_?minute", re.IGNORECASE)
_CLAUDE = re.compile(r"(?:.*/)?claude-(opus|sonnet|haiku)-[4-9]", re.IGNORECASE)
_GLOB = re.compile(r"[*?\[\]]")


def dialect_of(provider: str) -> str:
    """How this provider's rules are called: its own name, if it is one we have tables for, else `other`."""
    name = provider.lower()
    return next((dialect for word, dialect in _DIALECTS if word in name), "other")


def unquoted(message: str) -> str:
    """A message without what it quotes: that may be the request's, and is not the provider speaking."""
    return _QUOTED.sub(" ", message)


def speaks_of_spending(message: str) -> bool:
    """Money or credits are used up: waiting does not bring them back."""
    return bool(_SPENT.search(message))


def speaks_of_quota(message: str) -> bool:
    """Words that mean billing from one provider and a limit per minute from another."""
    return bool(_QUOTA.search(message))


def speaks_of_limit_zero(message: str) -> bool:
    """Gemini: this model is not in the plan."""
    return bool(_LIMIT_ZERO.search(message))


def speaks_of_window(message: str) -> bool:
    """A plan's window is used up."""
    return bool(_WINDOW.search(message))


def speaks_of_load(message: str) -> bool:
    """The provider is short, whoever asks."""
    return bool(_BUSY.search(message))


def speaks_of_rate(message: str) -> bool:
    """Too many at once, or too fast."""
    return bool(_RATE.search(message))


def speaks_of_size(message: str) -> bool:
    """This one request is larger than the limit, and will be tomorrow."""
    return bool(_TOO_LARGE.search(message))


def speaks_of_key(message: str) -> bool:
    """Of the key, its permissions, or the account it belongs to."""
    return bool(_KEY.search(message))


def refuses_key(message: str) -> bool:
    """Narrower: for statuses that are otherwise about the request."""
    return bool(_BAD_KEY.search(message))


def speaks_of_gateway(message: str) -> bool:
    """Somebody between us and the provider spoke."""
    return bool(_GATEWAY.search(message))


def per_day(names: list[str]) -> bool:
    """Gemini's names of quotas: one of them is counted by day."""
    return any(_PER_DAY.search(name) for name in names)


def per_minute(names: list[str]) -> bool:
    """One of them is counted by minute."""
    return any(_PER_MINUTE.search(name) for name in names)


def family_of(model: str) -> str:
    """The models that Anthropic counts together with this one, as a glob; empty where it is counted alone."""
    found = _CLAUDE.match(model)
    return f"claude-{found[1].lower()}-*" if found else ""


def family_named(window: str) -> str:
    """The models that a window of a plan is about: `seven_day_opus`, `7d_sonnet`."""
    return next((f"claude-{name}-*" for name in ("opus", "sonnet", "haiku") if name in window), "")


def just(model: str) -> str:
    """A glob for one model, also for `claude-opus-4-6[1m]`."""
    return _GLOB.sub("?", model)
