"""The journal of `fleetgate init`: every step that was done, so that `--undo` takes back exactly these.

A step is written down before it is done. So after a crash, `--undo` finds what was done, and steps that were not done
take nothing back.
"""

from __future__ import annotations

import os

import msgspec

from fleetgate.cli.init.steps import AnyStep
from fleetgate.cli.shims.startup_files import CannotChange
from fleetgate.config.paths import data_folder
from fleetgate.core.errors import BadRequest
from fleetgate.log.store_files import NotTrusted, read_trusted, write_own

_LARGEST = 1 << 20


class _Record(msgspec.Struct):
    version: int = 1
    steps: list[AnyStep] = []


class Journal:
    """The steps of all calls of `fleetgate init` of this user, the oldest first."""

    def __init__(self) -> None:
        self._folder = data_folder()
        self._path = f"{self._folder}/init.json"
        self.steps = self._read()

    def do(self, step: AnyStep) -> None:
        """Write a step down, and do it."""
        missing = tuple(_missing_folders(os.path.dirname(os.path.abspath(step.path))))
        own = tuple(_missing_folders(self._folder))
        step = msgspec.structs.replace(step, made_folders=tuple(dict.fromkeys((*own, *missing))))
        self._save([*self.steps, step])
        try:
            step.do()
        except BaseException:
            self._save(self.steps)
            raise
        self.steps.append(step)

    def undo(self) -> list[tuple[AnyStep, str]]:
        """Take all steps back, the last one first; each with what stays, as a sentence.

        A step that fails is kept, and the next call tries it again.
        """
        undone, failed = [], []
        for step in reversed(self.steps):
            try:
                undone.append((step, step.undo()))
            except (CannotChange, OSError) as error:
                failed.append(step)
                undone.append((step, str(error)))
            except BadRequest as error:
                undone.append((step, str(error)))
        made = {folder for step in self.steps for folder in step.made_folders}
        folders = tuple(sorted(made, key=len, reverse=True))
        self.steps = [msgspec.structs.replace(step, made_folders=folders) for step in reversed(failed)]
        self._save(self.steps)
        for folder in folders:
            try:
                os.rmdir(folder)
            except OSError:
                continue  # something else is there by now
        return undone

    def _read(self) -> list[AnyStep]:
        try:
            return msgspec.json.decode(read_trusted(self._path, self._folder, most=_LARGEST), type=_Record).steps
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            why = str(error) if isinstance(error, NotTrusted) else "it cannot be read"
            raise BadRequest(f"{self._path}: {why}; without it init cannot know what it did here") from error

    def _save(self, steps: list[AnyStep]) -> None:
        if not steps:
            if os.path.exists(self._path):
                os.unlink(self._path)
            return
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        write_own(self._path, msgspec.json.format(msgspec.json.encode(_Record(steps=steps))), 0o600)


def _missing_folders(folder: str) -> list[str]:
    """A folder and those above it that do not exist yet."""
    missing = []
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing
