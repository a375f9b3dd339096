"""Where a command is done: on this machine's store, or by a service elsewhere (rule H2).

`--service URL` or FLEETGATE_SERVICE names a service. Click reads the options as ever; then the command's function is
replaced by one that sends a request, with the same parameters. So each command has one definition of its options, and
the service decides what the key may do. A command that reads or changes the gate, and that no route does, is refused:
it must not show another gate than the one that was named. Commands about this machine work as ever.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import click

from fleetgate.cli.access.remote_service import ServiceAway
from fleetgate.cli.service.client import ServiceClient
from fleetgate.core.errors import BadRequest, FleetgateError

VARIABLE = "FLEETGATE_SERVICE"
# What is done over HTTP, by the module of fleetgate.cli.service that has a function for it.
COMMANDS = {
    "read_commands": "status, ps, queue, usage, accounts, projects, capacity, select, jobs, show, logs, cap ls, "
    "budget ls, backoff ls",
    "change_commands": "submit, cancel, stop, bump, report, retry, approve, pause, resume, drain, cap set, cap rm, "
    "cap reset, budget set, budget rm, budget unset, budget reset, budget add, backoff set, backoff clear",
}
_MODULES = {name: module for module, names in COMMANDS.items() for name in names.split(", ")}
# These are about this machine, its processes or its config file.
_LOCAL = frozenset(
    ("run", "acquire", "session", "serve", "open", "env", "node", "notify", "mcp", "hook", "init", "shim")
)
_LOCAL |= {"config", "store", "doctor", "simulate", "worker", "statusline", "observe"}
_ANYWHERE = frozenset(("key", "help", "completion"))  # `key` has an option of its own, which reads the same variable


def over_http(name: str, command: click.Command, given: str | None) -> click.Command:
    """The command as a request to a service: `given` on the command line, or named by the environment."""
    if name in _ANYWHERE:
        if given:
            os.environ[VARIABLE] = given
    elif name in _LOCAL:
        if given:
            _refuse(name, command, "it is about this machine: leave --service out")
    elif isinstance(command, click.Group):
        for part in command.commands.values():
            _replace(f"{name} {part.name}", part, given or os.environ[VARIABLE])
    else:
        _replace(name, command, given or os.environ[VARIABLE])
    return command


def _replace(path: str, command: click.Command, url: str) -> None:
    module = _MODULES.get(path)
    if module is None:
        _refuse(path, command, f"type it where the store is, without --service and {VARIABLE}")
        return

    def send(**options: Any) -> int | None:
        found = getattr(importlib.import_module(f"fleetgate.cli.service.{module}"), path.replace(" ", "_"))
        try:
            code: int | None = found(ServiceClient(url), **options)
        except FleetgateError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # it is no service, or of another version
            why = f"{type(error).__name__} {error}"
            raise ServiceAway(f"the service at {url} does not answer as this version needs: {why}") from error
        return code

    command.callback = send


def _refuse(path: str, command: click.Command, why: str) -> None:
    def refuse(**_: Any) -> None:
        raise BadRequest(f"fleetgate {path}: {why}")

    command.callback = refuse
