"""Every setting in effect and its source, for `fleetgate config show` (rule C2). No secret is ever among them."""

from __future__ import annotations

import os

from msgspec import Struct

from fleetgate.config.environment import OPUS_CAP, Environment
from fleetgate.config.file import Loaded
from fleetgate.config.paths import config_path, state_folder, store_url
from fleetgate.config.settings import Settings
from fleetgate.config.units import format_duration, format_size
from fleetgate.core.state.state import State
from fleetgate.gate.serving.service_address import BadAddress, read_address
from fleetgate.log.store_url import shown
from fleetgate.present.cap_listing import ENVIRONMENT, FILE, RUN_TIME, CapRow, hidden_text, quoted

BUILT_IN = "built-in"


class Value(Struct):
    """One setting: as JSON has it, as people read it, and what says so: a source, or a variable of the environment."""

    name: str
    value: object
    text: str
    said_by: str

    def as_json(self) -> dict[str, object]:
        known = self.said_by in (BUILT_IN, FILE)
        source, variable = (self.said_by, None) if known else (ENVIRONMENT, self.said_by)
        return {"name": self.name, "value": self.value, "source": source, "variable": variable}


def values(state: State, environment: Environment, loaded: Loaded | None) -> list[Value]:
    """Everything but the caps."""
    settings = loaded.settings if loaded is not None else Settings()
    said = _said(loaded)
    return [
        *_places(state),
        *_of_environment(environment),
        _listed("models", environment.models or settings.models, environment.models_from or _from(said, "models")),
        _listed("providers allowed", environment.providers, environment.providers_from or BUILT_IN, none="all"),
        _duration("seniority_ms", state.seniority_ms, FILE if state.seniority_ms is not None else BUILT_IN),
        Value(
            "time_zone",
            settings.time_zone or None,
            settings.time_zone or "that of this machine",
            _from(said, "time_zone"),
        ),
        _listed("census", settings.census, _from(said, "census")),
        _listed("census_users", settings.census_users, _from(said, "census_users")),
        _wrap(settings, environment, said),
        _duration("keep_ms", settings.keep_ms, _from(said, "history", "keep")),
        Value("keep_bytes", settings.keep_bytes, format_size(settings.keep_bytes), _from(said, "history", "size")),
        _duration("usage_keep_ms", settings.usage_keep_ms, _from(said, "usage", "keep")),
        *_host_auto(settings, said),
        *_providers(settings, said),
    ]


