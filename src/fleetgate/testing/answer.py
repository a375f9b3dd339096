"""How the fake provider answers one call: whole, in pieces, with an error, or with a scripted fault.

The rule: these functions only write; the count is kept by the caller, around them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs

from fleetgate.core.usage import Usage
from fleetgate.simulate.provider_rates import Shortage
from fleetgate.testing.script import Fault
from fleetgate.testing.server import Reply
from fleetgate.testing.shapes import ModelCall, Shape
from fleetgate.testing.shapes.base import JSON

Fields = list[tuple[str, str]]

NO_FAULT = Fault()


class Generation:
    """How much of an answer exists so far: the pieces, of which each takes a while."""

    def __init__(self, call: ModelCall, draw_delay_s: Callable[[], float]) -> None:
        self._call = call
        self._draw_delay_s = draw_delay_s
        self.pieces = 0
        self.complete = False

    async def wait_for_piece(self) -> None:
        await nap(self._draw_delay_s())
        self.pieces += 1

    @property
    def usage(self) -> Usage:
        """What has been used so far: the input, and the output as far as it exists."""
        usage = self._call.usage
        if self.complete:
            return usage
        return structs.replace(usage, output=usage.output * self.pieces // max(len(self._call.texts), 1))


async def send_json(reply: Reply, status: int, value: Any, fields: Fields | None = None) -> None:
    await reply.send(status, msgspec.json.encode(value), [("Content-Type", JSON), *(fields or [])])


async def send_error(
    reply: Reply, shape: Shape, id: str, status: int, sentence: str, fields: Fields, retry_after_s: float | None = None
) -> None:
    """The provider's own error of this status."""
    value = shape.error(status, sentence, id, retry_after_s)
    await send_json(reply, status, value, [*shape.retry_fields(retry_after_s), *fields])


async def send_shortage(reply: Reply, shape: Shape, call: ModelCall, shortage: Shortage, fields: Fields) -> None:
    """The provider's own refusal at a rate."""
    await send_json(reply, 429, shape.rate_error(call, shortage), [*shape.rate_retry_fields(shortage.wait_ms), *fields])


async def send_answer(
    reply: Reply, shape: Shape, call: ModelCall, fault: Fault, fields: Fields, generation: Generation
) -> None:
    """The ordinary answer, or what the fault makes of it."""
    if fault.drop == "before":
        reply.drop()
    elif fault.body is not msgspec.UNSET and not fault.in_stream:
        await _send_body(reply, fault.status or 200, fault, fields)
    elif call.stream or fault.in_stream:
        await _stream(reply, shape, call, fault, fields, generation)
    else:
        generation.complete = True
        body = msgspec.json.encode(shape.whole(call))
        await _send_or_cut(reply, fault.status or 200, body, [("Content-Type", JSON), *fields], fault)


async def send_fault(reply: Reply, shape: Shape, id: str, fault: Fault, fields: Fields) -> None:
    """A scripted error: the given body, else the provider's own of that status."""
    assert fault.status is not None
    if fault.drop == "before":
        reply.drop()
    elif fault.body is not msgspec.UNSET:
        await _send_body(reply, fault.status, fault, [*shape.retry_fields(fault.retry_after_s), *fields])
    else:
        body = msgspec.json.encode(shape.error(fault.status, _scripted(fault), id, fault.retry_after_s))
        fields = [("Content-Type", JSON), *shape.retry_fields(fault.retry_after_s), *fields]
        await _send_or_cut(reply, fault.status, body, fields, fault)


async def _send_body(reply: Reply, status: int, fault: Fault, fields: Fields) -> None:
    text = fault.body
    body = text.encode() if isinstance(text, str) else msgspec.json.encode(text)
    kind = [] if any(name.lower() == "content-type" for name, _ in fields) else [("Content-Type", _kind(body))]
    await _send_or_cut(reply, status, body, [*kind, *fields], fault)


async def _send_or_cut(reply: Reply, status: int, body: bytes, fields: Fields, fault: Fault) -> None:
    if fault.drop:
        await reply.send_part(status, body, fields, 0 if fault.drop == "head" else 0.5)
    else:
        await reply.send(status, body, fields)


async def _stream(
    reply: Reply, shape: Shape, call: ModelCall, fault: Fault, fields: Fields, generation: Generation
) -> None:
    await reply.start(200, [("Content-Type", shape.stream_type(call)), *fields])
    if fault.drop == "head":
        reply.drop()
        return
    await reply.write(shape.opening(call))
    broken = fault.in_stream or fault.drop == "middle"
    pieces = len(call.texts) // 2 if broken else len(call.texts)
    for index in range(pieces):
        await generation.wait_for_piece()
        await reply.write(shape.piece(call, index))
    if fault.drop == "middle":
        reply.drop()
        return
    if fault.in_stream:
        await reply.finish(_error_event(shape, call, pieces, fault))
        return
    generation.complete = True
    await reply.finish(shape.closing(call))


def _error_event(shape: Shape, call: ModelCall, pieces: int, fault: Fault) -> bytes:
    if isinstance(fault.body, str):
        return fault.body.encode()
    return shape.error_event(call, pieces, fault.status or 500, _scripted(fault))


def _scripted(fault: Fault) -> str:
    return f"This {fault.status} was scripted for a test."


def _kind(body: bytes) -> str:
    return JSON if body.lstrip()[:1] in (b"{", b"[") else "text/plain; charset=utf-8"


async def nap(delay_s: float) -> None:
    """Sleep, or do not even yield: an answer without delay leaves in the same turn of the loop."""
    if delay_s > 0:
        await asyncio.sleep(delay_s)
