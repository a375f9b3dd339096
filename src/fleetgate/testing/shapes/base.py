"""What every wire shape can do, and the call that it reads."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from fleetgate.core.usage import Usage
from fleetgate.simulate.provider_rates import RateState, Shortage
from fleetgate.testing.server import SeenRequest

Json = dict[str, Any]

EVENT_STREAM = "text/event-stream; charset=utf-8"
JSON = "application/json"


class BadCall(Exception):
    """A request on a model route that is no model call; its text is a sentence for the client."""


class ModelCall(msgspec.Struct, frozen=True):
    """One model call as a shape read it. `texts` are the pieces in which the answer is streamed."""

    model: str
    id: str
    stream: bool = False
    texts: tuple[str, ...] = ()
    with_usage: bool = False  # OpenAI chat: usage as a last chunk
    as_array: bool = False  # Gemini without alt=sse: one JSON array, streamed
    max_tokens: int = 0  # 0: the client did not say
    usage: Usage = Usage()

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def reserved(self) -> Usage:
        """What rates count when the call starts: `max_tokens` instead of its output, which is not known yet."""
        return msgspec.structs.replace(self.usage, output=self.max_tokens or self.usage.output)


class Shape(ABC):
    """Reads a call; writes its answer whole or in pieces, and its errors, as the provider would."""

    name: ClassVar[str]
    id_field: ClassVar[str] = "x-request-id"

    @abstractmethod
    def owns(self, path: str) -> bool: ...

    def read(self, request: SeenRequest, id: str, texts: tuple[str, ...]) -> ModelCall:
        body = read_object(request)
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise BadCall("model: a model's name is needed")
        options = body.get("stream_options")
        with_usage = isinstance(options, dict) and options.get("include_usage") is True
        names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
        max_tokens = max(read_count(body.get(name)) for name in names)
        return ModelCall(model, id, body.get("stream") is True, texts, with_usage, max_tokens=max_tokens)

    @abstractmethod
    def whole(self, call: ModelCall) -> Json: ...

    @abstractmethod
    def opening(self, call: ModelCall) -> bytes:
        """What a stream says before its first piece of text."""

    @abstractmethod
    def piece(self, call: ModelCall, index: int) -> bytes: ...

    @abstractmethod
    def closing(self, call: ModelCall) -> bytes: ...

    @abstractmethod
    def error(self, status: int, sentence: str, id: str, retry_after_s: float | None = None) -> Json: ...

    @abstractmethod
    def error_event(self, call: ModelCall, pieces: int, status: int, sentence: str) -> bytes:
        """The same error, inside a stream that began with 200 and has sent so many pieces."""

    @abstractmethod
    def refusal(self, model: str) -> str:
        """The sentence of a 429 for too many calls at once."""

    @abstractmethod
    def rate_error(self, call: ModelCall, shortage: Shortage) -> Json:
        """The body of a 429 for a rate without room."""

    def rate_fields(self, states: list[RateState]) -> list[tuple[str, str]]:
        """The headers that report all rates."""
        return []

    def rate_retry_fields(self, wait_ms: int) -> list[tuple[str, str]]:
        """The headers of a 429 that say when the rate has room; whole seconds, rounded up."""
        return self.retry_fields(math.ceil(wait_ms / 1000))

    def stream_type(self, call: ModelCall) -> str:
        return EVENT_STREAM

    def retry_fields(self, retry_after_s: float | None) -> list[tuple[str, str]]:
        return [] if retry_after_s is None else [("retry-after", seconds(retry_after_s))]


def read_object(request: SeenRequest) -> Json:
    try:
        body = request.json()
    except msgspec.DecodeError as error:
        raise BadCall(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise BadCall("the body is nested too deeply") from None
    if not isinstance(body, dict):
        raise BadCall("the body is not a JSON object")
    return body


def read_count(value: Any) -> int:
    """A number of tokens that a client gave; 0 where it is none."""
    return value if type(value) is int and 0 < value <= 1 << 40 else 0


def dump(value: Any) -> bytes:
    return msgspec.json.encode(value)


def event(data: Any, name: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + dump(data) + b"\n\n"


def seconds(value: float) -> str:
    """Whole seconds where they say it all, as providers send them; decimals otherwise."""
    return str(int(value)) if math.isfinite(value) and value == int(value) else f"{value:g}"
