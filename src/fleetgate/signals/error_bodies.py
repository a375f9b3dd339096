"""The body of an error response, in one form for all providers: its codes, its message, its other useful fields.

Bodies come as JSON in a dozen shapes, as JSON cut off or wrapped into the message of another, as HTML of a gateway on
the way, as text, compressed, or not at all. Only the parts that a provider writes about the error are looked into, and
never what it quotes of the request (rule S2); only the first 64 KB; and no body makes this raise.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct

from fleetgate.signals.content_encoding import Undecodable, decoded
from fleetgate.signals.wait_times import find_wait, wait_from_duration, wait_from_reset, wait_from_seconds

BODY_BYTES = 65_536
_DEPTH = 10
_FIELDS = 400  # looked at in one body; the largest seen has about 40
_CODE_CHARS = 80

# Where providers put the error, and what they call its kind; all in lower case.
_CONTAINERS = frozenset(
    ("error", "errors", "details", "detail", "metadata", "violations", "quotadimensions", "headers", "innererror")
)
_CODES = frozenset(("type", "code", "status", "reason", "error_code", "errorcode", "error_type", "__type"))
_MESSAGES = frozenset(("message", "error", "detail", "msg", "error_message", "errormessage", "error_description"))
_WAITS: dict[str, Callable[[str, int], int | None]] = {  # in the order in which they are believed
    "resets_in_seconds": lambda value, _now: wait_from_seconds(value),
    "retrydelay": lambda value, _now: wait_from_duration(value),
    "quotaresetdelay": lambda value, _now: wait_from_duration(value),
    "retry_after_ms": lambda value, _now: wait_from_seconds(value, unit_ms=1),
    "resets_at": wait_from_reset,
    "quotaresettimestamp": wait_from_reset,
    "retry_after": wait_from_reset,
    "retry_after_seconds": wait_from_reset,
    "retry-after": wait_from_reset,
    "x-ratelimit-reset": wait_from_reset,
}
_OTHERS = frozenset(("quotaid", "quota_limit", "quotavalue", "model", "limit_source", "raw", *_WAITS))
_TELLING = _CODES | _MESSAGES | _OTHERS
_SCRAP = re.compile(r'"(\w[\w-]{1,24})"\s{0,9}:\s{0,9}(?:"((?:[^"\\]|\\.){0,4000})|(-?[0-9][0-9.]{0,20}))')
_TITLE = re.compile(r"<title[^>]{0,99}>([^<]{1,300})", re.IGNORECASE)
_TAG = re.compile(r"<[^>]{0,200}>")


class ErrorBody(Struct):
    """What a body says. `fields` has the values of its other telling fields, as text, by name in lower case."""

    shape: str = "empty"  # "json", "html", "text" or "empty"
    codes: list[str] = []  # in lower case, the outermost first, without the word "error"
    message: str = ""
    fields: dict[str, list[str]] = {}

    @property
    def code(self) -> str:
        """The code that says most: the first that is a word."""
        return next((code for code in self.codes if not code.isdigit()), "")

    def first(self, name: str) -> str:
        """The first value of a field, or nothing."""
        return self.fields.get(name, [""])[0]


def read_body(body: bytes | str, content_type: str = "", encoding: str = "") -> ErrorBody:
    """Whatever the body says about an error. `encoding` is its Content-Encoding."""
    text = _text_of(body, encoding).strip("\ufeff \t\r\n\x00")
    if not text:
        return ErrorBody()
    if text[0] in "{[":
        return _from_json(text)
    if text[0] == "<" or "html" in content_type.lower() or "<html" in text[:1000].lower():
        title = _TITLE.search(text)
        return ErrorBody("html", message=title[1] if title else _TAG.sub(" ", text[:4000]))
    if text.startswith(("data:", "event:")) and "{" in text:
        return _from_json(text[text.index("{") :])
    return ErrorBody("text", message=text[:4000])


def body_of(data: object) -> ErrorBody:
    """The same, of JSON that is already decoded."""
    found = ErrorBody("json")
    messages: list[str] = []
    for name, value in _told([data]):
        _put(found, messages, name, value)
    found.message = " ".join(dict.fromkeys(messages))[:4000]
    return found


def body_wait(body: ErrorBody, now_wall_ms: int) -> int | None:
    """The wait that a body names: in a field of its own, else in its message, else in what it quotes of another."""
    for name, read in _WAITS.items():
        for value in body.fields.get(name, ()):
            if (wait_ms := read(value, now_wall_ms)) is not None:
                return wait_ms
    if body.shape == "html":
        return None
    wait_ms = find_wait(body.message, now_wall_ms)
    return find_wait(body.first("raw"), now_wall_ms) if wait_ms is None else wait_ms


def decode_json(text: bytes | str) -> object:
    """Decoded JSON, or None where there is none."""
    try:
        found: object = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found


def _text_of(body: bytes | str, encoding: str) -> str:
    if isinstance(body, str):
        return body[:BODY_BYTES]
    start = body[:BODY_BYTES]
    if encoding:
        try:
            return decoded(start, encoding, BODY_BYTES)[0].decode("utf-8", "replace")
        except Undecodable:
            pass  # it may have been decoded on its way
    if start[:2] in (b"\x1f\x8b", b"\x78\x9c", b"\x78\x01", b"\x78\xda"):  # passed on as it came: gzip or deflate
        try:
            start = zlib.decompressobj(47).decompress(start, BODY_BYTES)
        except zlib.error:
            return ""
    return start.decode("utf-8", "replace")


def _from_json(text: str) -> ErrorBody:
    data = decode_json(text)
    return body_of(data) if data is not None else _from_scraps(text)


def _from_scraps(text: str) -> ErrorBody:
    """Of JSON that ends too early, the fields that are there. Its shape is still JSON: a provider spoke."""
    found = ErrorBody("json")
    messages: list[str] = []
    for scrap in _SCRAP.finditer(text):
        name, quoted, number = scrap[1].lower(), scrap[2], scrap[3]
        if name in _TELLING:
            value = number or decode_json(f'"{quoted}"') or quoted
            _put(found, messages, name, str(value))
    found.message = " ".join(dict.fromkeys(messages))[:4000]
    return found


def _put(found: ErrorBody, messages: list[str], name: str, value: str) -> None:
    if name in _CODES and value != "error" and len(value) <= _CODE_CHARS:
        found.codes.append(value.lower())
    elif name in _MESSAGES and value:
        messages.append(value)
    elif name in _OTHERS and value:
        found.fields.setdefault(name, []).append(value)


def _told(data: object) -> Iterator[tuple[str, str]]:
    """The telling fields of decoded JSON with their values as text, outermost first."""
    level, left = [data], _FIELDS
    for _ in range(_DEPTH):
        deeper: list[object] = []
        for name, value in _items(level):
            left -= 1
            if left < 0:
                return
            inner = value if isinstance(value, dict | list) else _json_within(name, value)
            if inner is not None:
                if name in _CONTAINERS or name in _MESSAGES or not name:
                    deeper.append(inner)
            elif name in _TELLING and isinstance(value, str | int | float) and not isinstance(value, bool):
                yield name, str(value)[:BODY_BYTES]
        level = deeper


def _items(level: list[object]) -> Iterator[tuple[str, object]]:
    """What is in objects by its name, what is in lists without one."""
    for item in level:
        if isinstance(item, dict):
            yield from ((str(name).lower(), value) for name, value in item.items())
        elif isinstance(item, list):
            yield from (("", value) for value in item[:50])


def _json_within(name: str, value: object) -> object:
    """Some gateways put the whole error of the provider, as text, into their own message."""
    if name not in _MESSAGES or not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return None
    inner = decode_json(value)
    return inner if isinstance(inner, dict | list) else None
