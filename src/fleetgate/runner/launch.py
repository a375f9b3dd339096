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


def environment_for(lease: Lease, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of this process, those in `more`, and the agent's model and lease."""
    return {**os.environ, **(more or {}), "FLEETGATE_MODEL": lease.model, "FLEETGATE_LEASE": lease.id}


def in_sandbox(command: Sequence[str], lease: Lease, settings: Settings, environment: Environment) -> list[str]:
    """The command with the configured wrapper (`[run] wrap`) before it, if there is one and it is not switched off."""
    wrap = [] if environment.sandbox_disabled else list(settings.wrap)
    return [*filled_in(wrap, lease.model), *command]
