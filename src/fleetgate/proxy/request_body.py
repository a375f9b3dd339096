"""The body of a request: its model and its size are read from it, and it is passed on untouched.

A body is kept in memory, so that it can be sent again, up to HELD_BYTES, and all bodies together up to ALL_BYTES; of a
larger one the beginning is kept, the rest goes straight through, and it is sent once. A client that sends slowly holds
no slot meanwhile: a body that is kept is complete before the request gets into the queue.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote, unquote_to_bytes

import msgspec

from fleetgate.core.prices import Price
from fleetgate.core.usage import Size
from fleetgate.proxy.body_fields import Fields, other_models, read_body_fields, read_gemini_limits, read_members
from fleetgate.proxy.errors import ProxyRefusal
from fleetgate.signals.content_encoding import Undecodable, decoded

HELD_BYTES = 24 << 20
ALL_BYTES = 256 << 20
_START_BYTES = 1 << 20  # kept of a body for which there is no more room
_AT_ONCE_BYTES = 1 << 20  # a body up to this is handed over whole

# Quotes inside a prompt are escaped, so this finds a key of the request, if not always the outermost.
_MODEL = re.compile(rb'(?<!\\)"model"\s{0,20}:\s{0,20}"([^"\\]{1,200})"')
_ANY_CASE = re.compile(_MODEL.pattern, re.IGNORECASE)
_QUOTED = re.compile(rb'"([^"\\]{1,200})"')
_MODEL_SAID = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.){0,1000}")')
_MOST_SAID = 20  # places in a body that are tried: each try reads all of it
# The names of the limit for the output: OpenAI's three (one of them Anthropic's), and Gemini's.
_LIMIT = re.compile(
    rb'(?<!\\)"max(?:_completion_|_output_|_|Output)[tT]okens"\s{0,20}:\s{0,20}([0-9]{1,9})(?![0-9.eE])'
)
# Of the part of a form that has the model: the line with its name, and what follows that.
_NAMED_MODEL = re.compile(
    rb"[;\s]name(?:[ \t]*=[ \t]*\"?|\*[ \t]*=[ \t]*[\w-]*'[\w-]*')model\"?[ \t]*(?:;[^\r\n]{0,200})?\r?\n",
    re.IGNORECASE,
)
_PART_VALUE = re.compile(rb"(?:[^\r\n]{1,200}\r?\n){0,4}\r?\n([^\r\n]{1,200})\r?\n")
_MOST_NAMED = 20  # such lines that are looked at: files may have them, too
_PATH_MODEL = re.compile(
    r"/(?:models|deployments|tunedModels)/+(?P<model>[^/:?]+)(?=[:/])"
    r"|/model/+(?P<bedrock>[^/?]+)(?=/+(?:invoke|converse))",  # a name of Bedrock's has colons in it
    re.IGNORECASE,
)
_PLAIN = ":@!$&'()*+,;="  # what may be in a segment of a path without an escape, besides letters, digits and -._~


class BodySource(Protocol):
    """A client's request, as far as its body is read from it."""

    @property
    def body_complete(self) -> bool: ...
    def take_body(self) -> bytes: ...
    async def read_body(self) -> tuple[bytes, bool]: ...


# A picture or a sound counts as so many bytes of text: about 1,500 tokens, however many bytes its encoding has.
ATTACHMENT_BYTES = 6000
_MAY_HAVE_ATTACHMENTS = 64 << 10  # a smaller body is not searched for them
_ATTACHMENTS = (b"base64", b"inlineData", b"inline_data", b"input_audio")
MOST_OUTPUT = 1 << 20  # tokens: no model writes more, and a larger limit is no better
_MOST_ANSWERS = 128
_UNCOUNTED = (b"/count_tokens", b"/input_tokens", b"/count-tokens", b":countTokens", b"/count-tokens:rawPredict")


_NOTHING = msgspec.Raw()


class CallFields(NamedTuple):
    """What a body says about its call: the model, how much text it has, and the most that the answer may have."""

    model: str = ""
    body_bytes: int = 0
    max_tokens: int = 0  # 0: it does not say
    messages: msgspec.Raw = _NOTHING  # as they are written


class BodyMemory:
    """How much of all bodies is kept now."""

    def __init__(self, most: int = ALL_BYTES, each: int = HELD_BYTES) -> None:
        self.most = most
        self.each = each
        self.kept = 0


