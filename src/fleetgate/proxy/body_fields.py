"""The fields of a call's body that are read (proxy/request_body.py)."""

from __future__ import annotations

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


read_body_fields = msgspec.json.Decoder(Fields).decode
read_gemini_limits = msgspec.json.Decoder(GeminiLimits).decode
read_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
