"""The fields of a call's body that are read (proxy/request_body.py)."""

from __future__ import annotations

from itertools import product
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct


class Fields(Struct):
    """All that is read of a body. What may be anything is left as it is."""

    model: str = ""
    max_tokens: msgspec.Raw = msgspec.Raw()
    max_completion_tokens: msgspec.Raw = msgspec.Raw()
    max_output_tokens: msgspec.Raw = msgspec.Raw()
    n: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    contents: msgspec.Raw = msgspec.Raw()
    generation_config: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="generationConfig")


class GeminiLimits(Struct):
    """What is read of Gemini's `generationConfig`."""

    max_tokens: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="maxOutputTokens")
    n: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="candidateCount")


# Servers written in Go read the names of members in any letter case. These are the others of `model`.
_OTHER_NAMES = ["".join(letters) for letters in product(*zip("model", "MODEL", strict=True))][1:]
_AnyCase = msgspec.defstruct(
    "_AnyCase",
    [(name, msgspec.Raw, msgspec.field(default=msgspec.Raw())) for name in _OTHER_NAMES],
    bases=(Fields,),
)
_others = attrgetter(*_OTHER_NAMES)
read_body_fields: Any = msgspec.json.Decoder(_AnyCase).decode  # returns Fields


def other_models(fields: Fields) -> list[bytes]:
    """The values of members that are called `model`, but in another letter case."""
    return [bytes(raw) for raw in _others(fields) if raw]


read_gemini_limits = msgspec.json.Decoder(GeminiLimits).decode
read_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
