"""The conversation that a call belongs to: its session and its first message identify it (rule Z3).

Helpers of an agent have the session of the agent and begin with another message, so they are conversations of their
own. Of a message only the text counts: agents mark parts of it for the cache, and move the marks from call to call.
"""

from __future__ import annotations

import hmac
import json

import msgspec

_MOST_BYTES = 1 << 18  # of a first message
_PREFIX = 1024  # what counts of one that is longer
_decoder = json.JSONDecoder()


def conversation_of(salt: bytes, session: str, messages: msgspec.Raw, project: str = "") -> str:
    """A name that tells nothing; "" for a call that has neither a session nor messages.

    `project`: the only one of its client, who moves no conversation of another.
    """
    text = first_text(bytes(memoryview(messages)[:_MOST_BYTES]))
    if not session and not text:
        return ""
    said = f"conversation{project and '/'}{project}\0{session}\0{text}".encode("utf-8", "surrogatepass")
    return hmac.digest(salt, said, "sha256").hex()[:16]


def first_text(data: bytes) -> str:
    """The text of the first message in what may be a list of messages, or one."""
    text = data.decode("utf-8", "replace").lstrip()
    at = len(text) - len(text[1:].lstrip()) if text.startswith("[") else 0
    try:
        message, _ = _decoder.raw_decode(text, at)
    except (ValueError, RecursionError):
        return text[at : at + _PREFIX]
    return _text(message)


def _text(value: object) -> str:
    """All text in a message, of any API: its content, or the content's parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(_text(each) for each in value)
    if isinstance(value, dict):
        return "\n".join(_text(value[key]) for key in ("role", "content", "parts", "text") if key in value)
    return ""
