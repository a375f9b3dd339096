"""The errors of the API (rule H3): `{"error": sentence, "reason": code, …}`. Every exception is mapped here."""

from __future__ import annotations

import re
import sys
import traceback

from msgspec import UNSET, Struct, UnsetType

from fleetgate.config.errors import ConfigError
from fleetgate.core.errors import BadName, BadRequest, FleetgateError, InternalError, NotFound, NotNow
from fleetgate.gate.library.lease_handles import NotAdmitted
from fleetgate.gate.serving.client_renewals import Gone
from fleetgate.log.protocol import StoreError

RETRY_AFTER_S = 5
DEFERRED = 75  # the exit code of a command that another key or session keeps from being done


class ErrorShape(Struct, omit_defaults=True):
    """What is wrong, and what is valid. The request changed nothing."""

    error: str
    reason: str
    field: str | UnsetType = UNSET
    cause: str | UnsetType = UNSET


class RequestRefused(FleetgateError):
    """A request that is refused with a status and a code of its own."""

    def __init__(
        self, status: int, reason: str, sentence: str, *, field: str = "", retry_after_s: int = 0, allow: str = ""
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.reason = reason
        self.field = field
        self.retry_after_s = retry_after_s
        self.allow = allow

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with it."""
        headers = {}
        if self.retry_after_s:
            headers["retry-after"] = str(self.retry_after_s)
        if self.allow:
            headers["allow"] = self.allow
        if self.status == 401:
            headers["www-authenticate"] = 'Bearer realm="fleetgate"'
        return headers


def conflict(sentence: str) -> RequestRefused:
    return RequestRefused(409, "conflict", sentence)


def not_json(why: object) -> RequestRefused:
    return RequestRefused(400, "bad_json", f"the body is not JSON: {why}")


def invalid_body(message: str, field: str) -> RequestRefused:
    """A body whose first wrong field is `field`; empty: the body as a whole."""
    text = message if message[1:2].isupper() else message[:1].lower() + message[1:]
    unknown = re.search("unknown field `([^`]*)`", text)
    return RequestRefused(400, "bad_request", f"{field or 'the body'}: {text}", field=unknown[1] if unknown else field)


def _in_fields(sentence: str) -> str:
    """Sentences shared with the command line name its options: here they are fields. Whole commands stay."""
    parts = sentence.split("`")
    parts[::2] = [re.sub("(?<![^ ])--([a-z])", r"\1", part) for part in parts[::2]]
    return "`".join(parts)


def refusal(error: Exception) -> tuple[int, ErrorShape, dict[str, str]]:
    """Status, body and headers for whatever went wrong."""
    if isinstance(error, RequestRefused):
        return error.status, ErrorShape(str(error), error.reason, error.field or UNSET), error.headers
    if isinstance(error, Gone):
        return 410, ErrorShape(str(error), "gone", cause=error.cause), {}
    if isinstance(error, NotAdmitted):
        return 410, ErrorShape(str(error), "gone", cause=error.reason.code), {}
    if isinstance(error, StoreError):
        headers = {"retry-after": str(RETRY_AFTER_S)}
        return 503, ErrorShape(str(error), "store_unavailable"), headers
    if isinstance(error, NotFound):
        return 404, ErrorShape(_in_fields(str(error)), "not_found"), {}
    if isinstance(error, NotNow) or getattr(error, "exit_code", 0) == DEFERRED:
        return 409, ErrorShape(_in_fields(str(error)), "conflict"), {}
    if isinstance(error, BadName | BadRequest | ConfigError):
        return 400, ErrorShape(_in_fields(str(error)), "bad_request"), {}
    if isinstance(error, RecursionError):  # only a body can be that deep
        return 400, ErrorShape("the body is not JSON that can be read: it is nested too deeply", "bad_json"), {}
    if isinstance(error, UnicodeDecodeError):
        return 400, ErrorShape("the body is not JSON: it is not UTF-8 text", "bad_json"), {}
    if isinstance(error, FleetgateError) and not isinstance(error, InternalError):
        return 503, ErrorShape(str(error), "stopping"), {"retry-after": str(RETRY_AFTER_S)}
    return 500, ErrorShape("something went wrong inside Fleetgate; the service's own output says what", "internal"), {}


def complain(request: str, error: Exception) -> None:
    """Report a bug: the operator sees the traceback, the client a sentence."""
    trace = "".join(traceback.format_exception(error))
    sys.stderr.write(f"fleetgate: internal error at {request}\n{trace}")
    sys.stderr.flush()
