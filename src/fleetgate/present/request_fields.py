"""The fields of a request or a job as the user gave them: candidates, project, session key. All are checked here."""

from __future__ import annotations

import os

from msgspec import Struct

from fleetgate.config.environment import Environment
from fleetgate.config.file import Loaded
from fleetgate.core.entities import CLASSES
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import read_model, shown
from fleetgate.signals.agents import Use, can_use, own_model, use_of, with_model
from fleetgate.signals.redaction import readable, shown_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NO_MODEL = "none"  # `-m none`: this command uses no model
_PLACEHOLDERS = ("{model}", "{provider}", "{account}", "{name}", "FLEETGATE_MODEL")


class ModelCandidates(Struct, frozen=True):
    """The models to ask for, in order of preference; `note` is what their user should know about it, or ""."""

    models: tuple[str, ...]
    note: str = ""


def candidates(given: str, environment: Environment, loaded: Loaded | None) -> tuple[str, ...]:
    """The models that were named, or else those of the environment or of the config file."""
    if given.strip() == NO_MODEL:
        return ()
    if given:
        return _allowed(tuple(str(read_model(part.strip())) for part in given.split(",")), environment)
    return _allowed(environment.models or (loaded.settings.models if loaded is not None else ()), environment)


def wanted(
    given: str,
    command: list[str],
    environment: Environment,
    loaded: Loaded | None,
    environ: Mapping[str, str],
    folder: str,
    classify: str = "",
) -> ModelCandidates:
    """The models that a command is to be run with. BadRequest where it names one that is not among those given.

    What was given comes first, then what a known agent's own command or environment names, then `models` of the
    environment and the config, then the agent's own settings. A command that is no known agent's takes no model,
    unless it has a place for it. `environ` and `folder` are those that it will run in.
    """
    use = use_of(command, environ, folder)
    if given:
        models = candidates(given, environment, loaded)
        for model in models:
            with_model(command, model, environ, folder)
        return ModelCandidates(models)
    if use is not None and use.model and not use.kept:
        return ModelCandidates(_allowed((use.model,), environment))
    if use is None and classify in ("", "generic", NO_MODEL) and not _has_place(command):
        return ModelCandidates(())
    defaults = candidates("", environment, loaded)
    models = tuple(model for model in defaults if can_use(command, model, environ, folder))
    if not models and use is not None and use.model:
        models = _allowed((use.model,), environment)
    return ModelCandidates(models, "" if models or use is None or use.later else _unknown(use))


def unchanged(command: list[str], environment: Environment, environ: Mapping[str, str], folder: str) -> ModelCandidates:
    """The model of a command that is run as it is, as its user typed it; none where nothing tells it."""
    model = own_model(command, environ, folder)
    return ModelCandidates(_allowed((model,), environment) if model else ())


def current_folder() -> str:
    """Where we are; "" in a folder that is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _has_place(command: list[str]) -> bool:
    return any(place in word for word in command for place in _PLACEHOLDERS)


def _unknown(use: Use) -> str:
    said = f" ({shown(use.said)})" if use.said else ""
    return (
        f"cannot tell which model {use.agent} will use{said}, so no cap on a model counts it: "
        f"name it with -m PROVIDER/MODEL, or say -m none"
    )


def _allowed(models: tuple[str, ...], environment: Environment) -> tuple[str, ...]:
    allowed = tuple(model for model in models if environment.allows(model))
    if models and not allowed:
        raise BadRequest(
            f"{', '.join(models)}: not among the providers that {environment.providers_from} allows "
            f"({', '.join(environment.providers)})"
        )
    return allowed


def project_name(given: str) -> str:
    name = readable(given or os.environ.get("FLEETGATE_PROJECT", "") or "default")
    if len(name) > 100 or not all(char.isprintable() for char in name) or name != name.strip():
        raise BadRequest(f"--project {shown(name)}: valid is up to 100 printable characters")
    return name


def work_class(given: str, project: str, loaded: Loaded | None, default: str) -> str:
    """The class of a request: what was given, or else what `[classes]` says of its project (rule W4)."""
    if given:
        if given not in CLASSES:
            raise BadRequest(f"class {shown(given)}: valid are {', '.join(CLASSES)}")
        return given
    return loaded.settings.classes.get(project, default) if loaded is not None else default


def request_name(given: str) -> str:
    """What a user calls a request; `fleetgate stop`, `cancel` and others find it by that."""
    name = shown_text(readable(given))
    if len(name) > 100 or not all(char.isprintable() for char in name) or name != name.strip() or name.startswith("-"):
        raise BadRequest(f"--name {shown(name)}: valid is up to 100 printable characters, not starting with -")
    return name


def session_key(given: str, option: str = "") -> str:
    given = readable(given)
    if len(given) > 200 or not all(char.isprintable() for char in given) or given != given.strip():
        raise BadRequest(f"{option}{shown(given)}: valid is up to 200 printable characters")
    return given
