"""The usage that a model's response reports: Anthropic, OpenAI Chat and Responses, Gemini, and servers like them.

A response is read while it passes by. Of a stream, only the events that mention usage are looked at, and they are
parsed at the end: providers repeat a running total, so the last one counts, and the first one fills the gaps (Anthropic
reports the input at the start and the output at the end). Of any other body as much is kept as a usual one has. Where
a body or an event is larger, its tail is kept and searched, since every API reports usage near the end.

What a provider sends is not trusted: numbers that cannot be counts are ignored, and memory stays bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from fleetgate.core.usage import PARTIAL, RESPONSE, Usage

MOST_BODY = 1 << 20  # bytes of a body, or of an event, that are kept whole
TAIL = 64 * 1024  # bytes that are kept of a larger one
_MOST_COUNT = 1 << 40  # tokens: a number above this is not a count
_WORD = b'"usage'  # also the start of "usageMetadata"
_NULL = b'"usage":null'  # OpenAI has this in all events but the last, if it has been asked for usage
_OBJECT = re.compile(rb'(?<!\\)"usage(?:Metadata)?"\s*:\s*(?=\{)')


class UsageReader:
    """Reads the usage out of one response. `stream`: it is a stream of server-sent events."""

    __slots__ = ("_cut", "_first", "_kept", "_last", "_size", "_stream")

    def __init__(self, *, stream: bool) -> None:
        self._stream = stream
        self._kept: list[bytes] = []  # a body, or an event that has not ended yet
        self._size = 0  # bytes in `_kept`
        self._cut = False  # `_kept` is only the tail of what came
        self._first: dict[str, int] = {}
        self._last = b""

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the response, decoded."""
        if not self._stream:
            self._keep(piece)
            return
        end = piece.rfind(b"\n") + 1
        if not end:
            self._keep(piece)
            return
        if self._kept:
            self._keep(piece[:end])
            events, cut = b"".join(self._kept), self._cut
            self._kept, self._size, self._cut = [], 0, False
            if _WORD in events:
                self._read_events(events, cut)
        elif piece.find(_WORD, 0, end) >= 0:
            self._read_events(piece[:end], False)
        if end < len(piece):
            self._keep(piece[end:])

    def skip(self) -> None:
        """Something of a stream is left out here: what comes next may begin inside an event."""
        self._kept, self._size, self._cut = [b""], 0, True

    def result(self, *, complete: bool) -> Usage | None:
        """The usage; None where the response reported none. `complete`: the response came to its end."""
        kept = b"".join(self._kept)
        if self._stream:
            if _WORD in kept:
                self._read_events(kept, self._cut)
            counts = self._first | _counts_of_event(self._last)
        else:
            counts = _counts_at_end(kept) if self._cut else _counts_of_body(kept)
        if not counts:
            return None
        return Usage(
            calls=1,
            input=counts.get("input", 0),
            cache_read=counts.get("cache_read", 0),
            cache_write=counts.get("cache_write", 0),
            output=counts.get("output", 0),
            cost=counts.get("cost"),
            source=RESPONSE if complete else PARTIAL,
        )

    def _keep(self, piece: bytes) -> None:
        self._kept.append(piece)
        self._size += len(piece)
        if self._size > MOST_BODY:
            tail = b"".join(self._kept)[-TAIL:]
            self._kept, self._size, self._cut = [tail], len(tail), True

    def _read_events(self, events: bytes, cut: bool) -> None:
        """Remember the events that report usage: the first one by its counts, the last one as it is."""
        if events.count(_WORD) == events.count(_NULL):
            return
        for number, field in enumerate(events.split(b"\n")):
            if field.count(_WORD) == field.count(_NULL) or _OBJECT.search(field) is None:
                continue
            if cut and number == 0:
                data = _object_at_end(field)
            else:
                name, _, data = field.partition(b":")
                if name.strip() != b"data":
                    continue
            if not self._first:
                self._first = _counts_of_event(data)
            else:
                self._last = data


class _Event(msgspec.Struct):
    """The parts of an event, or of a whole body, in which APIs report usage. Anything may be in them."""

    usage: Any = None
    message: Any = None  # Anthropic, in message_start
    response: Any = None  # OpenAI Responses, in response.completed; Gemini behind some gateways
    usage_metadata: Any = msgspec.field(default=None, name="usageMetadata")


