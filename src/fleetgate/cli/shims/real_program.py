"""The real program of an agent: the first on PATH that is not a shim, or one in a usual place that PATH lacks."""

from __future__ import annotations

import os
from glob import glob

from fleetgate.cli.shims.shim_script import is_shim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Below the home folder: where installers put programs, and package managers that are not set up in this shell.
_USUAL = (
    *(".local/bin", "bin", ".claude/local", ".opencode/bin", ".bun/bin", ".npm-global/bin", ".volta/bin"),
    *(".local/share/pnpm", ".nvm/versions/node/*/bin", ".local/share/fnm/node-versions/*/installation/bin"),
)
_SYSTEM = ("/opt/homebrew/bin", "/usr/local/bin", "/home/linuxbrew/.linuxbrew/bin", "/usr/bin", "/snap/bin")


def programs(name: str, environ: Mapping[str, str]) -> Iterator[str]:
    """All programs of this name on PATH, shims included, in order. Folders that are not absolute are left out."""
    seen: set[str] = set()
    for folder in environ.get("PATH", "").split(":"):
        path = os.path.join(folder, name)
        if os.path.isabs(folder) and path not in seen and os.path.isfile(path) and os.access(path, os.X_OK):
            seen.add(path)
            yield path


def real_program(name: str, environ: Mapping[str, str]) -> str:
    """The program that a shim would start; "" if there is none."""
    on_path = next((path for path in programs(name, environ) if not is_shim(path)), "")
    return on_path or next(
        (path for path in programs(name, {"PATH": ":".join(_usual(environ))}) if not is_shim(path)), ""
    )


def _usual(environ: Mapping[str, str]) -> Iterator[str]:
    home = environ.get("HOME", "")
    for folder in _USUAL if os.path.isabs(home) else ():
        # The newest version of Node.js first.
        yield from sorted(glob(os.path.join(home, folder)), key=_version, reverse=True)
    yield from _SYSTEM


def _version(path: str) -> list[int]:
    return [int("".join(filter(str.isdigit, part)) or 0) for part in path.replace("/", ".").split(".")]
