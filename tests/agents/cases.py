"""What the fake provider answers to each real agent, in the provider's own words, and what must come of it."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from fleetgate.testing.script import Fault


class Case(NamedTuple):
    """One answer, given to every call of one agent."""

    agent: str
    answer: str  # as the table shows it
    fault: Fault | None = None
    kind: str = "ok"
    backs_off: str = ""  # the key of the backoff; empty for none
    said: str = ""  # in the evidence
    wait_s: tuple[int, int] | None = None  # the provider's hint as it must be read: between these
    login: str = "key"  # "plan": Claude Code signed in with a plan, which has windows
    patience_s: int = 0  # aider has no setting for how long it tries again, and no records: `timeout` ends it

    @property
    def scope(self) -> str:
        return "model" if "/" in self.backs_off else "account"

    @property
    def name(self) -> str:
        return f"{self.agent}-{self.answer}".replace(" ", "_")


ALWAYS = 1_000_000
RETRY_AFTER_S = 45
HINTED = (RETRY_AFTER_S - 5, RETRY_AFTER_S + 5)
WINDOW_S = 2 * 3600
AT_RESET = (WINDOW_S - 600, WINDOW_S + 120)  # some agents tell it to the minute


def answers(status: int, body: Any, headers: dict[str, str] | None = None, retry_after_s: float | None = None) -> Fault:
    return Fault(status=status, body=body, headers=headers or {}, retry_after_s=retry_after_s, times=ALWAYS)


def _openai(message: str, kind: str, code: str | None, **more: Any) -> Any:
    return {"error": {"message": message, "type": kind, "param": None, "code": code, **more}}


_TOO_MANY = _openai("Rate limit reached for this model: too many requests.", "requests", "rate_limit_exceeded")
_BAD_KEY = _openai("Incorrect API key provided: sk-dummy****0000.", "invalid_request_error", "invalid_api_key")
_SHORT = _openai("The server is currently overloaded.", "server_error", "server_is_overloaded")
_QUOTA = _openai("You exceeded your current quota, please check your plan.", "insufficient_quota", "insufficient_quota")


def _anthropic(kind: str, message: str) -> Any:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


_LIMITED = _anthropic("rate_limit_error", "This request would exceed your organization's rate limit.")


def _window() -> dict[str, str]:
    reset = str(int(time.time()) + WINDOW_S)
    start = "anthropic-ratelimit-unified"
    return {
        f"{start}-status": "rejected",
        f"{start}-representative-claim": "five_hour",
        f"{start}-reset": reset,
        f"{start}-5h-status": "rejected",
        f"{start}-5h-utilization": "1.0",
        f"{start}-5h-reset": reset,
    }


def _gemini(code: int, status: str, message: str, *details: dict[str, Any]) -> Any:
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


_GOOGLE = "type.googleapis.com/google.rpc"
_RETRY = {"@type": f"{_GOOGLE}.RetryInfo", "retryDelay": f"{RETRY_AFTER_S}s"}
_EXHAUSTED = "Resource has been exhausted (e.g. check quota)."
_BY_DAY = {
    "@type": f"{_GOOGLE}.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier", "quotaValue": "50"}],
}

_GO_LIMIT = {"type": "error", "error": {"type": "GoUsageLimitError", "message": "5-hour usage limit reached"}}
_PLAN = {"type": "usage_limit_reached", "message": "The usage limit has been reached", "plan_type": "plus"}
LIMITED, WINDOW, SHORT, AUTH, QUOTA = "rate_limited", "usage_window", "overloaded", "auth", "quota"


def cases() -> list[Case]:
    return [*_opencode_cases(), *_codex_cases(), *_claude_cases(), *_gemini_cases(), *_aider_cases()]


def as_of_now(case: Case) -> Case:
    """The same case with a reset that counts from now. Tests are collected long before the last of them begins."""
    return next(each for each in cases() if each.name == case.name)


def _opencode_cases() -> list[Case]:
    me, model = "opencode", "umans/coder"
    limit, later = answers(429, _TOO_MANY), answers(429, _TOO_MANY, retry_after_s=3600)
    return [
        Case(me, "200"),
        Case(me, "429", limit, LIMITED, model, "Rate limit reached"),
        Case(me, "429, Retry-After 3600", later, LIMITED, model, "Rate limit reached"),
        Case(me, "401", answers(401, _BAD_KEY), AUTH, "umans", "Incorrect API key"),
        Case(me, "503 overloaded", answers(503, _SHORT), SHORT, model, "overloaded"),
        Case(me, "529", answers(529, _SHORT), SHORT, model, "overloaded"),
        Case(me, "429 usage limit", answers(429, _GO_LIMIT), WINDOW, "umans", "usage limit reached"),
    ]


def _codex_cases() -> list[Case]:
    me, model = "codex", "openai/gpt-5"
    later = answers(429, _TOO_MANY, retry_after_s=RETRY_AFTER_S)
    used_up = answers(429, {"error": {**_PLAN, "resets_at": int(time.time()) + WINDOW_S}})
    return [
        Case(me, "200"),
        Case(me, "429", answers(429, _TOO_MANY), LIMITED, model, "429 Too Many Requests"),
        Case(me, "429, Retry-After 45", later, LIMITED, model, "429 Too Many Requests"),  # it does not tell the wait
        Case(me, "401", answers(401, _BAD_KEY), AUTH, "openai", "401 Unauthorized"),
        Case(me, "503 overloaded", answers(503, _SHORT), SHORT, model, "at capacity"),
        Case(me, "529", answers(529, _SHORT), SHORT, model, "529"),
        Case(me, "429 usage limit", used_up, WINDOW, "openai", "hit your usage limit", AT_RESET),
        Case(me, "429 quota", answers(429, _QUOTA), QUOTA, "openai", "Quota exceeded"),
    ]


def _claude_cases() -> list[Case]:
    me, model = "claude", "anthropic/claude-opus-4-6"
    later = answers(429, _LIMITED, retry_after_s=RETRY_AFTER_S)
    bad_key = answers(401, _anthropic("authentication_error", "invalid x-api-key"))
    short = answers(529, _anthropic("overloaded_error", "Overloaded"))
    used_up = answers(429, _LIMITED, _window())
    return [
        Case(me, "200"),
        Case(me, "429", answers(429, _LIMITED), LIMITED, model, "429"),
        Case(me, "429, Retry-After 45", later, LIMITED, model, "429", HINTED),
        Case(me, "401", bad_key, AUTH, "anthropic", "API key"),
        Case(me, "529", short, SHORT, model, "529"),
        Case(me, "429 usage limit", used_up, WINDOW, "anthropic", "hit your 5-hour limit", AT_RESET, login="plan"),
    ]


def _gemini_cases() -> list[Case]:
    me, model = "gemini", "google/gemini-2.5-pro"
    limit = answers(429, _gemini(429, "RESOURCE_EXHAUSTED", _EXHAUSTED))
    later = answers(429, _gemini(429, "RESOURCE_EXHAUSTED", _EXHAUSTED, _RETRY))
    bad_key = answers(401, _gemini(401, "UNAUTHENTICATED", "API key not valid."))
    short = answers(503, _gemini(503, "UNAVAILABLE", "The model is overloaded."))
    used_up = answers(429, _gemini(429, "RESOURCE_EXHAUSTED", _EXHAUSTED, _BY_DAY))
    return [
        Case(me, "200"),
        Case(me, "429", limit, LIMITED, model, "exhausted"),  # in the words of its last retry, and of its end
        Case(me, "429, retryDelay 45s", later, LIMITED, model, "exhausted", HINTED),
        Case(me, "401", bad_key, AUTH, "google", "API key not valid"),
        Case(me, "503 overloaded", short, SHORT, model, "overloaded"),
        Case(me, "429 usage limit", used_up, WINDOW, model, "exhausted your daily quota"),
    ]


def _aider_cases() -> list[Case]:
    me, model, patience_s = "aider", "openai/coder", 30
    later = answers(429, _TOO_MANY, retry_after_s=2)  # its client waits that long twice before a word is printed
    short, no_money = answers(503, _SHORT), answers(429, _QUOTA)
    return [
        Case(me, "200"),
        Case(me, "429", answers(429, _TOO_MANY), LIMITED, model, "RateLimitError"),  # it gives up after two minutes
        Case(me, "429, Retry-After 2", later, LIMITED, model, "RateLimitError", patience_s=patience_s),
        Case(me, "401", answers(401, _BAD_KEY), AUTH, "openai", "AuthenticationError"),
        Case(me, "503 overloaded", short, SHORT, model, "overloaded", patience_s=patience_s),
        Case(me, "529", answers(529, _SHORT), SHORT, model, "overloaded", patience_s=patience_s),
        Case(me, "429 quota", no_money, QUOTA, "openai", "exceeded your current quota", patience_s=patience_s),
    ]
