"""What an agent must be told to call its models through the proxy: variables, and for Codex arguments (SPEC X1).

Every agent gets what the SDKs understand; those that need something of their own get that too, and a longer patience
than their default, since a request may be held for minutes before its first byte.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from fleetgate.config.paths import state_folder
from fleetgate.config.settings import Settings
from fleetgate.core.errors import BadRequest, FleetgateError
from fleetgate.core.model_names import canonical
from fleetgate.gate.serving.service_address import read_address
from fleetgate.signals.agents import sent_elsewhere, use_of
from fleetgate.signals.agents.detect import KNOWN, find_program

PATIENCE_MS = 30 * 60_000  # ten minutes of waiting, and an answer that takes long
_BUILT_IN = ("anthropic", "openai", "google", "openrouter", "groq", "mistral")

# Variable: (the provider it is about, what follows the provider's name in the address).
_ADDRESSES = {
    "ANTHROPIC_BASE_URL": ("anthropic", ""),
    "ANTHROPIC_API_BASE": ("anthropic", ""),  # aider
    "OPENAI_BASE_URL": ("openai", "/v1"),
    "OPENAI_API_BASE": ("openai", "/v1"),  # aider
    "GOOGLE_GEMINI_BASE_URL": ("gemini", ""),
}


class NotServed(FleetgateError):
    """There is no proxy to be used."""

    exit_code = 69


class ProxySettings(NamedTuple):
    """What to add to an agent's environment, and to its arguments after its name."""

    env: dict[str, str]
    args: list[str]


def proxy_url() -> str:
    """Where the proxy is. NotServed."""
    address = read_address(state_folder())
    if address is None:
        raise NotServed("the proxy does not run: start it with `fleetgate serve`, in another terminal or as a service")
    return address.url


def told(agent: str, base: str, settings: Settings, environ: Mapping[str, str]) -> ProxySettings:
    """What an agent is to be told; `base` is the address up to the provider's name."""
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
    """Raise where an agent would call its models past the proxy, whatever it is told."""
    if why := sent_elsewhere(command, environ, folder):
        raise BadRequest(
            f"{why}: the agent then calls its models elsewhere, past the proxy. Unset it, or run without --proxied"
        )
    use = use_of(command, environ, folder)
    if use is None or use.agent != "opencode":
        return
    known = _opencode_providers(settings)
    for model in (use.model, *models):
        provider = model.partition("/")[0].partition("@")[0]
        if model and provider not in known:
            raise BadRequest(
                f"{model}: opencode calls {provider} past the proxy, which stands before {', '.join(known)}. Write a "
                f"base_url for it under [providers.{provider}] in the config, or run without --proxied"
            )


class ProxyEnvironment:
    """The proxy, for the agents of `fleetgate run --proxied`."""

    def __init__(self, settings: Settings, command: Sequence[str] = (), models: Sequence[str] = ()) -> None:
        self._url = proxy_url()
        self._settings = settings
        check_environment(self._url, settings, os.environ)
        check_agent(command, models, settings, os.environ, os.getcwd())

    def put(self, command: Sequence[str], env: dict[str, str], lease: str) -> list[str]:
        """The command with what it must be told, whose requests belong to this lease; `env` is added to."""
        agent, at = find_program(command)
        said = told(agent, f"{self._url}/l/{lease}", self._settings, env)
        env.update(said.env)
        return [*command[: at + 1], *said.args, *command[at + 1 :]] if said.args else list(command)


def known_agents() -> tuple[str, ...]:
    return KNOWN


def _opencode(base: str, settings: Settings, given: str) -> str:
    """opencode's config as text, with what is in the variable already."""
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
    """The providers of opencode that are told to call the proxy."""
    names = [name for name, known in settings.providers.items() if known.base_url and "@" not in name]
    return list(dict.fromkeys((*_BUILT_IN, *names)))


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
