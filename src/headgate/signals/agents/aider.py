"""aider: `aider --message …`.

It prints text on stdout and exits 0 even after giving up, so its lines alone tell. After every answer of a model it
prints how many tokens it took; what is said about errors before the last such line is over, or was the model's prose.
An error is the exception of litellm (wrapped to the width of the terminal), then a sentence of aider's own.
"""

from __future__ import annotations

import re

from headgate.signals.agents.base import Agent, Context, End

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headgate.signals.outcome import Outcome

_ANSWERED = r"Tokens: [0-9.]+[km]? sent, (?:[0-9.]+[km]? [a-z ]+, )*[0-9.]+[km]? received\b"
_AGAIN = r"Retrying in [0-9.]+ seconds\.\.\."
_EXCEPTION = r"litellm\.(?:exceptions\.)?(\w+): (.*)"
_SENTENCES = {
    "The API provider has rate limited you. Try again later or check your quotas.": ("rate_limited", 429),
    "The API provider's servers are down or overloaded.": ("overloaded", 503),
    "The API provider is not able to authenticate you. Check your API key.": ("auth", 401),
    "The API provider timed out without returning a response. They may be down or overloaded.": ("server_error", 504),
}
_STATUSES = {
    "RateLimitError": 429,
    "AuthenticationError": 401,
    "PermissionDeniedError": 403,
    "InternalServerError": 500,
    "ServiceUnavailableError": 503,
    "BadGatewayError": 502,
    "Timeout": 504,
    "BudgetExceededError": 402,
    "BadRequestError": 400,
}
_LINES = 200


class Aider(Agent):
    name = "aider"
    model_flags = ("--model",)
    exit_0_is_good = False
    tells_retries_in_text = True

    def retry_in_text(self, out: list[str], err: list[str], context: Context) -> Outcome | None:
        """Its last line is `Retrying in 0.2 seconds...`, after the error."""
        if not out or not re.match(_AGAIN, out[-1]):
            return None
        return self.last_words(End(None, None, out, err, ""), context)

    def answers_in_text(self, out: list[str]) -> int:
        return sum(re.match(_ANSWERED, line) is not None for line in out)

    def last_words(self, end: End, context: Context) -> Outcome | None:
        lines = _since_the_last_answer(end.out[-_LINES:])
        told = [line for line in lines if line in _SENTENCES]
        starts = [index for index, line in enumerate(lines) if re.match(_EXCEPTION, line)]
        if starts:
            return self._exception(lines[starts[-1] :], told[-1] if told else "", context)
        if told:
            return self.outcome(_SENTENCES[told[-1]][0], "sentence", told[-1])
        return None

    def _exception(self, lines: list[str], sentence: str, context: Context) -> Outcome:
        text = []
        for line in lines:
            if line in _SENTENCES or re.match(_AGAIN, line):
                break
            text.append(line)
        seen = " ".join(text)
        found = re.match(_EXCEPTION, seen)
        name, said = (found[1], found[2]) if found else ("", "")
        status = _STATUSES.get(name) or (_SENTENCES[sentence][1] if sentence in lines else 0)
        if "Empty or invalid response from LLM endpoint" in said:  # litellm guesses from words in what it got
            return self.outcome("server_error", "invalid_response", seen)
        if not status:
            return self.outcome("local_error", name or "exception", seen)
        # `AnthropicException - b'{…}'`
        body = said.partition(" - ")[2].strip()
        body = body[2:].rstrip("'\"") if body.startswith(("b'", 'b"')) else body
        return self.by_status(context.provider, status, body, context, seen=seen)


def _since_the_last_answer(lines: list[str]) -> list[str]:
    for index in range(len(lines) - 1, -1, -1):
        if re.match(_ANSWERED, lines[index]):
            return lines[index + 1 :]
    return lines


AGENT = Aider()
