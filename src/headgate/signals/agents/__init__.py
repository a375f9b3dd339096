"""The agents that Headgate knows: how each is started, and what its own words mean (SPEC R1, R4, R9, S2).

| file | what is in it |
| --- | --- |
| `claude.py`, `opencode.py`, `codex.py`, `aider.py`, `gemini.py` | one agent each |
| `generic.py` | any other command; and `none`, which is not read at all |
| `base.py` | what all of them have in common, and the few words in which they report to `signals.process` |
| `naming.py` | which agent a command line starts, through whatever wrapper |

Which agent it is, and which model its own flag names, is asked before any child runs, on the way of every `headgate
run`. So these modules import next to nothing: what judges output (`outcome`, `times`, `http`) is imported where it is
used, and patterns are compiled when there is something to match.
"""

from __future__ import annotations

from importlib import import_module

from headgate.core.errors import BadName, BadRequest
from headgate.core.names import parse_model, shown
from headgate.signals.agents.naming import KNOWN, find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.signals.agents.base import Agent

NAMES = (*KNOWN, "generic", "none")

_FAMILIES = {"claude": "anthropic", "gpt": "openai", "o1": "openai", "o3": "openai", "o4": "openai", "gemini": "google"}
_ALIASES = ("opus", "sonnet", "haiku")


def agent_for(argv: Sequence[str], override: str = "") -> Agent:
    """The agent that a command starts, or the one that `--classify` names."""
    if override and override not in NAMES:
        raise BadRequest(f"--classify {shown(override)}: valid is one of {', '.join(NAMES)}")
    return _agent(override or find_program(argv)[0] or "generic")


def model_of(argv: Sequence[str]) -> str | None:
    """The model that a known agent is told to use by its own flag, or None (SPEC R1)."""
    name, at = find_program(argv)
    if not name:
        return None
    agent = _agent(name)
    value = agent.option(argv[at + 1 :], *agent.model_flags)
    return None if value is None else _named(value, agent.provider)


def _agent(name: str) -> Agent:
    module = import_module(f"headgate.signals.agents.{'generic' if name == 'none' else name}")
    agent: Agent = module.NONE if name == "none" else module.AGENT
    return agent


def _named(value: str, provider: str) -> str | None:
    if value in _ALIASES:  # `claude --model opus`: whichever is the latest
        value, provider = f"claude-{value}-latest", provider or "anthropic"
    if "/" not in value:
        provider = provider or next((name for start, name in _FAMILIES.items() if value.startswith(start)), "")
        value = f"{provider}/{value}"
    try:
        return str(parse_model(value))
    except BadName:
        return None
