"""The subject of a rate limit, if the provider names it: one model, the models of a family, or the whole account; and
the rate that it means, such as input tokens by the minute.

A refusal that says nothing of the kind, or that speaks of calls at once, names no model and no rate: then the gate
decides by its own pools. A limit by the day is not a rate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from fleetgate.core.usage import Reading
from fleetgate.signals.error_bodies import ErrorBody, body_wait
from fleetgate.signals.provider_vocabulary import PER_DAY, PER_MINUTE, dialect_of, family_of, family_of_window
from fleetgate.signals.rate_limit_headers import HOUR_MS, PoolHint, readings_of, windows_of

# Too many at the same time: of what is not told by such a sentence, whichever model it names.
_AT_ONCE = re.compile(
    r"concurren(?:t|cy)|at (?:once|the same time)|simultaneous|in[- ]flight|parallel (?:requests|calls|connections)",
    re.IGNORECASE,
)
_ALL_MODELS = re.compile(
    r"(?:across|for|of) all (?:of )?(?:your )?models|account-wide|organi[sz]ation-wide", re.IGNORECASE
)
# "Rate limit reached for gpt-5.1 in organization …", "… for model `llama-3.3-70b` …"
_NAME = r"[`'\"]?([A-Za-z0-9][\w.:/+-]{1,100})"
_FOR_MODEL = re.compile(
    rf"\blimits? (?:reached|exceeded|hit)\b[^.]{{0,20}}? for (?:the )?(?:model:? )?{_NAME}"
    rf"|\bmodel[:=] ?{_NAME}|\bfor (?:the )?model {_NAME}",
    re.IGNORECASE,
)
_NO_MODEL = frozenset(
    (
        *("your", "this", "the", "organization", "organisation", "project", "account", "user"),
        *("key", "api", "model", "metric"),
    )
)
_BY_TIME = re.compile(r"\bper (?:second|min|minute|hour|day)\b|\b[IO]?[RT]P[MDS]\b", re.IGNORECASE)
_PER_MODEL = re.compile(r"per_?(?:base_?)?model", re.IGNORECASE)
_PER_ACCOUNT = re.compile(r"per_?(?:project|user|organization|consumer)", re.IGNORECASE)
_BY_MODEL = frozenset(("openai", "azure", "groq"))  # whose windows in headers are those of one model
_MINUTE_MS = 60_000
_BY_DAY = re.compile(r"\bper[ -]day\b|\bdaily\b|\b[IO]?[RT]PD\b", re.IGNORECASE)
# "input tokens per minute", "tokens per min (TPM): Limit 10000, Used 9500, Requested 800", "exceeded token rate limit",
# "Requests rate limit exceeded", "Number of request tokens has exceeded your per-minute rate limit"
_RATE = re.compile(
    r"\b(?:(?P<part>input|prompt|output|completion|request) )?(?P<what>tokens?|requests?|calls?)"
    r" (?:per[ -](?:min(?:ute)?|sec(?:ond)?)\b|rate limit\b|(?:has|have) exceeded your per-minute rate limit)"
    r"|\b(?P<short>[IO]?TPM|RPM)\b",
    re.IGNORECASE,
)
_PARTS = {"input": "input", "prompt": "input", "request": "input", "output": "output", "completion": "output"}
_SHORT = {"TPM": "tokens", "ITPM": "input", "OTPM": "output", "RPM": "calls"}
_AMOUNTS = re.compile(r"\blimit:? (?P<limit>[0-9][0-9,]{0,15}), used:? (?P<used>[0-9][0-9,]{0,15})", re.IGNORECASE)
_LIMIT_OF = re.compile(r"\bof (?P<limit>[0-9][0-9,]{0,15}) [a-z ]{0,20}$", re.IGNORECASE)
_QUOTA_UNITS = (  # by words in Gemini's names of quotas
    ("input", re.compile(r"input_?token", re.IGNORECASE)),
    ("output", re.compile(r"output_?token", re.IGNORECASE)),
    ("tokens", re.compile(r"token", re.IGNORECASE)),
    ("calls", re.compile(r"request", re.IGNORECASE)),
)


class RefusedRate(NamedTuple):
    """The rate that a refusal means, by the unit that it counts, and what is known about it and others (rule V8)."""

    unit: str
    readings: tuple[Reading, ...] = ()


class Subject(NamedTuple):
    """`scope` is model, family or account; `family` a glob over names of models."""

    scope: str
    family: str = ""


def subject_of(dialect: str, headers: Mapping[str, str], body: ErrorBody, model: str) -> Subject | None:
    """Whom a refusal is about; None where it does not say."""
    message = body.message
    if _AT_ONCE.search(message):
        return None
    if _ALL_MODELS.search(message):
        return Subject("account")
    if (found := _of_quota(body)) is not None:
        return found
    named = next((name for match in _FOR_MODEL.finditer(message) if (name := _name_in(match))), "")
    by_time = bool(_BY_TIME.search(message)) or any(window.used_up for window in windows_of(headers))
    if dialect == "anthropic":
        return of_window(dialect, model) if named or by_time else None
    if named:
        return Subject("model")
    return of_window(dialect, model) if by_time else None


def rate_of(dialect: str, headers: Mapping[str, str], body: ErrorBody, now_wall_ms: int) -> RefusedRate | None:
    """The rate that a refusal means; None where it names none, or one that refills only by the day."""
    message = body.message
    names = body.fields.get("quotaid", []) + body.fields.get("quota_limit", [])
    if _AT_ONCE.search(message) or _BY_DAY.search(message) or any(PER_DAY.search(name) for name in names):
        return None
    readings = {each.unit: each for each in readings_of(dialect, headers, now_wall_ms) if each.per_ms <= HOUR_MS}
    told = _told_rates(message) or _told_quotas(names, body, now_wall_ms)
    empty = [unit for unit, each in readings.items() if not each.remaining and each.reset_ms <= HOUR_MS]
    unit = next(iter(told), empty[0] if len(empty) == 1 else "")
    if not unit:
        return None
    known = {name: each for name, each in told.items() if each is not None}
    return RefusedRate(unit, tuple({**known, **readings}.values()))


def _told_rates(message: str) -> dict[str, Reading | None]:
    """The rate that a sentence is about, with its limit if it names that."""
    found = _RATE.search(message)
    if found is None:
        return {}
    if found["short"]:
        unit = _SHORT[found["short"].upper()]
    elif not found["what"].lower().startswith("token"):
        unit = "calls"
    else:
        unit = _PARTS.get((found["part"] or "").lower(), "tokens")
    amounts = _AMOUNTS.search(message, found.end()) or _LIMIT_OF.search(message[: max(found.start("what"), 0)])
    if amounts is None or "sec" in found[0].lower():
        return {unit: None}
    limit = int(amounts["limit"].replace(",", ""))
    used = min(int(amounts.groupdict().get("used", str(limit)).replace(",", "")), limit)
    return {unit: Reading(unit, limit, limit - used, 0, _MINUTE_MS) if limit else None}


def _told_quotas(names: list[str], body: ErrorBody, now_wall_ms: int) -> dict[str, Reading | None]:
    """Gemini's quotas by the minute that a refusal names, each with its limit beside it."""
    values = body.fields.get("quotavalue", [])
    found: dict[str, Reading | None] = {}
    for number, name in enumerate(names):
        unit = next((unit for unit, words in _QUOTA_UNITS if words.search(name)), "")
        if not unit or not PER_MINUTE.search(name):
            continue
        value = values[number] if len(values) == len(names) else ""
        limit = int(value) if value.isdecimal() and len(value) <= 12 else 0
        wait_ms = body_wait(body, now_wall_ms) or 0
        found[unit] = Reading(unit, limit, 0, wait_ms, _MINUTE_MS) if limit else None
    return found