def _said(loaded: Loaded | None) -> dict[str, object]:
    """The file as it is written: what it does not say is built in, even where the value is the same."""
    if loaded is None:
        return {}
    import tomllib

    try:
        with open(loaded.path, "rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError):  # changed since it was read
        return {}


def _from(said: dict[str, object], *path: str) -> str:
    """`file` if it has this key."""
    here: object = said
    for name in path:
        if not isinstance(here, dict) or name not in here:
            return BUILT_IN
        here = here[name]
    return FILE


def _places(state: State) -> list[Value]:
    path, folder, store = config_path(), state_folder(), shown(store_url())
    there = "" if os.path.exists(path) else " (there is none)"
    entered = state.file_path or None
    try:
        served = read_address(folder)
        address, not_served = served.url if served is not None else None, "not running"
    except BadAddress as error:
        address, not_served = None, str(error)
    return [
        Value("config_path", path, path + there, _variable("FLEETGATE_CONFIG")),
        Value("file_in_force", entered, entered or "none", FILE if entered else BUILT_IN),
        Value("state_folder", folder, folder, _variable("FLEETGATE_HOME")),
        Value("store", store, store, _variable("FLEETGATE_STORE")),
        Value("serve", address, address or not_served, BUILT_IN),
    ]


def _variable(name: str) -> str:
    return name if os.environ.get(name) else BUILT_IN


def _of_environment(environment: Environment) -> list[Value]:
    project = os.environ.get("FLEETGATE_PROJECT", "")
    found = [Value("project", project or "default", project or "default", _variable("FLEETGATE_PROJECT"))]
    if environment.opus_cap is not None:
        found.append(Value("opus_cap", environment.opus_cap, str(environment.opus_cap), OPUS_CAP))
    if environment.bypass:
        found.append(Value("bypass", True, "runs do not ask", "FLEETGATE_BYPASS"))
    if environment.has_token:
        found.append(Value("token", "set", "set", "FLEETGATE_TOKEN"))
    return found


def _listed(name: str, items: tuple[str, ...], source: str, none: str = "none") -> Value:
    return Value(name.replace(" ", "_"), list(items), ", ".join(items) or none, source)


def _duration(name: str, ms: int | None, source: str) -> Value:
    return Value(name, ms, "without limit" if ms is None else format_duration(ms), source)


def _wrap(settings: Settings, environment: Environment, said: dict[str, object]) -> Value:
    if environment.sandbox_disabled and settings.wrap:
        return Value("wrap", [], "none", "FLEETGATE_SANDBOX_DISABLED")
    return Value("wrap", list(settings.wrap), " ".join(settings.wrap) or "none", _from(said, "run", "wrap"))


def _host_auto(settings: Settings, said: dict[str, object]) -> list[Value]:
    """How `host = "auto"` is worked out."""
    auto, at = settings.host_auto, ("agents", "host")
    reserve, per_agent = auto.reserve_bytes, auto.per_agent_bytes
    return [
        Value("host_auto.reserve_bytes", reserve, format_size(reserve), _from(said, *at, "reserve")),
        Value("host_auto.per_agent_bytes", per_agent, format_size(per_agent), _from(said, *at, "per_agent")),
        Value("host_auto.max", auto.max, str(auto.max), _from(said, *at, "max")),
    ]


def _providers(settings: Settings, said: dict[str, object]) -> list[Value]:
    """Where each provider is and where its key is found; of the key only whether there is one."""
    found = []
    for name, provider in sorted(settings.providers.items()):
        for key in ("base_url", "api", "key_env", "credential_file", "usage_path", "usage_field", "rates"):
            value = getattr(provider, key)
            if not value:
                continue
            text = value
            if key == "key_env":
                text += " (set)" if os.environ.get(value) else " (not set)"
            found.append(Value(f"providers.{name}.{key}", value, text, _from(said, "providers", name, key)))
        for variable, value in sorted(provider.env.items()):
            found.append(Value(f"providers.{name}.env.{variable}", value, value, FILE))
    for rule in settings.rules:
        if rule.usage_gate:
            found.append(Value(f"usage_gate.{rule.kind}.{rule.selector}", True, "on", FILE))
    return found


def warnings(state: State, loaded: Loaded | None, found: list[CapRow]) -> list[str]:
    """Warnings for the user who edits the file."""
    told = []
    for line in found:
        for hidden in line.hidden:
            above = line.source if line.source == ENVIRONMENT and "cap" in hidden else RUN_TIME
            if hidden["source"] == FILE and above == RUN_TIME:
                back = f"`fleetgate cap reset {quoted(line.selector)}{_kind(line)}`"
                told.append(
                    f"{line.selector} ({line.kind}): what the file says is hidden by what was set at run time "
                    f"({hidden_text(hidden)}); {back} returns to the file"
                )
    return [*told, *_about_file(state, loaded)]


def _kind(line: CapRow) -> str:
    return "" if line.selector in ("host", "project") and line.kind == "agents" else f" --kind {line.kind}"


def _about_file(state: State, loaded: Loaded | None) -> list[str]:
    """The file that this environment names, and the one in force, where they are not the same."""
    if not state.file_digest:
        return []
    if loaded is None or loaded.digest != state.file_digest:
        if not os.path.exists(state.file_path):
            in_force = f"the caps of {state.file_path}, which is gone, are still in force"
        else:
            in_force = f"the caps in force are those of {state.file_path}"
        if loaded is None:
            return [f"{in_force}; `fleetgate config apply FILE` brings in another, /dev/null an empty one"]
        if loaded.path == state.file_path:
            return [f"{loaded.path} is older than its content in force; `fleetgate config apply` forces it"]
        return [f"{in_force}; {loaded.path} is older and did not enter; `fleetgate config apply` forces it"]
    return []