class RequestBody:
    """The body of one request."""

    __slots__ = ("_parts", "_size", "_source", "_store", "data", "kept", "whole")

    def __init__(self, source: BodySource, store: BodyMemory) -> None:
        self._source = source
        self._store = store
        self._parts: list[bytes] = []
        self._size = 0
        self.data = b""  # all of it, or its beginning
        self.whole = False  # its end has come
        self.kept = False  # all of it is here, and can be sent again

    def collect(self) -> bool:
        """Take in what has come. Returns whether that is enough: all of it, or as much as may be kept."""
        store, part = self._store, self._source.take_body()
        self._parts.append(part)
        self._size += len(part)
        store.kept += len(part)
        if self._source.body_complete:
            self.whole = self.kept = True
        elif self._size < store.each and (self._size < _START_BYTES or store.kept < store.most):
            return False
        self.data = part if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        return True

    def forget(self) -> None:
        """It is not needed any more."""
        self._store.kept -= self._size
        self._size, self.data = 0, b""
        self._parts.clear()

    async def read_more(self) -> bytes:
        """Wait for the next piece of a body whose end is still to come."""
        piece, more = await self._source.read_body()
        self.whole = not more
        return piece

    def is_small(self, data: bytes) -> bool:
        return self.kept and len(data) <= _AT_ONCE_BYTES


def read_call(body: RequestBody, content_type: bytes, encoding: bytes = b"") -> CallFields:
    """What a body says; the model is `unknown` where it cannot be read, and may be there. ProxyRefusal."""
    return read_fields(body.data, content_type, encoding, whole=body.whole)


def read_fields(data: bytes, content_type: bytes, encoding: bytes = b"", *, whole: bool = True) -> CallFields:
    """The same, of bytes that are all of a body or its beginning."""
    if not data:
        return CallFields()
    if encoding:
        try:
            data, all_of_it = decoded(data, encoding.decode("latin-1"), HELD_BYTES)
        except Undecodable:
            return CallFields("unknown", len(data))  # a call may be in it, and no call goes without a slot
        whole = whole and all_of_it
    if _is_form(content_type):
        found = _model_in_form(data)
        name = _text(found) or ("" if whole else "unknown")
        return CallFields(name, min(len(data), ATTACHMENT_BYTES))
    if not whole:
        found = _MODEL.search(data)
        return CallFields(_text(found) or "unknown", _text_bytes(data), _limit_in(data))
    data = _as_utf8(data)
    try:
        fields = read_body_fields(data)
    except RecursionError:
        raise ProxyRefusal(400, "bad_json", "the body is nested too deeply: its model cannot be read") from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # The provider says what is wrong with it, or reads it all the same: then it needs its slot.
        return CallFields(_model_in(data), _text_bytes(data), _limit_in(data))
    if others := other_models(fields):
        return CallFields(_the_model(fields.model, others), _text_bytes(data), _most_output(fields))
    messages = fields.messages or fields.input or fields.contents
    return CallFields(fields.model, _text_bytes(data), _most_output(fields), messages)


def _as_utf8(data: bytes) -> bytes:
    """The same text: some servers read JSON in UTF-16 and UTF-32, too."""
    if b"\0" not in data[:4]:
        return data
    return data.decode(json.detect_encoding(data), "replace").encode("utf-8", "replace")


def _the_model(model: str, others: list[bytes]) -> str:
    """The model of a body that has it under a name in another letter case, too. ProxyRefusal if they differ."""
    said = {_text(_QUOTED.fullmatch(other)) for other in others} | ({model} if model else set())
    if len(said) > 1:
        raise ProxyRefusal(400, "bad_json", "the body names several models, in different letter cases: send one")
    return said.pop() or "unknown"


def _model_in(data: bytes) -> str:
    """The model of a body that is not quite JSON; `unknown` of an object in which its name may have escapes."""
    if b'"model"' in data.lower() and (found := _MODEL.search(data) or _ANY_CASE.search(data)):
        return _text(found)
    return "unknown" if b"\\u00" in data and data.lstrip()[:1] == b"{" else ""


def _text(found: re.Match[bytes] | None) -> str:
    return found[1].decode("utf-8", "replace") if found else ""


def _limit_in(data: bytes) -> int:
    found = _LIMIT.search(data)
    return min(int(found[1]), MOST_OUTPUT) if found else 0


def _most_output(fields: Fields) -> int:
    """The most tokens that an answer may have, by any of the names that APIs have for it. For a number that is absurd,
    the most that any model writes; for anything else, 0.
    """
    answers, limits = fields.n, [fields.max_tokens, fields.max_completion_tokens, fields.max_output_tokens]
    if fields.generation_config:
        try:
            gemini = read_gemini_limits(fields.generation_config)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        else:
            answers, limits = gemini.n or answers, [*limits, gemini.max_tokens]
    most = max(_number(limit, MOST_OUTPUT) for limit in limits)
    return min(most * max(_number(answers, _MOST_ANSWERS), 1), MOST_OUTPUT)


