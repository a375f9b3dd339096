"""Leftovers of the former name, Headgate: state and config folders, and environment variables.

Fleetgate does not read them. This is the only module that knows the former name.
"""

from __future__ import annotations

import os
import sys
from shlex import quote

from fleetgate.cli.doctor.finding import Finding, Findings
from fleetgate.config.errors import ConfigError
from fleetgate.config.paths import config_path, expand_home, state_folder

_VARIABLE = "HEADGATE_"
_MAC_FOLDER = "~/Library/Application Support/headgate"


def old_name() -> Findings:
    """One finding for each leftover, with the command that takes it over or removes it."""
    for variable in sorted(name for name in os.environ if name.startswith(_VARIABLE)):
        new = variable.replace(_VARIABLE, "FLEETGATE_", 1)
        text = f"{variable} is not read: the variable is now {new}"
        yield Finding("warn", text, f'export {new}="${variable}"; unset {variable}')
    try:
        config, states = config_path(), state_folder()
    except ConfigError:  # other checks report it
        return
    for old in _folders():
        old_config = os.path.join(old, "config.toml")
        if os.path.isfile(old_config) and not os.path.exists(config):
            text = f"{old_config} is not read. To use it here:"
            do = f"mkdir -p {quote(os.path.dirname(config))} && cp {quote(old_config)} {quote(config)}"
            yield Finding("warn", text, f"{do} && fleetgate config check")
        elif os.path.isdir(old):
            text = f"{old} is not read: Fleetgate uses {states} and {config}. When no old agent is running:"
            yield Finding("warn", text, f"rm -r {quote(old)}")


def _folders() -> list[str]:
    """The state and config folders under the former name."""
    if sys.platform == "darwin":
        return [expand_home(_MAC_FOLDER)]
    bases = {"XDG_STATE_HOME": "~/.local/state", "XDG_CONFIG_HOME": "~/.config"}
    return [os.path.join(os.environ.get(name) or expand_home(base), "headgate") for name, base in bases.items()]
