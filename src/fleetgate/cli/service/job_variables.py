"""The variables that `fleetgate submit` gives a job: those of --env, and those that --inherit-env names."""

from __future__ import annotations

import os

from fleetgate.core.errors import BadRequest
from fleetgate.signals.redaction import shown_text


def given_variables(pairs: tuple[str, ...]) -> dict[str, str]:
    """Those of `NAME=VALUE`."""
    env = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise BadRequest(f"--env {shown_text(pair)}: valid is NAME=VALUE")
        env[name] = value
    return env


def inherited_variables(given: tuple[str, ...]) -> dict[str, str]:
    """The named variables of this environment. One that is not set is a mistake."""
    names = [name.strip() for part in given for name in part.split(",") if name.strip()]
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise BadRequest(f"--inherit-env {', '.join(missing)}: not set in this environment")
    return {name: os.environ[name] for name in names}
