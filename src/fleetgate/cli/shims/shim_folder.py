"""The folder of the shims: installing, removing and listing them."""

from __future__ import annotations

import os
import re
import sys

from msgspec import Struct

from fleetgate.cli.shims.other_writers import other_writer, world_writer
from fleetgate.cli.shims.real_program import programs, real_program
from fleetgate.cli.shims.shim_script import START, is_current, is_shim, same_text, shim_text
from fleetgate.config.paths import data_folder
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.log.store_files import remove_file, write_own
from fleetgate.signals.agents import agent_for
from fleetgate.signals.agents.detect import KNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# A shim of one of these would start itself.
_NEEDED = frozenset(("fleetgate", "sh", "env", "command", "test", "echo"))
_INTERPRETERS = r"(?:ba|da|z|k|fi|a)?sh|python[0-9.]*|node|bun|deno|sudo|doas|npx|uvx"


class ShimView(Struct, frozen=True):
    """One shim, as `fleetgate shim ls` shows it. `problem` is why it is not used, or is not up to date."""

    name: str
    shim: str
    real: str
    is_first: bool
    problem: str = ""


class ShimFolder:
    """The shims of this user."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._data = data_folder(environ)
        self.path = f"{self._data}/shims"
        self._start = f"{self._data}/start/fleetgate"

    def install(self, name: str) -> bool:
        """Make or renew the shim of a program; False if it was there already. BadRequest says what is unsafe."""
        text = self.text_of(name)
        if same_text(f"{self.path}/{name}", text) and same_text(self._start, START):
            return False
        for folder in (self.path, os.path.dirname(self._start)):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        self._check_folder()
        write_own(self._start, START.encode(), 0o600)
        write_own(f"{self.path}/{name}", text.encode(), 0o755)
        return True

    def text_of(self, name: str) -> str:
        """The shim that would be made now. BadRequest if there is no program to start, or it is not safe."""
        check_name(name)
        real = real_program(name, self._environ)
        if not real:
            raise BadRequest(f"{name}: there is no such program on PATH; install it first")
        if why := world_writer(real):
            raise BadRequest(f"{name}: {real} is not safe to start: {why}")
        self._check_folder()
        agent = agent_for([name])
        flags = (*agent.version_flags, *agent.help_flags)
        return shim_text(name, f"{self.path}/{name}", self._start, sys.executable, real, flags)

    def uninstall(self, name: str) -> bool:
        """Remove a shim; False if there is none. With the last one, the folder goes, too."""
        path = f"{self.path}/{name}"
        if not os.path.lexists(path):
            return False
        if not is_shim(path):
            raise BadRequest(f"{path} is not a shim of Fleetgate; remove it yourself if it should go")
        os.unlink(path)
        if not self.names():
            remove_file(self._start)
            for folder in (os.path.dirname(self._start), self.path, self._data):
                try:
                    os.rmdir(folder)
                except OSError:
                    break  # something else is there
        return True

    def names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self.path) if is_shim(f"{self.path}/{name}"))
        except OSError:
            return []

    def views(self) -> list[ShimView]:
        return [self._view(name) for name in self.names()]

    def _view(self, name: str) -> ShimView:
        shim = f"{self.path}/{name}"
        real = real_program(name, self._environ)
        first = next(programs(name, self._environ), "")
        is_first = bool(first) and os.path.samefile(first, shim)
        return ShimView(name, shim, real, is_first, self._problem(name, shim, first, is_first))

    def _problem(self, name: str, shim: str, first: str, is_first: bool) -> str:
        if not is_first:
            where = f"{first} comes first" if first else f"{self.path} is missing"
            return f"not used in this shell: on PATH, {where}"
        try:
            is_old = not is_current(shim, self.text_of(name))
        except BadRequest as error:
            return str(error)
        return f"out of date: `fleetgate shim install {name}` renews it" if is_old else ""

    def _check_folder(self) -> None:
        if why := other_writer(self.path):
            raise BadRequest(f"{self.path}: another user could replace a shim there: {why}")


def check_name(name: str) -> None:
    """BadRequest if no shim can have this name."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}", name):
        raise BadRequest(f"{shown(name)}: valid is the name of a program, such as {', '.join(KNOWN)}")
    if name in _NEEDED or re.fullmatch(_INTERPRETERS, name):
        raise BadRequest(f"{name}: a shim itself needs this program, or everything would count as an agent")