def of_hint(provider: str, hint: PoolHint, model: str) -> Subject | None:
    """Whom a window is about that the headers of a good answer say is used up."""
    if hint.what != "usage":
        return of_window(dialect_of(provider), model)
    family = family_of_window(hint.source, model)
    return Subject("family", family) if family else Subject("account")


def of_window(dialect: str, model: str) -> Subject | None:
    """Whom a window of requests or tokens by time is about, as this provider counts them; None: unknown."""
    if dialect == "anthropic":
        family = family_of(model)
        return Subject("family", family) if family else Subject("model")
    return Subject("model") if dialect in _BY_MODEL else None


def _of_quota(body: ErrorBody) -> Subject | None:
    """Gemini names its quotas: `GenerateRequestsPerMinutePerProjectPerModel`, with the model beside it."""
    names = body.fields.get("quotaid", []) + body.fields.get("quota_limit", [])
    if names and (body.first("model") or any(_PER_MODEL.search(name) for name in names)):
        return Subject("model")  # the one that was asked for, whatever its name is there
    if any(_PER_ACCOUNT.search(name) for name in names):
        return Subject("account")
    return None


def _name_in(match: re.Match[str]) -> str:
    """The model that a sentence names, or nothing."""
    name = (match[1] or match[2] or match[3] or "").rstrip(".:,")
    return "" if name.lower() in _NO_MODEL else name
