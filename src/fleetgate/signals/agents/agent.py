"""The base class of all agents: the questions that can be asked about one, and the reports that it answers with.

`signals.classify_process` feeds an agent's output line by line and asks. In record mode every line of stdout is a
record; what it reports is one of five things:

| report | meaning | it stands |
| --- | --- | --- |
| ACTIVITY | the model answered or a tool ran | for good |
| REMAINS | a tool failed, or was broken off by an error before it: activity, but no going on | for good |
| RETRY | a call was refused and will be made again | until the next activity |
| ERROR | a call or the whole run failed | until the run goes on to a good end; of two, the last |
| DONE | the agent says that it is done, and well | for good |

The rule (S2): an agent speaks for itself only through its error records, or, where it prints text, through whole
lines of a shape that is its own, in the place where it prints them. What tools, files and models say is never looked
into: a record of another type is not decoded further than its type.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from fleetgate.signals.agents.model_aliases import named, spoken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, TypeVar

    from fleetgate.core.model_names import Model
    from fleetgate.signals.outcome import Outcome

    T = TypeVar("T")

ACTIVITY = "activity"
REMAINS = "remains"
RETRY = "retry"
ERROR = "error"
DONE = "done"

# Of a call that is being made again, a shorter wait is the agent's own, and no hint from the provider.
LONG_MS = 60_000

_TYPE = b'{"type":"'
_SESSION_CHARS = 128


class AgentReport(Struct, frozen=True):
    """The report of one record."""

    what: str = ""  # ACTIVITY, REMAINS, RETRY, ERROR, DONE or nothing
    outcome: Outcome | None = None  # of RETRY and ERROR
    session: str = ""


ACTIVE = AgentReport(ACTIVITY)
GOOD_END = AgentReport(DONE)


class Context(Struct):
    """What an agent may need to know to understand its own words."""

    model: str  # `provider/model` from its command line, or nothing
    now_wall_ms: Callable[[], int]

    @property
    def provider(self) -> str:
        return self.model.partition("/")[0].partition("@")[0]

    @property
    def model_name(self) -> str:
        return self.model.partition("/")[2]


class AgentEnd(Struct):
    """How a process ended, and the last lines of its output, without colours; empty lines are left out."""

    exit_code: int | None
    signal: int | None
    out: list[str]
    err: list[str]
    raw_err: str  # the end of stderr as it was, for records that span lines


class Agent:
    """One agent. The base class reports nothing."""

    name = ""
    model_flags: tuple[str, ...] = ()
    model_variables: tuple[str, ...] = ()
    provider = ""  # what a bare model name means; of an agent that knows only one provider
    address_variables: tuple[str, ...] = ()  # with one of them it calls another provider than its own
    spellings: tuple[tuple[str, str], ...] = ()  # of providers that it calls otherwise than we do: ours, its own
    exit_0_is_good = True  # False: it exits 0 even after giving up
    says_done = False  # whether its last record is DONE, after a good end
    tells_retries_in_text = False  # whether `retry_in_text` finds anything
    # What calls no model: as its first argument, or (help) as its last; and its commands that only manage something.
    version_flags: tuple[str, ...] = ("--version",)
    help_flags: tuple[str, ...] = ("--help", "-h")
    managing_commands: frozenset[str] = frozenset()
    # How it says that the session it should resume is not there.
    stale: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<agent {self.name}>"

    @property
    def resumes(self) -> bool:
        """Whether its sessions can be resumed."""
        return bool(self.stale)

    # --- its command line

    def option(self, args: Sequence[str], *names: str) -> str | None:
        """The value of the last of these options in the agent's own arguments, or None."""
        found = None
        for index, word in enumerate(args):
            if word == "--":
                break
            name, equals, value = word.partition("=")
            if name in names:
                found = value if equals else args[index + 1] if index + 1 < len(args) else ""
        return found

    def said_model(self, args: Sequence[str], environ: Mapping[str, str]) -> str | None:
        """The model that its arguments or its environment name, in its own words; None where they name none."""
        value = self.option(args, *self.model_flags)
        if value is not None:
            return value
        return next((environ[name] for name in self.model_variables if environ.get(name)), None)

    def kept_model(self, args: Sequence[str], environ: Mapping[str, str], folder: str) -> str | None:
        """The model that the files of its own settings name, for a start in that folder."""
        return None

    def sent_elsewhere(self, args: Sequence[str], environ: Mapping[str, str], folder: str) -> str:
        """What of its settings sends its calls past the base URL in its environment; "" where nothing does."""
        return ""

    def model_named(self, said: str, args: Sequence[str], environ: Mapping[str, str]) -> str:
        """`provider/model` of what `said_model` found; "" where that does not tell."""
        return named(said, self.provider)

    def with_model(self, args: Sequence[str], model: Model, environ: Mapping[str, str]) -> list[str] | None:
        """Its arguments with this model in place of theirs; None where that cannot be said with arguments."""
        value = spoken(model) if self.provider else f"{self.spelled(model.provider)}/{model.name}"
        words = list(args)
        end = words.index("--") if "--" in words else len(words)
        found = False
        for index in range(end):
            name, equals, _ = words[index].partition("=")
            if name not in self.model_flags:
                continue
            found = True
            if equals:
                words[index] = f"{name}={value}"
            elif index + 1 < len(words):
                words[index + 1] = value
        if found:
            return words
        at = self.model_place(words)
        return None if at is None else [*words[:at], self.model_flags[-1], value, *words[at:]]

    def spelled(self, provider: str) -> str:
        """What it calls a provider."""
        return next((own for ours, own in self.spellings if ours == provider), provider)

    def model_place(self, args: Sequence[str]) -> int | None:
        """Where in its arguments a flag for the model can be put; None where this call takes none."""
        return 0

    def calls_no_model(self, args: Sequence[str]) -> bool:
        """Whether a call with these arguments only prints or manages something (`--version`, `login`)."""
        if not args:
            return False
        first, last = args[0], args[-1]
        prints = first in self.version_flags or first in self.help_flags or last in self.help_flags
        return prints or first in self.managing_commands

    # How many of its own helpers run at once: a variable that says so.
    subagents_variable = ""

    def with_subagents(self, args: Sequence[str], environ: Mapping[str, str], most: int) -> list[str]:
        """Its arguments with one that limits its helpers, where it takes one; what its user says stays."""
        return list(args)

    def mode(self, args: Sequence[str]) -> str:
        """How it prints: "stream" is a record for each step, "single" one record at the end, "" is text."""
        return ""

    def resumes_in(self, args: Sequence[str]) -> bool:
        """Whether these arguments resume a session."""
        return False

    def resumed(self, args: Sequence[str], session: str) -> list[str] | None:
        """Its arguments with those that resume a session; None where it cannot, or they say so already."""
        return None

    # --- its output

    def record(self, line: bytes, context: Context) -> AgentReport | None:
        """What a line of stdout tells, in record mode."""
        return None

    def notice(self, err: list[str], context: Context) -> Outcome | None:
        """In record mode, what the last lines of stderr say about a call that is being made again."""
        return None

    def retry_in_text(self, out: list[str], err: list[str], context: Context) -> Outcome | None:
        """In text mode, the refusal of a call that the last lines say is being made again."""
        return None

    def answers_in_text(self, out: list[str]) -> int:
        """In text mode, how many answers of a model these lines tell of, where they do."""
        return 0

    def last_words(self, end: AgentEnd, context: Context) -> Outcome | None:
        """What the text at the end says about a failure."""
        return None

    def by_exit(self, exit_code: int) -> Outcome | None:
        """What an exit code alone says, where this agent has codes of its own."""
        return None

    def session_in(self, start: str) -> str:
        """The session id in the start of stderr, where the agent prints it as text."""
        return ""

    # --- the files that it writes, for one that ran on a terminal

    def session_files(self, environ: Mapping[str, str], folder: str, since_wall_ms: int) -> Iterator[str]:
        """The files of its sessions in that working directory that may have been written since then."""
        return iter(())

    def own_folder(self, environ: Mapping[str, str], variable: str, name: str) -> str:
        """Where it keeps its things: what the variable says, else in the home folder; empty if there is none."""
        home = environ.get("HOME", "")
        return environ.get(variable) or (f"{home}/{name}" if home.startswith("/") else "")

    def kept(self, line: bytes, context: Context) -> AgentReport | None:
        """What a record of such a file tells."""
        return None

    # --- for them to use

    def outcome(
        self,
        kind: str,
        tag: str,
        seen: str,
        context: Context | None = None,
        *,
        family: str = "",
        wait_ms: int | None = None,
    ) -> Outcome:
        """An outcome by a rule of this agent; with a context, its wait is looked for in what was seen."""
        from fleetgate.signals import outcome as made

        if wait_ms is None and context is not None and kind not in (made.AUTH, made.LOCAL_ERROR):
            from fleetgate.signals.wait_times import find_wait

            wait_ms = find_wait(seen, context.now_wall_ms())
        return made.outcome(kind, f"{self.name}.{tag}", seen, wait_ms=wait_ms, family=family)

    def by_rules(self, rules: tuple[Rule, ...], text: str, context: Context, family: str = "") -> Outcome | None:
        """The outcome of the first rule whose pattern the text starts with."""
        import re

        plain = text.replace("’", "'").strip()
        for kind, tag, pattern in rules:
            if re.match(pattern, plain, re.IGNORECASE | re.DOTALL):
                return self.outcome(kind, tag, text, context, family=family if kind == "usage_window" else "")
        return None

    def by_status(
        self,
        provider: str,
        status: int,
        body: str,
        context: Context,
        *,
        headers: dict[str, str] | None = None,
        seen: str = "",
    ) -> Outcome:
        """The outcome of a response that the agent reports, by the rules for responses."""
        from fleetgate.signals.classify_http import classify_response
        from fleetgate.signals.outcome import evidence_of

        told = classify_response(provider, status, headers or {}, body, context.now_wall_ms(), context.model_name)
        evidence = evidence_of(seen) if seen else told.evidence
        return msgspec.structs.replace(told, rule=f"{self.name}.{told.rule}", evidence=evidence)


if TYPE_CHECKING:
    Rule = tuple[str, str, str]  # kind, tag, and how the agent's message starts


def type_of(line: bytes) -> bytes:
    """The type of a record; empty for a line that is none. All agents print it first."""
    if line.startswith(_TYPE):
        end = line.find(b'"', 9, 80)
        return line[9:end] if end > 0 else b""
    if line[:1] == b"{":
        found = decode(line, _Typed)
        return found.type.encode() if found is not None else b""
    return b""


class _Typed(Struct):
    type: str = ""


def decode(line: bytes | str, shape: type[T]) -> T | None:
    """A record as the shape that matters of it; None where it is not of that shape."""
    try:
        return msgspec.json.decode(line, type=shape)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def session_id(value: object) -> str:
    """A session id, if it can be one: it becomes an argument of the next run."""
    text = value if isinstance(value, str) else ""
    good = 0 < len(text) <= _SESSION_CHARS and text[0] != "-" and text.isascii()
    return text if good and text.replace("-", "").replace("_", "").isalnum() else ""


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""
