"""The edit of the config file in the user's editor: the file is replaced only by a valid one.

The editor gets a copy in the same folder. A mistake leaves the file as it was; what was typed is kept in the copy, and
can be edited again. The new file is complete before it gets the name, with the owner and the mode of the old one, so
no process ever reads half of it. One edit at a time: the folder is locked meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fleetgate.config.errors import ConfigError, ConfigProblem
from fleetgate.config.file import check, decode
from fleetgate.core.errors import BadRequest, FleetgateError, NotNow

_EDITORS = ("sensible-editor", "editor", "nano", "vim", "vi")
_NEW = """\
# The settings of Fleetgate. `fleetgate config show` prints what is in force,
# docs/config.md has every key. For example:
#
# [agents]
# host = 3                          # agents on this machine at once
# "anthropic/claude-opus-*" = 4
"""


class NotSaved(FleetgateError):
    """The file stays as it was."""

    exit_code = 75


def edit_config(path: str, edits_again: Callable[[ConfigError], bool | None]) -> bool:
    """Edit the file until it is valid, and replace it. False: nothing was changed. Raises NotSaved, ConfigError.

    `edits_again` is called with the mistakes; None if there is no user to ask.
    """
    target = os.path.realpath(path)
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    with _alone(os.path.dirname(target), path):
        before = _read(target)
        copy = f"{os.path.splitext(target)[0]}.edited.toml"
        kept = f"Your text is in {copy}"
        _write(copy, before or _NEW.encode(), target)
        while True:
            _open_editor(copy)
            data = _read(copy)
            if data in (None, before, _NEW.encode()):
                _remove(copy)
                return False
            try:
                check(decode(data, path), path)
            except ConfigError as error:
                again = edits_again(error)
                if again is None:
                    raise ConfigError(*error.problems, ConfigProblem(path, f"stays as it was. {kept}")) from error
                if not again:
                    raise NotSaved(f"{path} stays as it was. {kept}") from error
                continue
            if _read(target) != before:
                raise NotSaved(f"{path} was changed by another process meanwhile. {kept}")
            _write(copy, data, target)
            os.replace(copy, target)
            return True


@contextmanager
def _alone(folder: str, path: str) -> Iterator[None]:
    """Hold the lock of the folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotNow(f"{path} is being edited by another `fleetgate config edit`") from None
        yield
    finally:
        os.close(fd)


def _open_editor(copy: str) -> None:
    argv = [*_editor(), copy]
    try:
        code = subprocess.run(argv, check=False).returncode
    except OSError as error:
        _remove(copy)
        raise BadRequest(f"cannot start the editor {argv[0]!r} ({error.strerror}): set EDITOR") from error
    if code:
        raise NotSaved(f"the editor ended with code {code}, so nothing was saved. Your text is in {copy}")


def _editor() -> list[str]:
    """The user's editor: VISUAL, EDITOR, or one that is installed."""
    for name in ("VISUAL", "EDITOR"):
        if os.environ.get(name, "").strip():
            try:
                return shlex.split(os.environ[name])
            except ValueError as error:
                raise BadRequest(f"{name} {os.environ[name]!r}: {error}") from error
    found = next((each for each in _EDITORS if shutil.which(each)), None)
    if found is None:
        raise BadRequest("no editor was found: set EDITOR, for example EDITOR=nano")
    return [found]


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _write(path: str, data: bytes, like: str) -> None:
    """Write a file for its owner alone; with the mode and the owner of another, if that exists."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        try:
            found = os.stat(like)
            os.fchmod(fd, found.st_mode & 0o777)
            if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(fd, found.st_uid, found.st_gid)
        except FileNotFoundError:
            pass
        except PermissionError:
            os.fchmod(fd, 0o600)
        file.write(data)
        file.flush()
        os.fsync(fd)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
