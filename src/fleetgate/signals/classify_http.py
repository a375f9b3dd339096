"""The outcome of a call, from the status, headers and body of a response, or from an error inside its stream (rule S1).

Order matters more than any single rule. The status tells who answered, codes go before sentences, and what only a
person can fix goes before what time fixes: a spend limit that comes as a rate limit is a spend limit. A refusal that
names nothing is judged by its status alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from fleetgate.signals import provider_vocabulary as say
from fleetgate.signals.clock_times import next_midnight_ms
from fleetgate.signals.error_bodies import ErrorBody, body_of, body_wait, decode_json, read_body
from fleetgate.signals.limit_subject import rate_of, subject_of
from fleetgate.signals.outcome import (
    AUTH,
    LOCAL_ERROR,
    OK,
    OVERLOADED,
    QUOTA,
    RATE_LIMITED,
    SERVER_ERROR,
    USAGE_WINDOW,
    Outcome,
    outcome,
)
from fleetgate.signals.rate_limit_headers import lowered, plan_rejections, pools_hint, reset_wait, retry_wait

__all__ = ["classify_response", "classify_stream_error", "pools_hint"]

_HOUR_MS = 3_600_000


class _Reply(Struct):
    """All that is known about one refused call."""

    dialect: str
    where: str  # the status, or "stream"
    status: int
    headers: dict[str, str]
    body: ErrorBody
    now_wall_ms: int
    model: str

    def has(self, codes: Iterable[str]) -> str:
        """The first code of the body that is one of these."""
        return next((code for code in self.body.codes if code in codes), "")


def classify_response(
    provider: str, status: int, headers: Mapping[str, str], body: bytes | str, now_wall_ms: int, model: str = ""
) -> Outcome:
    """The outcome of a response. `body` may be only its first part; `headers` may be in any case."""
    if 200 <= status < 300:
        return OK
    names = lowered(headers)
    content = read_body(body, names.get("content-type", ""), names.get("content-encoding", ""))
    return _judge(_Reply(say.dialect_of(provider), str(status), status, names, content, now_wall_ms, model))


def classify_stream_error(
    provider: str, event: bytes | str | Mapping[str, object], now_wall_ms: int, model: str = ""
) -> Outcome | None:
    """The outcome of an event that came after a 200, with or without its `data:`; None for one that is no error.

    Only an error event counts, never what a model says in one. Also for a body with status 200 that is an error.
    """
    data = event if isinstance(event, Mapping) else _event_data(event)
    error = _error_in(data) if isinstance(data, Mapping) else None
    if error is None:
        return None
    body = body_of(error)
    reply = _Reply(say.dialect_of(provider), "stream", 0, {}, body, now_wall_ms, model)
    reply.status = _status_of(reply)
    return _judge(reply)


# --- by status -------------------------------------------------------------------------------------------------


def _judge(reply: _Reply) -> Outcome:
    status = reply.status
    if status == 429:
        return _limited(reply)
    if status == 401:
        return _outcome(reply, AUTH)
    if status == 402:
        return _payment(reply)
    if status == 403:
        return _forbidden(reply)
    if status == 498 and (reply.dialect == "groq" or reply.has(say.OVERLOADED_CODES)):
        return _outcome(reply, OVERLOADED, reply.has(say.OVERLOADED_CODES))
    if status >= 500:
        return _failed(reply)
    return _bad_request(reply)


def _limited(reply: _Reply) -> Outcome:
    """429: from what only a person can mend to what is over in a moment."""
    body, message = reply.body, reply.body.message
    if say.TOO_LARGE.search(message):
        return _outcome(reply, LOCAL_ERROR, "request_too_large")
    if say.LIMIT_ZERO.search(message) or "0" in body.fields.get("quotavalue", ()):
        return _outcome(reply, QUOTA, "limit_0", family=say.only(reply.model or body.first("model")))
    if code := reply.has(say.QUOTA_CODES):
        return _outcome(reply, QUOTA, code)
    if say.SPENT.search(message):
        return _outcome(reply, QUOTA, "spending")
    if window := _window(reply):
        return window
    if code := reply.has(say.OVERLOADED_CODES):
        return _outcome(reply, OVERLOADED, code)
    if say.BUSY.search(message):
        return _outcome(reply, OVERLOADED, "high_demand")
    if say.QUOTA.search(message) and not _soon_over(reply):
        return _outcome(reply, QUOTA, "exceeded_quota")
    if "free-models-per-min" in message:
        return _outcome(reply, RATE_LIMITED, "free_models_per_min", family="*:free", named=True)
    return _rate_limited(reply, reply.has(say.RATE_CODES) or body.code)


def _rate_limited(reply: _Reply, tag: str) -> Outcome:
    """Too many for a moment: of whom and of what, if the provider says so."""
    subject = subject_of(reply.dialect, reply.headers, reply.body, reply.model)
    if subject is not None:
        found = _outcome(reply, RATE_LIMITED, tag, subject.family, subject.scope, named=True)
    else:
        found = _outcome(reply, RATE_LIMITED, tag, say.family_of(reply.model) if reply.dialect == "anthropic" else "")
    rate = rate_of(reply.dialect, reply.headers, reply.body, reply.now_wall_ms)
    return found if rate is None else replace(found, rate=rate.unit, readings=rate.readings)


def _window(reply: _Reply) -> Outcome | None:
    """A plan's window, or a limit by day: used up until a known time."""
    body, message = reply.body, reply.body.message
    if _by_day(reply):
        return _outcome(reply, USAGE_WINDOW, "per_day", family=say.only(reply.model or body.first("model")))
    if rejected := list(plan_rejections(reply.headers, reply.now_wall_ms)):
        families = [say.family_of_window(name, reply.model) for name in rejected]
        tag = "plan_" + "_".join(name or "limit" for name in rejected)
        # One that is about some models only, unless one over all of them is used up too.
        return _outcome(reply, USAGE_WINDOW, tag, family=families[0] if all(families) else "")
    if code := reply.has(say.WINDOW_CODES):
        return _outcome(reply, USAGE_WINDOW, code)
    if "free-models-per-day" in message:
        return _outcome(reply, USAGE_WINDOW, "free_models_per_day", family="*:free")
    if reply.headers.get("x-ratelimit-remaining-tokens-month") == "0":
        return _outcome(reply, USAGE_WINDOW, "month")
    if say.WINDOW.search(message):
        return _outcome(reply, USAGE_WINDOW, "usage_limit")
    return None


