"""The names of models: how an agent says them, and how caps name them (`provider/model`).

An agent names one model in many ways: `opus`, `opus[1m]`, `us.anthropic.claude-opus-4-6-v1:0`,
`claude-opus-4-6@20250805`. A cap counts them all as the model that the provider's own API knows.
"""

from __future__ import annotations

from fleetgate.config.model_families import CLAUDE, provider_of
from fleetgate.core.errors import BadName
from fleetgate.core.model_names import Model, canonical, parse_model, read_model

# Claude Code plans with opus and works with sonnet: the scarcer one counts.
_CLAUDE_ALIASES = {**{name: name for name in CLAUDE}, "opusplan": "opus", "best": "opus"}


def named(value: str, provider: str = "") -> str:
    """`provider/model` of a name as an agent takes it; "" where nothing tells the provider, or it is no name.

    `provider` is whose models a bare name means.
    """
    value = value.strip()
    alias = value.partition("[")[0].lower()
    if alias in _CLAUDE_ALIASES:
        return f"{provider or 'anthropic'}/claude-{_CLAUDE_ALIASES[alias]}-latest"
    if value.startswith("arn:") or "/" not in value:
        value = claude_name(value)
        value = f"{provider or provider_of(value)}/{value}"
    head, _, name = value.partition("/")
    try:
        return str(read_model(f"{head}/{_plain(name)}"))
    except BadName:
        return ""


def claude_name(value: str) -> str:
    """A Claude model's name in Anthropic's own API, of an id of Bedrock or Vertex; any other name as it is.

    "" of an ARN that does not tell the model.
    """
    name = value.rpartition("/")[2] if value.startswith("arn:") else value
    start = name.find("anthropic.claude-")
    hosted = start == 0 or (start > 0 and name[start - 1] == ".")
    if hosted:
        name = name[start + len("anthropic.") :]
    elif value.startswith("arn:"):
        return ""
    if not name.startswith("claude-"):
        return name
    name, _, version = name.partition("[")[0].partition("@")
    if version.isdigit():
        name = f"{name}-{version}"
    stem, _, revision = name.rpartition("-v")
    revised = revision.partition(":")[0].isdigit() and (hosted or ":" in revision)
    return stem if revised and stem.startswith("claude-") else name


def _plain(name: str) -> str:
    """A name without the size of its context (`[1m]`), and with `-` for `@`, which names accounts here."""
    return name.partition("[")[0].replace("@", "-")


def same(one: str, other: str, *, provider: bool = True) -> bool:
    """Whether two names mean the same model: a date, the account and, for an alias, the version may be left open."""
    first, second = parse_model(one), parse_model(other)
    if provider and canonical(first.provider) != canonical(second.provider):
        return False
    return _matches(first.name, second.name) or _matches(second.name, first.name)


def _matches(loose: str, exact: str) -> bool:
    if loose == exact:
        return True
    stem, _, last = loose.rpartition("-")
    if last == "latest":
        return exact.startswith(f"{stem}-")
    date = exact.removeprefix(f"{loose}-")
    return date != exact and len(date) == 8 and date.isdigit()


def spoken(model: Model) -> str:
    """The name to give to an agent that knows whose models it uses."""
    stem, _, last = model.name.rpartition("-")
    family = stem.removeprefix("claude-")
    return family if last == "latest" and family in CLAUDE else model.name
