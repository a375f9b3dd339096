"""What a request or a job asks for, as somebody said it: candidates, project, session key. Checked here for all."""

from __future__ import annotations

import os

from headgate.config.environment import Environment
from headgate.config.load import Loaded
from headgate.core.errors import BadRequest
from headgate.core.names import parse_model, shown
from headgate.signals.agents import model_of
from headgate.signals.redaction import readable


def candidates(given: str, command: list[str], environment: Environment, loaded: Loaded | None) -> tuple[str, ...]:
    """The models to ask for: named here, by a known agent's own flag, by the environment, or by the config file."""
    if given:
        models = tuple(str(parse_model(part.strip())) for part in given.split(","))
    elif command and (own := model_of(command)) is not None:
        models = (own,)
    else:
        models = environment.models or (loaded.settings.models if loaded is not None else ())
    allowed = tuple(model for model in models if environment.allows(model))
    if models and not allowed:
        raise BadRequest(
            f"{', '.join(models)}: not among the providers that {environment.providers_from} allows "
            f"({', '.join(environment.providers)})"
        )
    return allowed


def project_name(given: str) -> str:
    name = readable(given or os.environ.get("HEADGATE_PROJECT", "") or "default")
    if len(name) > 100 or not all(char.isprintable() for char in name) or name != name.strip():
        raise BadRequest(f"--project {shown(name)}: valid is up to 100 printable characters")
    return name


def session_key(given: str, option: str = "") -> str:
    given = readable(given)
    if len(given) > 200 or not all(char.isprintable() for char in given) or given != given.strip():
        raise BadRequest(f"{option}{shown(given)}: valid is up to 200 printable characters")
    return given
