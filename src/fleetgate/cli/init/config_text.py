"""The config file that `fleetgate init` writes: a few settings in force, and comments for what one sets next."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.config.file import check
from fleetgate.config.units import format_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetgate.cli.init.survey import Survey
    from fleetgate.config.settings import Settings

_MODELS = {
    "anthropic": "anthropic/claude-sonnet-4-6",
    "openai": "openai/gpt-5",
    "google": "google/gemini-2.5-pro",
}
_HEADER = """\
# Fleetgate's limits on this machine, made by `fleetgate init`. Edit them as you like; the next command applies them.
# Check this file with `fleetgate config check`; `fleetgate config show` prints what is in force.
"""


class Section(Struct, frozen=True):
    """A part of the file."""

    name: str
    text: str


def config_text(found: Survey, host: str) -> str:
    """The whole file; `host` is a number, or `auto`."""
    text = "\n".join([_HEADER, *(section.text for section in sections(found, host))])
    check(text, "the config that init would write")
    return text


def sections(found: Survey, host: str) -> list[Section]:
    """The parts of the file, in order."""
    parts = [Section("models", _models(found)), Section("agents", _agents(found, host))]
    if found.agents:
        parts.append(Section("census", _census(found)))
    for account in found.accounts:
        title = f'[providers."{account.name}"]'
        text = f'{title:<38}# a second login, with slots of its own\ncredential_file = "{account.credential_file}"\n'
        parts.append(Section(f"providers.{account.name}", text))
    parts.append(Section("requests", _REQUESTS))
    parts.append(Section("budgets", _BUDGETS))
    return parts


def missing_sections(found: Survey, host: str, settings: Settings) -> list[Section]:
    """What an existing file lacks of what init would write."""
    has = {
        "models": True,
        "requests": True,
        "budgets": True,
        "agents": any(rule.selector == "host" and rule.kind == "agents" for rule in settings.rules),
        "census": bool(settings.census),
        **{f"providers.{name}": True for name in settings.providers},
    }
    return [section for section in sections(found, host) if not has.get(section.name)]


def _models(found: Survey) -> str:
    known = [_MODELS[provider] for provider in found.providers if provider in _MODELS] or [_MODELS["anthropic"]]
    listed = ", ".join(f'"{model}"' for model in known)
    return (
        "# The models to use, in order of preference, where an agent's command and environment name none.\n"
        f"# models = [{listed}]\n"
    )


def _agents(found: Survey, host: str) -> str:
    memory = f"{format_size(found.memory_bytes // 1024**3 * 1024**3)} of memory, " if found.memory_bytes else ""
    about = f"on this machine ({memory}{found.cores} {'core' if found.cores == 1 else 'cores'})"
    value = '"auto"' if host == "auto" else host
    lines = ["[agents]                              # agents at the same time", f"host = {value:<31}# {about}"]
    if host != "auto":
        lines.append('# host = "auto"                       # or as many as free memory allows')
    lines += [f"# {provider + ' = 8':<36}# all models of one {provider} account" for provider in found.providers]
    lines.append('# "anthropic/claude-opus-*" = 4       # a family of models, on each account (built in)')
    return "".join(f"{line}\n" for line in lines)


def _census(found: Survey) -> str:
    names = "|".join(agent.name for agent in found.agents)
    pattern = (
        rf"^(?:\S*/)?(?:(?:node|bun|python[0-9.]*) (?:-\S+ )?(?:\S*/)?)?(?:{names})(?=\s|$)"
        r"(?:.*?\s(?:--model|-m)[ =](?P<model>\S+))?"
    )
    about = "# agents that were started without Fleetgate count, too"
    return f"[[census]]                            {about}\nmatch = '{pattern}'\n"


_REQUESTS = """\
# Model calls in flight at once. The limit is learned, up to the cap. `refusals` is what a refused call costs you:
# "cheap", "normal", or "expensive" if the account is served later for a long time after each: docs/adaptive-limits.md.
# [requests]
# anthropic = { cap = 20, refusals = "normal" }
"""
_BUDGETS = """\
# What may be used, by project, model or account: docs/budgets.md.
# [budgets]
# project = { usd = 20, per = "day" }
"""
