"""The variables, and for Codex the arguments, that send an agent's model calls through the proxy.

Every agent gets the variables of the SDKs, some get variables of their own, and all get longer timeouts than their
defaults, since a request may wait for minutes before its first byte.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fleetgate.config.paths import state_folder
from fleetgate.config.settings import Settings
from fleetgate.core.errors import BadRequest, FleetgateError
from fleetgate.core.model_names import canonical
from fleetgate.gate.providers.known_providers import KNOWN_PROVIDERS
from fleetgate.gate.serving.service_address import read_address
from fleetgate.signals.agents import sent_elsewhere, use_of
from fleetgate.signals.agents.detect import KNOWN, find_program

if TYPE_CHECKING:
    from fleetgate.core.entities import Lease

PATIENCE_MS = 30 * 60_000  # ten minutes of waiting, and an answer that takes long

# Variable: (the provider it is about, what follows the provider's name in the address).
_ADDRESSES = {
    "ANTHROPIC_BASE_URL": ("anthropic", ""),
    "ANTHROPIC_API_BASE": ("anthropic", ""),  # aider
    "OPENAI_BASE_URL": ("openai", "/v1"),
    "OPENAI_API_BASE": ("openai", "/v1"),  # aider
    "GOOGLE_GEMINI_BASE_URL": ("gemini", ""),
}


class NoProxy(FleetgateError):
    """No proxy is running."""

    exit_code = 69


class ProxySettings(NamedTuple):
    """What to add to an agent's environment, and to its arguments after its name."""

    env: dict[str, str]
    args: list[str]


def proxy_url() -> str:
    """Where the proxy is. NoProxy."""
    address = read_address(state_folder())
    if address is None:
        raise NoProxy("the proxy is not running: start it with `fleetgate serve`, in another terminal or as a service")
    return address.url


def proxy_settings(agent: str, base: str, settings: Settings, environ: Mapping[str, str]) -> ProxySettings:
    """The settings of an agent; `base` is the address up to the provider's name."""
    env = {name: f"{base}/{provider}{rest}" for name, (provider, rest) in _ADDRESSES.items()}
    env["FLEETGATE_PROXY"] = base
    if agent == "claude":
        env["API_TIMEOUT_MS"] = environ.get("API_TIMEOUT_MS", str(PATIENCE_MS))
    elif agent == "aider":
        env["AIDER_TIMEOUT"] = environ.get("AIDER_TIMEOUT", str(PATIENCE_MS // 1000))
    elif agent == "opencode":
        env["OPENCODE_CONFIG_CONTENT"] = _opencode(base, settings, environ.get("OPENCODE_CONFIG_CONTENT", ""))
    return ProxySettings(env, _codex(base) if agent == "codex" else [])


def check_environment(base: str, settings: Settings, environ: Mapping[str, str]) -> None:
    """Raise where a variable sends the agent to another place than the proxy would: its key is meant for that place."""
    for name, (provider, _) in _ADDRESSES.items():
        given = environ.get(name, "").rstrip("/")
        if not given or given.startswith(base):
            continue
        known = settings.providers.get(canonical(provider))
        ours = known.base_url if known is not None else ""
        if given.removesuffix("/v1") != ours.removesuffix("/v1"):
            raise BadRequest(
                f"{name} is set to {given}, and the proxy would send to another place: write base_url = "
                f'"{given}" under [providers.{provider}] in the config, or unset {name}'
            )


def check_agent(
    command: Sequence[str], models: Sequence[str], settings: Settings, environ: Mapping[str, str], folder: str
) -> None:
    """Raise if an agent would bypass the proxy in spite of these settings."""
    if why := sent_elsewhere(command, environ, folder):
        raise BadRequest(f"{why}: the agent would bypass the proxy. Unset it, or run without --proxied")
    use = use_of(command, environ, folder)
    if use is None or use.agent != "opencode":
        return
    known = _opencode_providers(settings)
    for model in (use.model, *models):
        provider = model.partition("/")[0].partition("@")[0]
        if model and provider not in known:
            raise BadRequest(
                f"{model}: opencode would bypass the proxy for {provider}; the proxy serves {', '.join(known)}. Set a "
                f"base_url under [providers.{provider}] in the config file, or run without --proxied"
            )


class ProxyEnvironment:
    """The proxy, for the agents of `fleetgate run --proxied`."""

    def __init__(self, settings: Settings, command: Sequence[str] = (), models: Sequence[str] = ()) -> None:
        self._url = proxy_url()
        self._settings = settings
        check_environment(self._url, settings, os.environ)
        check_agent(command, models, settings, os.environ, os.getcwd())

    def put(self, command: Sequence[str], env: dict[str, str], lease: Lease) -> list[str]:
        """The command with its arguments for the proxy; the variables are added to `env`."""
        agent, at = find_program(command)
        added = proxy_settings(agent, f"{self._url}/l/{lease.id}", self._settings, env)
        env.update(added.env)
        return [*command[: at + 1], *added.args, *command[at + 1 :]] if added.args else list(command)


def known_agents() -> tuple[str, ...]:
    return KNOWN


def _opencode(base: str, settings: Settings, given: str) -> str:
    """The config of opencode as text, including what the variable already contains."""
    try:
        config = msgspec.json.decode(given or "{}", type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise BadRequest(f"OPENCODE_CONFIG_CONTENT is not a JSON object: {error}") from None
    given_providers = config.get("provider")
    providers = dict(given_providers) if isinstance(given_providers, dict) else {}
    for name in _opencode_providers(settings):
        rest = "/v1beta" if name in ("google", "gemini") else "/v1"
        entry = providers.get(name)
        entry = dict(entry) if isinstance(entry, dict) else {}
        options = entry.get("options")
        options = dict(options) if isinstance(options, dict) else {}
        options |= {"baseURL": f"{base}/{name}{rest}", "timeout": PATIENCE_MS}
        providers[name] = {**entry, "options": options}
    return msgspec.json.encode({**config, "provider": providers}).decode()


def _opencode_providers(settings: Settings) -> list[str]:
    """The providers that opencode calls through the proxy."""
    names = [name for name, known in settings.providers.items() if known.base_url and "@" not in name]
    return list(dict.fromkeys((*KNOWN_PROVIDERS, *names)))


def _codex(base: str) -> list[str]:
    """Codex takes a provider by its config only."""
    values = {
        "model_provider": '"fleetgate"',
        "model_providers.fleetgate.name": '"OpenAI through Fleetgate"',
        "model_providers.fleetgate.base_url": f'"{base}/openai/v1"',
        "model_providers.fleetgate.env_key": '"OPENAI_API_KEY"',
        "model_providers.fleetgate.wire_api": '"responses"',
        "model_providers.fleetgate.stream_idle_timeout_ms": str(PATIENCE_MS),
    }
    return [word for name, value in values.items() for word in ("-c", f"{name}={value}")]
