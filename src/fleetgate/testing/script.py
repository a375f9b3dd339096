"""Scripts of the fake provider: faults for its next answers, and changes of its limit.

The rule: a script is checked as a whole before any of it is taken, so a bad one changes nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from fleetgate.core.usage import Usage

Seconds = Annotated[float, Meta(ge=0, le=3600)]
Status = Annotated[int, Meta(ge=200, le=599)]
Whole = Annotated[int, Meta(ge=0, le=1_000_000)]


class Fault(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the next `times` answers are instead of the ordinary one.

    A fault takes the place of the limit's decision. One that answers with an error (`status` of 400 and more) is
    like a refusal and never counts as in flight; every other one counts until its end.
    """

    status: Status | None = None
    body: Any = UNSET  # a string is sent as it is, anything else as JSON; unset: the shape's own error
    headers: dict[str, str] = {}
    retry_after_s: Seconds | None = None
    delay_s: Seconds = 0.0
    # The connection is cut: before any answer, after the response's head, or in the middle of its body.
    drop: Literal["", "before", "head", "middle"] = ""
    in_stream: bool = False  # the error of `status` follows a 200 as an event inside the stream
    times: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    on: Literal["call", "usage"] = "call"
    model: str = ""  # only calls of this model; others are answered as usual

    @property
    def counts(self) -> bool:
        return self.status is None or self.status < 400 or self.in_stream


class Script(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /_script`. What is left out stays as it is; `limit: null` takes the limit away."""

    faults: list[Fault] = []
    clear: bool = False  # forget the faults that are still to come
    limit: Whole | UnsetType | None = UNSET
    others: Whole | UnsetType = UNSET
    usages: list[Usage] = []  # the tokens of the next calls that are accepted, in this order


def read_script(body: bytes) -> Script:
    """Decode a script, or raise `msgspec.MsgspecError` with what is wrong and where."""
    return msgspec.json.decode(body, type=Script)


class Faults:
    """The faults still to come, in order; each is taken as often as its `times` says."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Fault, int]] = deque()

    def __len__(self) -> int:
        return sum(left for _, left in self._waiting)

    def add(self, fault: Fault) -> None:
        self._waiting.append((fault, fault.times))

    def clear(self) -> None:
        self._waiting.clear()

    def take(self, on: str, model: str = "") -> Fault | None:
        """The first fault meant for this request, used up by one."""
        for index, (fault, left) in enumerate(self._waiting):
            if fault.on == on and fault.model in ("", model):
                if left > 1:
                    self._waiting[index] = (fault, left - 1)
                else:
                    del self._waiting[index]
                return fault
        return None