def _by_day(reply: _Reply) -> bool:
    """Gemini names what was exceeded: a quota by day?"""
    names = reply.body.fields.get("quotaid", []) + reply.body.fields.get("quota_limit", [])
    return any(say.PER_DAY.search(name) for name in names)


def _soon_over(reply: _Reply) -> bool:
    """Whether a body that speaks of quota means a limit by the minute: it names a wait, or the minute."""
    names = reply.body.fields.get("quotaid", [])
    return body_wait(reply.body, reply.now_wall_ms) is not None or any(say.PER_MINUTE.search(name) for name in names)


def _payment(reply: _Reply) -> Outcome:
    source = reply.body.first("limit_source")
    if source == "openrouter_in_flight_budget":
        return _outcome(reply, RATE_LIMITED, source)
    return _outcome(reply, QUOTA, reply.body.code)


def _forbidden(reply: _Reply) -> Outcome:
    """403: the provider refused a key or this request, or a gateway on the way refused it."""
    body, message = reply.body, say.unquoted(reply.body.message)
    if body.shape in ("html", "empty"):
        return _outcome(reply, SERVER_ERROR, body.shape)
    if code := reply.has(say.QUOTA_CODES):
        return _outcome(reply, QUOTA, code)
    if say.SPENT.search(message):
        return _outcome(reply, QUOTA, "spending")
    if code := reply.has(say.AUTH_CODES):
        return _outcome(reply, AUTH, code)
    if say.GATEWAY.search(message):
        return _outcome(reply, SERVER_ERROR, "gateway")
    if say.RATE.search(message) or reply.has(say.RATE_CODES):
        return _rate_limited(reply, body.code)
    if say.KEY.search(message):
        return _outcome(reply, AUTH, "key")
    return _outcome(reply, LOCAL_ERROR if body.shape == "json" else SERVER_ERROR, body.code)


def _failed(reply: _Reply) -> Outcome:
    message = reply.body.message
    if reply.status == 529:
        return _outcome(reply, OVERLOADED, reply.has(say.OVERLOADED_CODES))
    if code := reply.has(say.OVERLOADED_CODES):
        return _outcome(reply, OVERLOADED, code)
    if reply.body.shape in ("json", "text") and say.BUSY.search(message):
        return _outcome(reply, OVERLOADED, "high_demand")
    if code := reply.has(say.RATE_CODES):
        return _rate_limited(reply, code)
    return _outcome(reply, SERVER_ERROR, reply.body.code)


