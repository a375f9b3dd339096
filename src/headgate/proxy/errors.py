"""Our own refusals, in the shape in which the provider itself would say them (SPEC X2): SDKs read those.

The sentence says that it is Headgate that speaks. A refusal after which the client may try again has a Retry-After.
"""

from __future__ import annotations

import msgspec

from headgate.core.errors import HeadgateError

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


class Refusal(HeadgateError):
    """The request is answered by us. `code` says why, as in `headgate queue`; it goes into the body where it fits."""

    def __init__(self, status: int, code: str, sentence: str, retry_after_s: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


class ClientGone(Exception):
    """The client has left: there is nobody to answer."""


def shape_of(refusal: Refusal, api: str) -> bytes:
    """The body."""
    status, message = refusal.status, f"Headgate: {refusal}"
    if api == "anthropic":
        kind = _ANTHROPIC.get(status, "api_error")
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})
    if api == "gemini":
        error = {"code": status, "message": message, "status": _GEMINI.get(status, "INTERNAL")}
        return msgspec.json.encode({"error": error})
    kind = _OPENAI.get(status, "server_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": refusal.code}})
