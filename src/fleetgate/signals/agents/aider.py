"""aider: `aider --message …`.

It prints text on stdout and exits 0 even after giving up, so its lines alone tell. After every answer of a model it
prints how many tokens it took; what is said about errors before the last such line is over, or was the model's prose.
An error is the exception of litellm (wrapped to the width of the terminal), then a sentence of aider's own.
"""

from __future__ import annotations

import re

from fleetgate.signals.agents.agent import Agent, AgentEnd, Context
from fleetgate.signals.agents.model_aliases import named
from fleetgate.signals.agents.settings_files import folders_up, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fleetgate.core.model_names import Model
    from fleetgate.signals.outcome import Outcome

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
# Errors whose status litellm does not know or does not tell (it makes an APIError of 529): their words say more.
_UNKNOWN = ("APIError", "InternalServerError")
_WORDS = (
    ("overloaded", r"\b(?:overloaded|(?:at|over|out of) capacity|high (?:demand|load))\b"),
    ("rate_limited", r"\brate[ _-]?limit|\btoo many requests\b"),
)
_LINES = 200
_ALIASES = {
    "4": "openai/gpt-4",
    "4o": "openai/gpt-4o",
    "mini": "openai/gpt-4o-mini",
    "4-turbo": "openai/gpt-4-turbo",
    "35turbo": "openai/gpt-3.5-turbo",
    "deepseek": "deepseek/deepseek-chat",
    "r1": "deepseek/deepseek-reasoner",
    "flash": "gemini/gemini-flash-latest",
    "flash-lite": "gemini/gemini-flash-lite-latest",
    "gemini": "gemini/gemini-pro-latest",
    "grok3": "xai/grok-3",
}
_OLD_FLAGS = frozenset(
    (
        *("--opus", "--sonnet", "--haiku", "--4", "-4", "--4o", "--mini", "--4-turbo", "--35turbo", "--deepseek"),
        *("--o1-mini", "--o1-preview"),
    )
)


class Aider(Agent):
    name = "aider"
    model_flags = ("--model",)
    model_variables = ("AIDER_MODEL",)
    exit_0_is_good = False
    version_flags = (
        *("--version", "--models", "--list-models", "--check-update", "--just-check-update", "--upgrade", "--update"),
        *("--install-main-branch", "--shell-completions", "--show-repo-map", "--show-prompts", "--exit"),
    )
    spellings = (
        ("google", "gemini"),
        ("vertex", "vertex_ai"),
        ("fireworks", "fireworks_ai"),
        ("together", "together_ai"),
        ("moonshotai", "moonshot"),
    )
    tells_retries_in_text = True

    def retry_in_text(self, out: list[str], err: list[str], context: Context) -> Outcome | None:
        """Its last line is `Retrying in 0.2 seconds...`, after the error."""
        if not out or not re.match(_AGAIN, out[-1]):
            return None
        return self.last_words(AgentEnd(None, None, out, err, ""), context)

    def answers_in_text(self, out: list[str]) -> int:
        return sum(re.match(_ANSWERED, line) is not None for line in out)

    def said_model(self, args: Sequence[str], environ: Mapping[str, str]) -> str | None:
        """Also by `--opus` and the like, which came before `--model`."""
        end = args.index("--") if "--" in args else len(args)
        old = next((word.lstrip("-") for word in reversed(args[:end]) if word in _OLD_FLAGS), "")
        return self.option(args, *self.model_flags) or old or super().said_model(args, environ)

    def kept_model(self, args: Sequence[str], environ: Mapping[str, str], folder: str) -> str | None:
        """By `.env` and `.aider.conf.yml`, of the folder, of its repository, and of the user."""
        for place in (*folders_up(folder), environ.get("HOME", "")):
            if not place:
                continue
            for name, key in ((".env", r"(?:export )?AIDER_MODEL="), (".aider.conf.yml", r"model:")):
                text = read_text(f"{place}/{name}")
                found = re.search(rf"(?m)^{key}[ \t]*([^\s#]+)", text) if text else None
                if found:
                    return found[1].strip("\"'")
        return None

    def model_named(self, said: str, args: Sequence[str], environ: Mapping[str, str]) -> str:
        end = args.index("--") if "--" in args else len(args)
        for index, word in enumerate(args[:end]):  # `--alias fast:gpt-4o-mini`
            name, equals, rest = word.partition("=")
            pair = rest if equals else args[index + 1] if index + 1 < len(args) else ""
            alias, colon, model = pair.partition(":")
            if name == "--alias" and colon and alias == said:
                said = model
        return named(_ALIASES.get(said.lower(), said))

    def with_model(self, args: Sequence[str], model: Model, environ: Mapping[str, str]) -> list[str] | None:
        end = args.index("--") if "--" in args else len(args)
        own = [word for word in args[:end] if word not in _OLD_FLAGS]
        return super().with_model([*own, *args[end:]], model, environ)

    def last_words(self, end: AgentEnd, context: Context) -> Outcome | None:
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
        if name in _UNKNOWN and (kind := _by_words(said)):
            return self.outcome(kind, name, seen, context)
        status = status or (500 if name == "APIError" else 0)
        if not status:
            return self.outcome("local_error", name or "exception", seen)
        # `AnthropicException - b'{…}'`
        body = said.partition(" - ")[2].strip()
        body = body[2:].rstrip("'\"") if body.startswith(("b'", 'b"')) else body
        return self.by_status(context.provider, status, body, context, seen=seen)


def _by_words(said: str) -> str:
    return next((kind for kind, pattern in _WORDS if re.search(pattern, said, re.IGNORECASE)), "")


def _since_the_last_answer(lines: list[str]) -> list[str]:
    for index in range(len(lines) - 1, -1, -1):
        if re.match(_ANSWERED, lines[index]):
            return lines[index + 1 :]
    return lines


AGENT = Aider()