def _bad_request(reply: _Reply) -> Outcome:
    """Anything else is about the request; but a 400 may also be an empty account, or a key that is none."""
    message = say.unquoted(reply.body.message)
    if reply.status == 400 and reply.body.shape == "json":
        if reply.has(say.QUOTA_CODES) or say.SPENT.search(message):
            return _outcome(reply, QUOTA, reply.has(say.QUOTA_CODES) or "spending")
        if reply.has(say.AUTH_CODES) or say.BAD_KEY.search(message):
            return _outcome(reply, AUTH, reply.has(say.AUTH_CODES) or "key")
    return _outcome(reply, LOCAL_ERROR, reply.body.code)


# --- the outcome with its wait ---------------------------------------------------------------------------------


def _outcome(
    reply: _Reply, kind: str, tag: str = "", family: str = "", scope: str = "", *, named: bool = False
) -> Outcome:
    tag = "".join(c if c.isalnum() or c in "_-" else "_" for c in tag)[:60]
    rule = f"{reply.dialect}.{reply.where}" + (f".{tag}" if tag else "")
    return outcome(kind, rule, _seen(reply), wait_ms=_wait(reply, kind), scope=scope, family=family, named=named)


def _seen(reply: _Reply) -> str:
    start = f"HTTP {reply.status}" if reply.where != "stream" else "error in the stream"
    code = f" {reply.body.code}" if reply.body.code else ""
    return f"{start}{code}: {reply.body.message}" if reply.body.message else start + code


def _wait(reply: _Reply, kind: str) -> int | None:
    """Retry headers, then the body, then reset headers, for the kinds that time mends."""
    if kind in (AUTH, LOCAL_ERROR):
        return None
    now = reply.now_wall_ms
    asked = retry_wait(reply.headers, now)
    told = body_wait(reply.body, now)
    if kind == QUOTA:  # a client that asks again in 20 s is not what fills an account
        return next((wait_ms for wait_ms in (asked, told) if wait_ms is not None and wait_ms >= _HOUR_MS), None)
    if kind == USAGE_WINDOW:
        return _window_wait(reply, [asked, told])
    wait_ms = told if asked is None else asked
    if wait_ms is None and kind == RATE_LIMITED:
        about = reply.has(("requests", "tokens"))
        wait_ms = reset_wait(reply.headers, now, about)
    return wait_ms


def _window_wait(reply: _Reply, named: list[int | None]) -> int | None:
    """Until the last of all resets that are named: a window that is used up does not open for a short `retry-after`."""
    now = reply.now_wall_ms
    named += plan_rejections(reply.headers, now).values()
    known = [wait_ms for wait_ms in named if wait_ms is not None]
    if _by_day(reply) and max(known, default=0) < _HOUR_MS:
        # Gemini says "retry in 40s" for quotas by day, too. They are renewed at midnight in California.
        midnight = next_midnight_ms("America/Los_Angeles", -8, now)
        known += [] if midnight is None else [midnight - now]
    return max(known) if known else reset_wait(reply.headers, now)


# --- errors inside a stream ------------------------------------------------------------------------------------


def _event_data(event: bytes | str) -> object:
    """Decoded, if it can be an error: a model's prose has no such words in quotes, there they are escaped."""
    text = event.decode("utf-8", "replace") if isinstance(event, bytes) else event
    if '"error"' not in text and '"response.failed"' not in text:
        return None
    lines = [line[5:] for line in text.splitlines() if line.startswith("data:")]
    data = decode_json("\n".join(lines) if lines else text.strip())
    return data[0] if isinstance(data, list) and data else data


def _error_in(data: Mapping[str, object]) -> object:
    """The part of an event that speaks of an error; None where it is not one."""
    kind = data.get("type")
    if kind == "response.failed":
        response = data.get("response")
        return (response.get("error") if isinstance(response, Mapping) else None) or {}
    if isinstance(kind, str) and kind.startswith("response."):
        return None
    if kind == "error" or data.get("error"):
        return dict(data)
    choices = data.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, Mapping) and choice.get("finish_reason") == "error":
            return choice.get("error") or {}
    return None


def _status_of(reply: _Reply) -> int:
    """The status that this error would have had at the start: its number if it has one, else by its code."""
    for code in reply.body.codes:
        if code.isdecimal() and 400 <= int(code[:9]) <= 599:
            return int(code)
    for codes, status in (
        (say.QUOTA_CODES, 402),
        (say.WINDOW_CODES, 429),
        (say.OVERLOADED_CODES, 529),
        (say.RATE_CODES, 429),
        (say.AUTH_CODES, 401),
    ):
        if reply.has(codes):
            return status
    if any(say.REQUEST_CODE.fullmatch(code) for code in reply.body.codes):
        return 400
    message = reply.body.message
    return 429 if say.RATE.search(message) or say.WINDOW.search(message) else 500