def _number(raw: msgspec.Raw, most: int) -> int:
    digits = bytes(raw)
    if not digits.isdigit():
        return 0
    return min(int(digits), most) if len(digits) <= 9 else most


def _text_bytes(data: bytes) -> int:
    """The size of a body, in which a picture or a sound counts as little as it does for a model."""
    if len(data) < _MAY_HAVE_ATTACHMENTS or not any(word in data for word in _ATTACHMENTS):
        return len(data)
    strings = (part for part in data.split(b'"') if len(part) > ATTACHMENT_BYTES and b" " not in part[:500])
    return len(data) - sum(len(part) - ATTACHMENT_BYTES for part in strings)


def _is_form(content_type: bytes) -> bool:
    return content_type[:10].lower() == b"multipart/"


def _model_in_form(data: bytes) -> re.Match[bytes] | None:
    """The model that a form names. ProxyRefusal if it has several: providers differ in which of them counts."""
    lines = list(islice(_NAMED_MODEL.finditer(data), _MOST_NAMED + 1))
    found = [value for line in lines if (value := _PART_VALUE.match(data, line.end())) is not None]
    if len(found) > 1 or len(lines) > _MOST_NAMED:
        raise ProxyRefusal(400, "bad_form", "the form names several models: send one")
    return found[0] if found else None


def readable_path(path: bytes) -> bytes:
    """The path, without needless escapes if a model is found only then: providers read `%6dodels` as `models`."""
    if b"%" not in path or model_in_path(path.decode("latin-1")):
        return path
    plain = b"/".join(quote(unquote_to_bytes(part), safe=_PLAIN).encode() for part in path.split(b"/"))
    return plain if model_in_path(plain.decode("latin-1")) else path


def model_in_path(path: str) -> str:
    """The model that a path names, as Gemini's, Azure's and Bedrock's do, or nothing."""
    found = _PATH_MODEL.search(path)
    return found["model"] or unquote(found["bedrock"]) if found else ""


def without_encoding(data: bytes, encoding: bytes) -> bytes | None:
    """A body without its encoding; None where that cannot be had."""
    try:
        found, whole = decoded(data, encoding.decode("latin-1"), HELD_BYTES)
    except Undecodable:
        return None
    return found if whole else None


def with_model(data: bytes, model: str, content_type: bytes) -> bytes:
    """The same body with another model; everything else stays as it is, byte for byte."""
    if _is_form(content_type):
        found = _model_in_form(data)
        return data if found is None else _replaced(data, found, model.encode())
    said = msgspec.json.encode(model)
    data = _as_utf8(data)
    try:
        if read_body_fields(data).model == model:
            return data
    except (msgspec.MsgspecError, UnicodeDecodeError):  # as `read_call` has read it
        found = _MODEL.search(data)
        return data if found is None else _replaced(data, found, said[1:-1])
    for found in islice(_MODEL_SAID.finditer(data), _MOST_SAID):
        changed = _replaced(data, found, said)
        if read_body_fields(changed).model == model:  # the outermost, and if it is said twice, the one that counts
            return changed
    members = read_members(data)  # its name is written with escapes, or after many others
    members["model"] = msgspec.Raw(said)
    return msgspec.json.encode(members)


def path_with_model(path: bytes, model: str) -> bytes:
    """The same path with another model."""
    found = _PATH_MODEL.search(path.decode("latin-1"))
    return path if found is None else _replaced(path, found, quote(model, safe="").encode(), found.lastindex or 1)


def _replaced(data: bytes, found: re.Match[bytes] | re.Match[str], by: bytes, group: int = 1) -> bytes:
    return data[: found.start(group)] + by + data[found.end(group) :]


def clean_name(name: str) -> str:
    """The name of a model without what cannot be in a name that the gate knows."""
    return "".join(c if c.isalnum() or c in "._-+~/:" else "_" for c in name.removeprefix("models/")[:200]) or "unknown"


def is_counted(method: str, path: bytes) -> bool:
    """Whether a request may be a call of a model, which needs a slot; one that only counts tokens is none."""
    return method == "POST" and not path.endswith(_UNCOUNTED)


def call_size(fields: CallFields, price: Price | None) -> Size:
    """What the engine estimates the usage of a call from (rule V2)."""
    if price is None:
        return Size(fields.body_bytes, fields.max_tokens)
    return Size(fields.body_bytes, fields.max_tokens, price.input, price.cache_read, price.cache_write, price.output)
