"""The agents that Fleetgate knows: how each is started, and what its output means (rules R1, R4, R9, S2).

| file | what is in it |
| --- | --- |
| `claude.py`, `opencode.py`, `codex.py`, `aider.py`, `gemini.py` | one agent each |
| `generic.py` | any other command; and `none`, which is not read at all |
| `agent.py` | the base class, and the reports that agents give to `signals.classify_process` |
| `detect.py` | which agent a command line starts, through whatever wrapper |
| `model_aliases.py` | the names of models, as agents say them and as caps name them |
| `settings_files.py` | the files in which agents keep their settings |
| `usage/` | what each agent reports about its own usage |

Which agent it is, and which model its own flag names, is asked before any child runs, on the way of every `fleetgate
run`. So these modules import next to nothing: what judges output (`outcome`, `wait_times`, `classify_http`) is
imported where it is used, and patterns are compiled when there is something to match.
"""

from __future__ import annotations

from importlib import import_module

from msgspec import Struct

from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import canonical, parse_model, shown
from fleetgate.signals.agents.detect import KNOWN, find_program, find_start
from fleetgate.signals.agents.model_aliases import same

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fleetgate.signals.agents.agent import Agent

NAMES = (*KNOWN, "generic", "none")
DEFAULT_MODEL = "default"  # as the name of a model: the one that an agent uses where it is told none


class Use(Struct, frozen=True):
    """A known agent that a command starts, and the model that it will use, as far as that can be told.

    `model` is `provider/model`, or "". `said` is the same in the agent's own words. `kept`: only the agent's settings
    file says so. `later`: a placeholder or a variable that is filled in when it starts.
    """

    agent: str
    model: str = ""
    said: str = ""
    kept: bool = False
    later: bool = False


def agent_for(argv: Sequence[str], override: str = "") -> Agent:
    """The agent that a command starts, or the one that `--classify` names."""
    if override and override not in NAMES:
        raise BadRequest(f"--classify {shown(override)}: valid is one of {', '.join(NAMES)}")
    return _agent(override or find_program(argv)[0] or "generic")


def use_of(argv: Sequence[str], environ: Mapping[str, str] | None = None, folder: str = "") -> Use | None:
    """The known agent that a command starts, with its model; None of any other command.

    By the agent's own flags, by its variables in `environ`, and by its settings: those of `folder`, then those of the
    user. Without `environ` only the flags are looked at.
    """
    start = find_start(argv, environ or {})
    if start is None:
        return None
    agent = _agent(start.name)
    said = agent.said_model(start.args, start.environ)
    kept = said is None
    if kept and environ is not None:
        said = agent.kept_model(start.args, start.environ, folder)
    if not said:
        return Use(start.name)
    later = "{" in said or "$" in said or "`" in said
    return Use(start.name, "" if later else agent.model_named(said, start.args, start.environ), said, kept, later)


def sent_elsewhere(argv: Sequence[str], environ: Mapping[str, str], folder: str = "") -> str:
    """What sends the calls of a known agent past the base URL that it is given; "" where nothing does."""
    start = find_start(argv, environ)
    return "" if start is None else _agent(start.name).sent_elsewhere(start.args, start.environ, folder)


def model_of(argv: Sequence[str], environ: Mapping[str, str] | None = None, folder: str = "") -> str | None:
    """The model that a known agent is told to use, or None: see `use_of`."""
    found = use_of(argv, environ, folder)
    return found.model or None if found is not None else None


def own_model(argv: Sequence[str], environ: Mapping[str, str], folder: str = "") -> str:
    """The model that a known agent uses if its command is run unchanged; "" where nothing tells.

    An agent that calls a single provider, and is told no model, uses its default: `anthropic/default`. So the caps of
    that provider count it.
    """
    use = use_of(argv, environ, folder)
    if use is None or use.model or use.later:
        return use.model if use is not None else ""
    start = find_start(argv, environ)
    assert start is not None
    agent = _agent(use.agent)
    moved = any(start.environ.get(name) for name in agent.address_variables)
    if not agent.provider or moved or agent.sent_elsewhere(start.args, start.environ, folder):
        return ""
    found = agent.model_named(DEFAULT_MODEL, start.args, start.environ)
    return found or f"{agent.provider}/{DEFAULT_MODEL}"


def calls_no_model(argv: Sequence[str]) -> bool:
    """Whether a command only prints or manages something: `claude --version`, `codex login`."""
    name, at = find_program(argv)
    return _agent(name or "generic").calls_no_model(argv[at + 1 :])


def spelled(argv: Sequence[str], provider: str) -> str:
    """What the agent that a command starts calls a provider."""
    name = find_program(argv)[0]
    return _agent(name).spelled(provider) if name else provider


def with_model(
    argv: Sequence[str], model: str, environ: Mapping[str, str], folder: str = "", *, add: bool = True
) -> tuple[list[str], str]:
    """A command that uses this model, and what was changed of what it said, in a few words.

    A command that uses it already, or whose program is not known, is left as it is; so is one of which nothing tells
    the model, unless it is to be added and can be. BadRequest where another model is named, and cannot be changed.
    """
    use = use_of(argv, environ, folder)
    if use is None or use.later or not (use.model or add):
        return list(argv), ""
    agent = _agent(use.agent)
    # One that knows a single provider may be sent to another by its address: then the names alone tell.
    if use.model and same(use.model, model, provider=not agent.provider):
        return list(argv), ""
    start = find_start(argv, environ)
    assert start is not None
    meant = parse_model(model)
    fits = start.at >= 0 and _calls(agent, use, meant.provider, start.environ)
    args = agent.with_model(start.args, meant, start.environ) if fits else None
    if args is not None:
        said = f"its {'settings say' if use.kept else 'command says'} {_short(use.said)}"
        changed = f"{agent.name} runs with {meant.name}, the model of its slot; {said}" if use.said else ""
        return [*argv[: start.at + 1], *args], changed
    if not use.model:
        return list(argv), ""
    raise BadRequest(
        f"{agent.name} is told to use {_short(use.said)}, and the slot is for {model}: name the same model, "
        f"or write {{model}} or {{name}} where its command names one"
    )


def can_use(argv: Sequence[str], model: str, environ: Mapping[str, str], folder: str = "") -> bool:
    """Whether a command can be run with this model: it can be told to, and calls the model's provider."""
    use = use_of(argv, environ, folder)
    if use is None or use.later:
        return True
    try:
        with_model(argv, model, environ, folder)
    except BadRequest:
        return False
    start = find_start(argv, environ)
    assert start is not None
    return bool(use.model) or _calls(_agent(use.agent), use, parse_model(model).provider, start.environ)


def _calls(agent: Agent, use: Use, provider: str, environ: Mapping[str, str]) -> bool:
    """Whether an agent calls this provider: any, its own, or where its address sends it."""
    own = parse_model(use.model).provider if use.model else agent.provider
    moved = any(environ.get(name) for name in agent.address_variables)
    return not agent.provider or moved or canonical(own) == canonical(provider)


def _agent(name: str) -> Agent:
    module = import_module(f"fleetgate.signals.agents.{'generic' if name == 'none' else name}")
    agent: Agent = module.NONE if name == "none" else module.AGENT
    return agent


def _short(said: str) -> str:
    """What a command or a file says, as a sentence can have it."""
    return shown(said)[1:-1]
