"""Any other command: a script, or an agent that is not known.

Only the last lines of its stderr count, only when it failed, and only those that as a whole are the shape of an error:
a status line, or the exception with which a program that uses a provider's library ends. So "429" as the number of a
line or of an issue is nothing. `none` is a command that is not to be read at all.
"""

from __future__ import annotations

import re

from fleetgate.signals.agents.agent import Agent, AgentEnd, Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetgate.signals.outcome import Outcome

_LAST_LINES = 20
_LINE_CHARS = 2000
_LIMITS = ("rate_limited", "usage_window", "quota", "overloaded")

# What may stand before it: `ERROR: `, `[error] `, `request failed: `. Without the space it is the number of a line, and
# after a plus or a minus a line of a diff.
_START = r"(?:[\w\[(<][^\"'`]{0,120}[:\])>=-] |(?:error|failed|got|received)(?: with)? )?"
_STATUS_LINE = (
    rf"{_START}(?:HTTP(?:/[0-9.]+)? ?|status(?: code)?:? ?|code:? ?)?"
    r"(?:429:? (?:Client Error: )?Too Many Requests|(?:HTTP(?:/[0-9.]+)?|status(?: code)?):? 429)"
    r"(?:[.!]|,? \(?request[ _-]id:? [\w.-]{1,80}\)?|,? for url:? [^\s\"'`]{1,400}"
    r"|,? retry(?:ing)? (?:in|after) [\w. ]{1,60})?"
)
_SENTENCE = (
    r"(?:(?:error|fatal|failed): )?(?:(?:api )?rate[ -]limit(?: was| has been)? (?:exceeded|reached)|too many requests)"
    r"(?:[.!]|[,.:;]? (?:please )?(?:try again|retry|wait)\b.{0,120})?"
)
# The last line of a Python program: `openai.RateLimitError: Error code: 429 - {'error': {…}}`.
_LIBRARY = (
    r"(openai|anthropic|groq|mistralai|google\.genai\.errors|google\.api_core\.exceptions)(?:\.[\w.]+)?\.\w+: "
    r"(?:Error code: )?([45][0-9]{2})\b[ .-]{0,3}(.*)"
)
_LITELLM = r"litellm\.(?:exceptions\.)?RateLimitError: .* - (.*)"


class Generic(Agent):
    name = "generic"

    def last_words(self, end: AgentEnd, context: Context) -> Outcome | None:
        for line in reversed(end.err[-_LAST_LINES:]):
            if len(line) > _LINE_CHARS:
                continue
            found = self._by_line(line, context)
            if found is not None:
                # One that was killed may have been about to say more; only a limit is worth believing.
                return found if end.exit_code is not None or found.kind in _LIMITS else None
        return None

    def _by_line(self, line: str, context: Context) -> Outcome | None:
        if re.fullmatch(_STATUS_LINE, line, re.IGNORECASE):
            return self.outcome("rate_limited", "status_line", line, context)
        if re.fullmatch(_SENTENCE, line, re.IGNORECASE):
            return self.outcome("rate_limited", "sentence", line, context)
        if found := re.fullmatch(_LIBRARY, line):
            return self.by_status(found[1], int(found[2]), _as_json(found[3]), context, seen=line)
        if found := re.fullmatch(_LITELLM, line):
            return self.by_status(context.provider, 429, _as_json(found[1]), context, seen=line)
        return None


class UnreadAgent(Agent):
    """Not read: only its exit code counts."""

    name = "none"


def _as_json(body: str) -> str:
    """A body that Python printed as a dict, as JSON; anything else as it is."""
    if not body.startswith("{"):
        return body
    import ast

    import msgspec

    try:
        return msgspec.json.encode(ast.literal_eval(body)).decode()
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return body


AGENT = Generic()
NONE = UnreadAgent()
