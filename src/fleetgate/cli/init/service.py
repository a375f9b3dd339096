"""The service that `fleetgate init` sets up: `fleetgate serve` for one user, under systemd or launchd."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from fleetgate.cli.init.steps import AnyStep, NewFile, StartedService
from fleetgate.config.install_hint import install_command
from fleetgate.gate.python_command import python_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_PASSED_ON = ("FLEETGATE_HOME", "FLEETGATE_CONFIG")  # a store's URL may hold a password
_LABEL = "dev.fleetgate.serve"
# As deploy/fleetgate.service; a test compares them.
_UNIT = """\
# Made by `fleetgate init`; `fleetgate init --undo` removes it.
[Unit]
Description=Fleetgate: HTTP API and dashboard

[Service]
{environment}EnvironmentFile=-%h/.config/fleetgate/worker.env
ExecStart={program} serve
Restart=on-failure
RestartSec=2
RestartPreventExitStatus=64 78
KillMode=mixed
TimeoutStopSec=15

[Install]
WantedBy=default.target
"""


def program_path() -> str:
    """The command `fleetgate` of this copy: as PATH names it if that is this copy, as upgrades keep that path."""
    own = os.path.join(os.path.dirname(sys.executable), "fleetgate")
    named = shutil.which("fleetgate")
    return named if named and os.path.realpath(named) == os.path.realpath(own) else own


def hindrance(environ: Mapping[str, str]) -> str:
    """Why no service can be set up here, as a sentence; "" if one can."""
    if sys.platform != "darwin" and not _runs(["systemctl", "--user", "show-environment"]):
        return "there is no systemd for this user here: run `fleetgate serve` yourself, or see docs/service.md"
    if environ.get("FLEETGATE_STORE"):
        return "FLEETGATE_STORE is set, and may hold a password: put it into a unit of your own (docs/service.md)"
    if not _runs(python_command("fleetgate.api.server")):  # imports what the extra brings, and does nothing
        return f"`fleetgate serve` needs the `serve` extra: {install_command('serve')}"
    return ""


def service_steps(environ: Mapping[str, str]) -> list[AnyStep]:
    """The unit's file, and its start."""
    if sys.platform == "darwin":
        path = f"{environ['HOME']}/Library/LaunchAgents/{_LABEL}.plist"
        domain = f"gui/{os.getuid()}"
        started = StartedService(
            path=path,
            start=("launchctl", "bootstrap", domain, path),
            stop=("launchctl", "bootout", f"{domain}/{_LABEL}"),
            is_on=("launchctl", "print", f"{domain}/{_LABEL}"),
        )
        return [NewFile(path=path, text=_plist(environ), mode=0o644), started]
    base = environ.get("XDG_CONFIG_HOME", "")
    path = f"{base if os.path.isabs(base) else environ['HOME'] + '/.config'}/systemd/user/fleetgate.service"
    control = ("systemctl", "--user")
    started = StartedService(
        path=path,
        start=(*control, "enable", "--now", "fleetgate.service"),
        stop=(*control, "disable", "--now", "fleetgate.service"),
        is_on=(*control, "is-enabled", "--quiet", "fleetgate.service"),
    )
    return [NewFile(path=path, text=unit_text(program_path(), environ), mode=0o644), started]


def unit_text(program: str, environ: Mapping[str, str]) -> str:
    """The unit for systemd."""
    lines = [f"Environment={_quoted(f'{name}={environ[name]}')}\n" for name in _PASSED_ON if environ.get(name)]
    return _UNIT.format(program=_quoted(program), environment="".join(lines))


def _quoted(text: str) -> str:
    """A word in a unit file, where `%` and `$` have a meaning."""
    plain = text.replace("%", "%%").replace("$", "$$")
    if all(char.isalnum() or char in "/._-=+,@%$" for char in plain):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _plist(environ: Mapping[str, str]) -> str:
    import plistlib

    given = {name: environ[name] for name in _PASSED_ON if environ.get(name)}
    agent = {
        "Label": _LABEL,
        "ProgramArguments": [program_path(), "serve"],
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "EnvironmentVariables": given,
    }
    return plistlib.dumps(agent).decode()


def _runs(argv: list[str]) -> bool:
    try:
        return subprocess.run(argv, capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
