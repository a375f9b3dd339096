"""The two known formats of a dispatch-model-caps.conf (rule C5): `opus-4-6=4` and `OPUS_CONCURRENCY_CAP=4`.
All lines or none: a bad one is named with its number, and nothing is imported."""

from __future__ import annotations

from fleetgate.config.errors import BadValue, ConfigError, ConfigProblem
from fleetgate.config.value_types import read_cap_text
from fleetgate.core.errors import BadName
from fleetgate.core.model_names import parse_selector, shown

FAMILIES = ("opus", "sonnet", "haiku")
_VALID = "valid is a line like opus-4-6=4 or OPUS_CONCURRENCY_CAP=4, with opus, sonnet or haiku"


def parse_caps(text: str, name: str = "caps file") -> list[tuple[str, int]]:
    """The agents caps that a file sets, by selector, in its order."""
    caps: dict[str, tuple[int, int]] = {}
    problems = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        statement = line.partition("#")[0].strip()
        if not statement:
            continue
        try:
            selector, cap = _parse_line(statement)
        except (BadValue, BadName) as error:
            problems.append(ConfigProblem(name, str(error), number))
            continue
        before, earlier = caps.setdefault(selector, (cap, number))
        if before != cap:
            problems.append(ConfigProblem(name, f"line {earlier} says {before} for {selector}, this one {cap}", number))
    if problems:
        raise ConfigError(*problems)
    return [(selector, cap) for selector, (cap, _) in caps.items()]


def _parse_line(statement: str) -> tuple[str, int]:
    name, equals, value = statement.removeprefix("export ").partition("=")
    if not equals:
        raise BadValue(f"found {shown(statement)}; {_VALID}")
    value = value.strip()
    if len(value) > 2 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    selector = _selector(name.strip())
    return selector, read_cap_text(value)


def _selector(name: str) -> str:
    family = name.removesuffix("_CONCURRENCY_CAP")
    if family != name and family.lower() in FAMILIES and family.isupper():
        return f"*/claude-{family.lower()}-*"
    model = name.removeprefix("claude-")
    if model in FAMILIES:
        return f"*/claude-{model}-*"
    if not model.startswith(tuple(f"{family}-" for family in FAMILIES)):
        raise BadValue(f"found {shown(name)}; {_VALID}")
    return parse_selector(f"*/claude-{model}").text
