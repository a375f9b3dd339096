"""What an agent is started with, for `fleetgate run` and for jobs alike: its command, and its environment."""

from __future__ import annotations

import os

from fleetgate.runner.placeholders import filled_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fleetgate.config.environment import Environment
    from fleetgate.config.settings import Settings
    from fleetgate.core.entities import Lease


def environment_for(lease: Lease, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of this process, those that were asked for, and what the agent should know of its lease."""
    return {**os.environ, **(more or {}), "FLEETGATE_MODEL": lease.model, "FLEETGATE_LEASE": lease.id}


def in_sandbox(command: Sequence[str], lease: Lease, settings: Settings, environment: Environment) -> list[str]:
    """The command behind the one that the config puts before every agent's, if it does."""
    wrap = [] if environment.sandbox_disabled else list(settings.wrap)
    return [*filled_in(wrap, lease.model), *command]
