"""Settings from the environment (rule C3). They apply to the requests of this process only.

`FLEETGATE_*` wins over the variables of the tools that Fleetgate replaces (`AIDEVOPS_*`). An empty variable counts as
unset. The token's value is never kept, only whether there is one.
"""

from __future__ import annotations

import os
from typing import TypeVar

from msgspec import Struct

from fleetgate.config.errors import BadValue, ConfigError, ConfigProblem
from fleetgate.config.value_types import read_cap_text, read_provider_name, read_selector
from fleetgate.core.errors import BadName
from fleetgate.core.model_names import parse_model, read_model, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
Caps = tuple[tuple[str, int], ...]

OPUS_CAP = "AIDEVOPS_OPUS_CONCURRENCY_CAP"
_MODELS = ("FLEETGATE_MODELS", "AIDEVOPS_HEADLESS_MODELS")
_PROVIDERS = ("FLEETGATE_PROVIDERS", "AIDEVOPS_HEADLESS_PROVIDER_ALLOWLIST")
_SANDBOX = ("FLEETGATE_SANDBOX_DISABLED", "AIDEVOPS_HEADLESS_SANDBOX_DISABLED")
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Environment(Struct, frozen=True):
    """The settings of one process's environment."""

    agents: Caps = ()
    requests: Caps = ()
    opus_cap: int | None = None  # replaces every agents cap on the opus family
    models: tuple[str, ...] = ()  # candidates where a command names none, as str(Model)
    models_from: str = ""  # the variable that named them
    providers: tuple[str, ...] = ()  # only these; () is all
    providers_from: str = ""
    bypass: bool = False
    sandbox_disabled: bool = False
    has_token: bool = False

    @staticmethod
    def read(environ: Mapping[str, str] | None = None) -> Environment:
        """Read every variable, or raise ConfigError with all that is wrong."""
        environ = os.environ if environ is None else environ
        problems: list[ConfigProblem] = []
        models_from = _first_set(environ, _MODELS)
        providers_from = _first_set(environ, _PROVIDERS)
        found = Environment(
            agents=_caps(environ, "FLEETGATE_AGENTS", problems),
            requests=_caps(environ, "FLEETGATE_REQUESTS", problems),
            opus_cap=_opus_cap(environ, problems),
            models=_each(environ, models_from, _model, problems),
            models_from=models_from,
            providers=_each(environ, providers_from, read_provider_name, problems),
            providers_from=providers_from,
            bypass=_flag(environ, "FLEETGATE_BYPASS", problems),
            sandbox_disabled=_flag(environ, _first_set(environ, _SANDBOX), problems),
            has_token=bool(environ.get("FLEETGATE_TOKEN")),
        )
        if problems:
            raise ConfigError(*problems)
        return found

    def caps_for(self, kind: str) -> tuple[Caps, Caps]:
        """The caps by selector and by family, as a Spec of that kind takes them. The engine asks the former first."""
        if kind != "agents":
            return self.requests, ()
        return self.agents, () if self.opus_cap is None else (("opus", self.opus_cap),)

    def allows(self, model: str) -> bool:
        """Whether a model's provider is among those that may be used."""
        return not self.providers or parse_model(model).provider in self.providers


def _caps(environ: Mapping[str, str], variable: str, problems: list[ConfigProblem]) -> Caps:
    caps: dict[str, int] = {}

    def read(part: str) -> None:
        selector, equals, number = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise BadValue("valid is selector=number, for example host=5")
        selector = read_selector(selector)
        if selector in caps:
            raise BadValue(f"{selector} is there twice")
        caps[selector] = read_cap_text(number)

    _each(environ, variable, read, problems)
    return tuple(caps.items())


def _each(
    environ: Mapping[str, str], variable: str, read: Callable[[str], T], problems: list[ConfigProblem]
) -> tuple[T, ...]:
    """Every part of a comma-separated variable, read; what cannot be read becomes a problem that names the part."""
    values = []
    for part in environ.get(variable, "").split(","):
        if part.strip():
            try:
                values.append(read(part.strip()))
            except (BadValue, BadName) as error:
                problems.append(ConfigProblem(variable, str(error), key=shown(part.strip())))
    return tuple(values)


def _opus_cap(environ: Mapping[str, str], problems: list[ConfigProblem]) -> int | None:
    text = environ.get(OPUS_CAP, "").strip()
    try:
        return read_cap_text(text) if text else None
    except BadValue as error:
        problems.append(ConfigProblem(OPUS_CAP, str(error)))
        return None


def _flag(environ: Mapping[str, str], variable: str, problems: list[ConfigProblem]) -> bool:
    value = environ.get(variable, "").strip().lower()
    if value and value not in _YES + _NO:
        problems.append(ConfigProblem(variable, f"found {shown(value)}; valid is 1 or 0"))
    return value in _YES


def _first_set(environ: Mapping[str, str], variables: tuple[str, ...]) -> str:
    return next((variable for variable in variables if environ.get(variable, "").strip()), "")


def _model(text: str) -> str:
    return str(read_model(text))
