"""The proxy's own refusals, in the format of the provider (rule X2), which SDKs can read.

The sentence names Fleetgate. A refusal after which the client may try again has a Retry-After.
"""

from __future__ import annotations

import msgspec

from fleetgate.core.errors import FleetgateError
from fleetgate.gate.serving.model_calls import NotInTime

_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    415: "invalid_request_error",
    426: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_GEMINI = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    415: "INVALID_ARGUMENT",
    426: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_OPENAI = {
    400: "invalid_request_error",
    401: "invalid_request_error",
    402: "insufficient_quota",
    404: "invalid_request_error",
    415: "invalid_request_error",
    426: "invalid_request_error",
    429: "rate_limit_error",
}

_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_SOON_S = 60  # a longer Retry-After is not waited for by SDKs: they try again at once instead
_FIVE_HOURS_S = 5 * 3600
_NEEDS_A_PERSON = {"auth": 401, "quota": 402}


class ProxyRefusal(FleetgateError):
    """The request is answered by us. `code` says why, as in `fleetgate queue`; it goes into the body where it fits."""

    def __init__(self, status: int, code: str, sentence: str, retry_after_s: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s
        self.outlasts = False  # it is no use to try again soon
        self.window = ""  # the key of the plan's window that is used up


def headers_of(refusal: ProxyRefusal, api: str, now_s: int) -> list[tuple[bytes, bytes]]:
    """What an answer says in its headers, as the provider would: when to try again, and whether at all."""
    headers = []
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % refusal.retry_after_s))
    if refusal.outlasts and (refusal.retry_after_s or 0) > _SOON_S:
        headers.append((b"x-should-retry", b"false"))  # which the SDKs of Anthropic and OpenAI go by
    if refusal.window and api == "anthropic":
        name = b"anthropic-ratelimit-unified-"
        wait_s = refusal.retry_after_s or 1
        headers += [
            (name + b"status", b"rejected"),
            (name + b"reset", b"%d" % (now_s + wait_s)),
            (name + b"representative-claim", _claim(refusal.window, wait_s)),
        ]
    if refusal.status == 426:
        headers.append((b"upgrade", b"HTTP/1.1"))
    return headers


def _claim(window: str, wait_s: int) -> bytes:
    """Which window it is, in Anthropic's words."""
    for family in ("opus", "sonnet"):
        if family in window.partition("/")[2]:
            return f"seven_day_{family}".encode()
    return b"five_hour" if wait_s <= _FIVE_HOURS_S else b"seven_day"


def shape_of(refusal: ProxyRefusal, api: str, now_s: int) -> bytes:
    """The body."""
    status, message = refusal.status, f"Fleetgate: {refusal}"
    wait_s = refusal.retry_after_s
    if api == "anthropic":
        kind = _ANTHROPIC.get(status, "api_error")
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})
    if api == "gemini":
        error: dict[str, object] = {"code": status, "message": message, "status": _GEMINI.get(status, "INTERNAL")}
        if wait_s is not None:
            error["details"] = [{"@type": _RETRY_INFO, "retryDelay": f"{wait_s}s"}]
        return msgspec.json.encode({"error": error})
    kind = _OPENAI.get(status, "server_error")
    said: dict[str, object] = {"message": message, "type": kind, "param": None, "code": refusal.code}
    if refusal.window and wait_s is not None:  # as the Codex back end says it
        said |= {"type": "usage_limit_reached", "resets_in_seconds": wait_s, "resets_at": now_s + wait_s}
    return msgspec.json.encode({"error": said})


def no_slot(error: NotInTime) -> ProxyRefusal:
    """The refusal of a call that got no slot in time."""
    reason = error.reason
    if reason.code == "store_busy":
        return ProxyRefusal(503, reason.code, reason.text, 1)
    retry_s = None if error.retry_ms is None else max(1, -(-error.retry_ms // 1000))
    if reason.code == "backoff" and reason.cause in _NEEDS_A_PERSON:
        sentence = f"{reason.text}. A person must see to it; then `fleetgate backoff clear` ends it at once"
        return ProxyRefusal(_NEEDS_A_PERSON[reason.cause], reason.code, sentence, retry_s)
    refusal = ProxyRefusal(429, reason.code, f"no slot in time: {reason.text}", retry_s or 1)
    refusal.outlasts = error.outlasts
    refusal.window = error.held if reason.cause == "usage_window" else ""
    return refusal
