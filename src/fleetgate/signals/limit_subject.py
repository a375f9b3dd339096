"""The subject of a rate limit, if the provider names it: one model, the models of a family, or the whole account.

A refusal that says nothing of the kind, or that speaks of calls at once, names no model: then the gate decides by
its own pools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from fleetgate.signals.error_bodies import ErrorBody
from fleetgate.signals.provider_vocabulary import dialect_of, family_of, family_of_window
from fleetgate.signals.rate_limit_headers import PoolHint, windows_of

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
        "your",
        "this",
        "the",
        "organization",
        "organisation",
        "project",
        "account",
        "user",
        "key",
        "api",
        "model",
        "metric",
    )
)
_BY_TIME = re.compile(r"\bper (?:second|min|minute|hour|day)\b|\b[IO]?[RT]P[MDS]\b", re.IGNORECASE)
_PER_MODEL = re.compile(r"per_?(?:base_?)?model", re.IGNORECASE)
_PER_ACCOUNT = re.compile(r"per_?(?:project|user|organization|consumer)", re.IGNORECASE)
_BY_MODEL = frozenset(("openai", "azure", "groq"))  # whose windows in headers are those of one model


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
