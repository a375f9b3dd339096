"""The real agents and SDKs, from npm and PyPI, in a cache below the project that git does not see.

The rule: what cannot be installed is a sentence that says so, and never a failed suite.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("FLEETGATE_AGENTS_CACHE") or HERE.parents[1] / ".cache" / "agents")
WITHIN_S = 900


class CannotInstall(Exception):
    """Why an agent is not there, as a sentence."""


@functools.cache
def versions() -> dict[str, dict[str, str]]:
    """By name: `npm` or `pip` with the package, and `version`."""
    return tomllib.loads((HERE / "versions.toml").read_text())


def version_of(agent: str) -> str:
    return versions()[agent]["version"]


def installed(agent: str) -> Path:
    """Where its program is; installs it if this version is not there yet."""
    return _installed(agent, ("bin" if "pip" in versions()[agent] else "node_modules/.bin") + f"/{agent}")


def installed_library(name: str) -> Path:
    """Where a library of Node.js is; installs it if this version is not there yet."""
    return _installed(name, f"node_modules/{versions()[name]['npm']}")


@functools.cache
def _installed(name: str, what: str) -> Path:
    wanted = versions()[name]
    folder, stamp = CACHE / name, CACHE / name / ".installed"
    found = folder / what
    if not (stamp.exists() and stamp.read_text() == wanted["version"] and found.exists()):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if "pip" in wanted:
            _pip(folder, f"{wanted['pip']}=={wanted['version']}")
        else:
            _npm(folder, f"{wanted['npm']}@{wanted['version']}")
        if not found.exists():
            raise CannotInstall(f"{name}: it was installed, but has no {what}")
        stamp.write_text(wanted["version"])
    return found


def _npm(folder: Path, package: str) -> None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        raise CannotInstall(f"{package}: npm and Node.js are not installed here")
    _do(package, ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--no-save", package])


def _pip(folder: Path, package: str) -> None:
    _do(package, [sys.executable, "-m", "venv", str(folder)])
    _do(package, [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input", package])


def _do(package: str, argv: list[str]) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(f"{package} could not be installed: {error}") from None
    if done.returncode:
        said = [line for line in (done.stderr.strip() or done.stdout.strip()).splitlines() if " log of " not in line]
        why = said[-1] if said else f"exit {done.returncode}"
        raise CannotInstall(f"{package} could not be installed: {Path(argv[0]).name}: {why}")