_decode = msgspec.json.Decoder(_Event).decode
_decode_any = msgspec.json.Decoder().decode


def _counts_of_event(data: bytes) -> dict[str, int]:
    if not data:
        return {}
    try:
        event = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    for usage in (event.usage, _field(event.message, "usage"), _field(event.response, "usage")):
        if isinstance(usage, dict) and (counts := _counts(usage)):
            return counts
    metadata = event.usage_metadata or _field(event.response, "usageMetadata")
    return _gemini_counts(metadata) if isinstance(metadata, dict) else {}


def _counts_of_body(body: bytes) -> dict[str, int]:
    """The counts of a body that is not a stream of events. Gemini may stream one array of answers: the last counts."""
    if body.lstrip()[:1] != b"[":
        return _counts_of_event(body)
    try:
        answers = _decode_any(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _counts_at_end(body)
    for answer in reversed(answers):
        metadata = _field(answer, "usageMetadata")
        if isinstance(metadata, dict):
            return _gemini_counts(metadata)
    return {}


def _counts_at_end(text: bytes) -> dict[str, int]:
    return _counts_of_event(_object_at_end(text))


def _object_at_end(text: bytes) -> bytes:
    """A document that holds the last usage object of a text whose beginning is missing; nothing if there is none."""
    for found in reversed(list(_OBJECT.finditer(text))):
        end = _end_of_object(text, found.end())
        if end:
            return b"{" + text[found.start() : end] + b"}"
    return b""


def _end_of_object(text: bytes, start: int) -> int:
    """Where the object that starts here ends; 0 if it does not."""
    depth = 0
    for at, is_open in _braces(text, start):
        depth += 1 if is_open else -1
        if depth == 0:
            return at + 1
    return 0


def _braces(text: bytes, start: int) -> Iterator[tuple[int, bool]]:
    """The braces from here on that are not inside a string."""
    quoted = False
    at = start
    while at < len(text):
        char = text[at]
        if quoted and char == 0x5C:  # a backslash: the next character is not a quote
            at += 1
        elif char == 0x22:
            quoted = not quoted
        elif not quoted and char in (0x7B, 0x7D):
            yield at, char == 0x7B
        at += 1


def _counts(usage: dict[str, Any]) -> dict[str, int]:
    """Usage as Anthropic and OpenAI report it, and servers that are compatible with them.

    OpenAI's input includes what was read from a cache; Anthropic's does not.
    """
    details = usage.get("input_tokens_details") or usage.get("prompt_tokens_details")
    read = _first_of(
        _count(usage, "cache_read_input_tokens"),
        _count(details, "cached_tokens"),
        _count(usage, "prompt_cache_hit_tokens"),
    )
    written = _first_of(_count(usage, "cache_creation_input_tokens"), _count(details, "cache_write_tokens"))
    given = _first_of(_count(usage, "input_tokens"), _count(usage, "prompt_tokens"))
    counts = {
        "input": given,
        "cache_read": read,
        "cache_write": written,
        "output": _first_of(_count(usage, "output_tokens"), _count(usage, "completion_tokens")),
    }
    found = {name: value for name, value in counts.items() if value is not None}
    includes_cache = isinstance(details, dict) or "prompt_tokens" in usage
    if includes_cache and given is not None:
        found["input"] = max(given - (read or 0) - (written or 0), 0)
    cost = usage.get("cost")  # OpenRouter, in dollars
    if found and isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < 1e9:
        found["cost"] = round(cost * 1_000_000)
    return found


def _gemini_counts(metadata: dict[str, Any]) -> dict[str, int]:
    read = _count(metadata, "cachedContentTokenCount")
    prompt = _count(metadata, "promptTokenCount")
    tools = _count(metadata, "toolUsePromptTokenCount")
    answer = _count(metadata, "candidatesTokenCount")
    thoughts = _count(metadata, "thoughtsTokenCount")
    found: dict[str, int] = {}
    if prompt is not None:
        found["input"] = max(prompt - (read or 0), 0) + (tools or 0)
    if read is not None:
        found["cache_read"] = read
    if answer is not None or thoughts is not None:
        found["output"] = (answer or 0) + (thoughts or 0)
    return found


def _count(fields: Any, name: str) -> int | None:
    """A count of tokens; None where there is none, or something else."""
    value = _field(fields, name)
    return value if type(value) is int and 0 <= value <= _MOST_COUNT else None


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _first_of(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)
