"""The session of an agent that a call belongs to, by the headers with which agents tell their sessions apart (rule W7).

Helpers of one Claude Code or Codex session send the id of that session. A header comes from the client, so it is not
trusted: a long id, or one with unusual characters, is known by its hash.
"""

from __future__ import annotations

from hashlib import blake2b

# The first that is there counts; the last two are what older versions send.
SESSION_HEADERS = (
    b"x-claude-code-session-id",
    b"session-id",  # Codex
    b"x-session-id",  # opencode
    b"x-opencode-session",
    b"session_id",
    b"conversation_id",
)
_LONGEST = 40  # a UUID has 36


def session_name(value: bytes) -> str:
    """An id as it is shown and counted; "" for an empty one."""
    text = value.strip().decode("latin-1")
    if len(text) <= _LONGEST and text.isascii() and text.replace("-", "").replace("_", "").isalnum():
        return text
    return blake2b(value, digest_size=12).hexdigest() if text else ""


def session_of(found: dict[bytes, bytes], own: bytes | None, run: str) -> str:
    """The session of a call: what `x-fleetgate-session` says, then the agent, else the run that it belongs to."""
    if own is not None:
        return session_name(own)
    for name in SESSION_HEADERS if found else ():
        value = found.get(name)
        if value is not None:
            return session_name(value)
    return run
