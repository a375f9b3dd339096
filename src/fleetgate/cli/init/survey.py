"""A survey of the machine: agents, logins and keys, memory and cores. No secret is read: only names and places."""

from __future__ import annotations

import os
import re
from glob import glob

from msgspec import Struct

from fleetgate.cli.shims.real_program import real_program
from fleetgate.cli.shims.startup_files import user_shell
from fleetgate.config.settings import HostAuto
from fleetgate.gate.liveness.free_memory import total_bytes
from fleetgate.gate.providers.credentials import WELL_KNOWN
from fleetgate.gate.providers.login_files import login_files
from fleetgate.signals.agents.detect import KNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_RESERVE_BYTES = 2 * 1024**3  # for other programs
_AGENTS_PER_CORE = 2  # they mostly wait for a model
_MOST_AGENTS = 16


class FoundAgent(Struct, frozen=True):
    """A known agent that is installed."""

    name: str
    path: str


class FoundLogin(Struct, frozen=True):
    """A place with a login or a key; `provider` is "" where a file is for several."""

    provider: str
    where: str


class FoundAccount(Struct, frozen=True):
    """A second login of Claude Code, in a folder of its own (`~/.claude-work`)."""

    name: str
    credential_file: str


class Survey(Struct, frozen=True):
    """What is on this machine."""

    agents: tuple[FoundAgent, ...]
    logins: tuple[FoundLogin, ...]
    accounts: tuple[FoundAccount, ...]
    memory_bytes: int | None
    cores: int
    shell: str

    @property
    def providers(self) -> list[str]:
        return list(dict.fromkeys(login.provider for login in self.logins if login.provider))

    def room(self) -> int:
        """How many agents fit: by memory, and two for each core."""
        memory = self.memory_bytes
        by_memory = _MOST_AGENTS if memory is None else (memory - _RESERVE_BYTES) // (2 * HostAuto().per_agent_bytes)
        return max(1, min(by_memory, self.cores * _AGENTS_PER_CORE, _MOST_AGENTS))


def survey(environ: Mapping[str, str]) -> Survey:
    """Look at this machine, as this user sees it."""
    paths = [(name, real_program(name, environ)) for name in KNOWN]
    return Survey(
        agents=tuple(FoundAgent(name, path) for name, path in paths if path),
        logins=tuple(_logins(environ)),
        accounts=tuple(_accounts(environ)),
        memory_bytes=total_bytes(),
        cores=_cores(),
        shell=user_shell(environ),
    )


def _logins(environ: Mapping[str, str]) -> Iterator[FoundLogin]:
    shared: dict[str, None] = {}
    for provider, variables in WELL_KNOWN.items():
        yield from (FoundLogin(provider, f"${name}") for name in variables if environ.get(name))
        for file in login_files(provider, environ):
            if not os.path.isfile(file.path):
                continue
            if "/opencode/" in file.path:  # which providers are in it, only its content tells
                shared[file.path] = None
            else:
                yield FoundLogin(provider, below_home(file.path, environ))
    yield from (FoundLogin("", below_home(path, environ)) for path in shared)


def _accounts(environ: Mapping[str, str]) -> Iterator[FoundAccount]:
    home = environ.get("HOME", "")
    for path in sorted(glob(f"{home}/.claude-*/.credentials.json")) if os.path.isabs(home) else ():
        name = os.path.basename(os.path.dirname(path)).removeprefix(".claude-")
        if re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name):
            yield FoundAccount(f"anthropic@{name}", below_home(path, environ))


def below_home(path: str, environ: Mapping[str, str]) -> str:
    """A path with `~` for the home folder."""
    home = environ.get("HOME", "").rstrip("/")
    return f"~{path.removeprefix(home)}" if home and path.startswith(f"{home}/") else path


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1
