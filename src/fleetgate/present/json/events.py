"""Events of the log, as JSON (rule O7)."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple, get_args

from msgspec import Struct
from msgspec.structs import asdict, fields

from fleetgate.core import events as ev
from fleetgate.core.access.keys import AccessKey
from fleetgate.core.entities import BudgetRule, Reason, Spec
from fleetgate.core.model_names import parse_model
from fleetgate.core.usage import Usage
from fleetgate.present.json.state import process_json, reason_json
from fleetgate.present.json.usage import budget_amount, usage_json
from fleetgate.present.log_time import Json, LogTimes
from fleetgate.present.wall_time import utc
from fleetgate.signals.redaction import redact_text

TYPES = {cls.__struct_config__.tag: cls for cls in get_args(ev.Event)}


def event_json(seq: int, at: int, event: ev.Event, moments: LogTimes) -> Json:
    """An event as JSON (rule O7). A finished run also has its provider and account."""
    document: Json = {"seq": seq, "at": moments.utc(at), "type": event.__struct_config__.tag}
    if isinstance(event, ev.Queued):
        document["id"] = event.ticket.id
    document |= _fields(event, moments)
    if isinstance(event, ev.Released | ev.Reclaimed):
        document["provider"], document["account"] = _account(event.model)
    elif isinstance(event, ev.BudgetReached | ev.BudgetAdded):
        document |= {
            name: budget_amount(event.budget, getattr(event, name)) for name in ("used", "amount") if name in document
        }
    elif isinstance(event, ev.HourClosed):
        document["hour"] = moments.utc(event.hour * _HOUR_MS)
    elif isinstance(event, ev.FileLoaded):
        document["modified"] = utc(event.modified)  # wall time already
    return document


@lru_cache(1024)
def _account(model: str) -> tuple[str | None, str | None]:
    """The provider and the account of a model, if there is one."""
    parsed = parse_model(model) if model else None
    return (parsed.provider, parsed.account) if parsed else (None, None)


def _fields(record: Struct, moments: LogTimes) -> Json:
    """A record's fields with times and processes as in all JSON output; empty values are null."""
    document: dict[str, Any] = asdict(record)
    kinds = _kinds(type(record))
    for name in kinds.texts:
        if not document[name]:
            document[name] = None
    offset_ms = moments.offset_ms
    for name in kinds.times:
        value = document[name]
        document[name] = utc(value + offset_ms) if value else None
    for name in kinds.processes:
        document[name] = _process_fields(document[name])
    for name in kinds.others:
        value = document[name]
        if isinstance(value, Struct):
            document[name] = _nested(value, moments)
        elif isinstance(value, tuple) and value and isinstance(value[0], Struct):
            document[name] = [_nested(each, moments) for each in value]
        elif value == "":
            document[name] = None
    if document.get("command"):
        document["command"] = without_secrets(document["command"])
    document.pop("wake", None)  # an address that means something to its process alone
    return document


def _nested(record: Struct, moments: LogTimes) -> Json:
    if isinstance(record, Spec):
        return _spec_fields(record)
    if isinstance(record, Usage):
        return asdict(usage_json(record))  # type: ignore[arg-type]
    if isinstance(record, BudgetRule):
        name = f"{record.selector} {record.unit}/{record.per}"
        shown = {each: budget_amount(name, getattr(record, each)) for each in ("amount", "burst")}
        return _fields(record, moments) | shown
    document = asdict(reason_json(record, moments)) if isinstance(record, Reason) else _fields(record, moments)
    if isinstance(record, AccessKey):
        del document["digest"]  # a digest of a secret tells nothing that a reader could use
    return document


@lru_cache(1024)
def _spec_fields(spec: Spec) -> Json:
    """Most requests are like others: shared, and not to be changed."""
    return asdict(spec) | {"host": spec.host or None, "access_key": spec.access_key or None}


class _Kinds(NamedTuple):
    """The names of a record's fields, by how they are told; those that are told as they are have no place here."""

    texts: list[str]
    times: list[str]
    processes: list[str]
    others: list[str]


@cache
def _kinds(kind: type[Struct]) -> _Kinds:
    types = {field.name: field.type for field in fields(kind)}
    plain = {int, bool, float, str}
    return _Kinds(
        [name for name, type in types.items() if type is str and name not in _PROCESSES],
        [name for name in types if name in _TIMES],
        [name for name in types if name in _PROCESSES],
        [name for name, type in types.items() if type not in plain and name not in _TIMES | _PROCESSES],
    )


@lru_cache(1024)
def _process_fields(value: str) -> Json | None:
    process = process_json(value)
    return None if process is None else asdict(process)


_HOUR_MS = 3_600_000
_TIMES = frozenset(
    (
        *("until", "since", "resets_at", "queued_at", "expires_at", "ends_at", "stalled_at", "renew_by"),
        *("not_before", "created_at"),
    )
)
_PROCESSES = frozenset(("holder", "child", "bound"))


@lru_cache(4096)
def without_secrets(command: str) -> str:
    """Commands of older versions may have secrets in them; newer ones do not."""
    return redact_text(command)
