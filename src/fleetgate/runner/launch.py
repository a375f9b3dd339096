"""The command and the environment of an agent, the same for `fleetgate run` and for jobs."""

from __future__ import annotations

import os

from fleetgate.signals.agents.placeholders import filled_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fleetgate.config.environment import Environment
    from fleetgate.config.settings import Settings
    from fleetgate.core.entities import Lease


def environment_for(lease: Lease, settings: Settings, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of this process, those in `more`, those of the account's login, and the agent's model and lease.

    The account is that of the lease: the one that was chosen. Its login wins over any other, and that of an enclosing
    run is not passed on. Nor are keys of the provider's other accounts, which agents prefer to a login. An account with
    a key instead of a login has it where agents look for it.
    """
    outer = login_for(os.environ.get("FLEETGATE_MODEL", ""), settings)  # of the run that this one is in
    env = {name: value for name, value in os.environ.items() if outer.get(name) != value}
    env |= more or {}
    if login := login_for(lease.model, settings):
        for name in _keys_of_others(lease.model, settings):
            env.pop(name, None)
        env |= login
    else:
        env |= _own_key(lease.model, settings, env)
    return {**env, "FLEETGATE_MODEL": lease.model, "FLEETGATE_LEASE": lease.id}


def _keys_of_others(model: str, settings: Settings) -> set[str]:
    """The variables that hold the keys of other accounts of a model's provider."""
    own = model.partition("/")[0]
    found = settings.providers.items()
    keys = {each.key_env for name, each in found if name.partition("@")[0] == own.partition("@")[0] and name != own}
    return keys - {settings.providers[own].key_env if own in settings.providers else "", ""}


def _own_key(model: str, settings: Settings, env: Mapping[str, str]) -> dict[str, str]:
    """The key of an account that has a name, as the variable that agents of its provider read."""
    account = model.partition("/")[0]
    own = settings.providers.get(account)
    key = env.get(own.key_env, "") if own is not None and "@" in account else ""
    if not key:
        return {}
    from fleetgate.gate.providers.credentials import WELL_KNOWN

    return dict.fromkeys(WELL_KNOWN.get(account.partition("@")[0], ())[:1], key)


def login_for(model: str, settings: Settings) -> dict[str, str]:
    """The variables with which an agent finds the login of a model's account; none where the config has none."""
    if not model or not any(provider.env for provider in settings.providers.values()):
        return {}
    from fleetgate.core.errors import BadName
    from fleetgate.core.model_names import account_of, parse_model
    from fleetgate.gate.providers.account_login import login_variables

    try:
        return login_variables(account_of(parse_model(model)), settings.providers)
    except BadName:  # a variable may hold anything
        return {}


def limit_subagents(command: Sequence[str], env: dict[str, str], settings: Settings) -> list[str]:
    """A known agent's command, with the most helpers of its own that it may run at once (`[agents] subagents`).

    What its user says stays: a variable that is set, an argument that names another number.
    """
    if not settings.subagents:
        return list(command)
    from fleetgate.signals.agents import agent_for
    from fleetgate.signals.agents.detect import find_program

    name, at = find_program(command)
    agent = agent_for(list(command), "")
    if agent.subagents_variable:
        env.setdefault(agent.subagents_variable, str(settings.subagents))
    if name != agent.name:
        return list(command)
    return [*command[: at + 1], *agent.with_subagents(command[at + 1 :], env, settings.subagents)]


def in_sandbox(command: Sequence[str], lease: Lease, settings: Settings, environment: Environment) -> list[str]:
    """The command with the configured wrapper (`[run] wrap`) before it, if there is one and it is not switched off."""
    wrap = [] if environment.sandbox_disabled else list(settings.wrap)
    return [*filled_in(wrap, lease.model), *command]
