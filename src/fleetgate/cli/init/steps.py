"""The steps of `fleetgate init`: what each would change, how it is done, and how it is taken back.

The rules: no step changes or removes what it did not make, and no step keeps a copy of a file: start-up files may hold
secrets. A step that is already done changes nothing.
"""

from __future__ import annotations

import os
import stat

from msgspec import Struct

from fleetgate.cli.shims.other_writers import other_writer
from fleetgate.cli.shims.shim_folder import ShimFolder
from fleetgate.cli.shims.startup_files import Block, CannotChange, add_block, has_block, remove_block
from fleetgate.config.file import digest
from fleetgate.core.errors import BadRequest
from fleetgate.log.store_files import write_own


class Step(Struct, frozen=True, tag_field="step", kw_only=True):
    """One change. The journal keeps it as it is here, so that it can be taken back later."""

    path: str  # the file that changes
    made_folders: tuple[str, ...] = ()  # that were missing before

    @property
    def change(self) -> str:
        """What changes, in a few words."""
        return "new file"

    def is_done(self) -> bool:
        raise NotImplementedError

    def do(self) -> None:
        raise NotImplementedError

    def undo(self) -> str:
        """Take it back; what could not be taken back, as a sentence, or ""."""
        raise NotImplementedError


class NewFile(Step, frozen=True, tag="file", kw_only=True):
    """A file that did not exist."""

    text: str
    mode: int = 0o600

    def is_done(self) -> bool:
        return os.path.lexists(self.path)

    def do(self) -> None:
        if os.path.lexists(self.path):
            raise CannotChange(f"{self.path} stays: another program has made it meanwhile; try again")
        if why := other_writer(os.path.dirname(self.path)):
            raise CannotChange(f"{self.path} is not made, because another user could replace it: {why}")
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        write_own(self.path, self.text.encode(), self.mode)

    def undo(self) -> str:
        try:
            with open(self.path, "rb") as file:
                is_same = digest(file.read()) == digest(self.text.encode())
        except FileNotFoundError:
            return ""
        if not is_same:
            return f"{self.path} stays: it was edited since"
        os.unlink(self.path)
        return ""


class AddedBlock(Step, frozen=True, tag="block", kw_only=True):
    """A block of lines at the end of a shell's start-up file."""

    block: Block

    @property
    def change(self) -> str:
        return f"{len(self.block.lines) + 2} lines at its end ({self.block.purpose})"

    def is_done(self) -> bool:
        return has_block(self.path, self.block)

    def do(self) -> None:
        add_block(self.path, self.block)

    def undo(self) -> str:
        if self.block.purpose == "shims" and (others := ShimFolder(os.environ).names()):
            return f"{self.path} keeps the line for PATH: there are shims that init did not make ({', '.join(others)})"
        remove_block(self.path, self.block.purpose)
        return ""


class NewShim(Step, frozen=True, tag="shim", kw_only=True):
    """The shim of an agent."""

    name: str

    def is_done(self) -> bool:
        return os.path.lexists(self.path)

    def do(self) -> None:
        ShimFolder(os.environ).install(self.name)

    def undo(self) -> str:
        ShimFolder(os.environ).uninstall(self.name)
        return ""


class Insertion(Step, frozen=True, tag="insertion", kw_only=True):
    """Text inside a file, at a place that the step's maker chose; it is found again by its content."""

    text: str
    at: int  # in characters
    about: str
    seen: str = ""  # the digest of the file for which the place was chosen

    @property
    def change(self) -> str:
        return self.about

    def is_done(self) -> bool:
        return self.text in exact_text(self.path)

    def do(self) -> None:
        whole = exact_text(self.path)
        if self.seen and digest(whole.encode()) != self.seen:
            raise CannotChange(f"{self.path} stays: another program has changed it meanwhile; try again")
        _replace(self.path, whole[: self.at] + self.text + whole[self.at :])

    def undo(self) -> str:
        whole = exact_text(self.path)
        if whole.count(self.text) != 1:
            return f"{self.path}: {self.about} was changed since, and stays"
        _replace(self.path, whole.replace(self.text, ""))
        return ""


class StartedService(Step, frozen=True, tag="service", kw_only=True):
    """A service that is started now, and at each login."""

    start: tuple[str, ...]
    stop: tuple[str, ...]
    is_on: tuple[str, ...]  # a command that succeeds if it is started at each login

    @property
    def change(self) -> str:
        return f"started with `{' '.join(self.start)}`"

    def is_done(self) -> bool:
        try:
            _call(self.is_on)
        except CannotChange:
            return False
        return True

    def do(self) -> None:
        _call(self.start)

    def undo(self) -> str:
        try:
            _call(self.stop)
        except CannotChange as error:
            return str(error)
        return ""


AnyStep = NewFile | AddedBlock | NewShim | Insertion | StartedService


def exact_text(path: str) -> str:
    """A file as it is, with its line ends; "" where it is not there, or no text."""
    if not os.path.isfile(path):
        return ""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""


def _replace(path: str, text: str) -> None:
    place = os.path.realpath(path)
    try:
        write_own(place, text.encode(), stat.S_IMODE(os.stat(place).st_mode))
    except OSError as error:
        raise CannotChange(f"{path} cannot be changed: {error.strerror}") from error


def _call(argv: tuple[str, ...]) -> None:
    import subprocess

    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotChange(f"`{' '.join(argv)}` failed: {error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise CannotChange(f"`{' '.join(argv)}` failed: {said[-1] if said else f'exit {done.returncode}'}")


def lock_home(home: str) -> int:
    """An open file that keeps other calls of `fleetgate init` out until it is closed. BadRequest if there is one."""
    import fcntl

    check_home(home)
    fd = os.open(home, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise BadRequest("another `fleetgate init` is running in this home: try again when it has ended") from error
    return fd


def check_home(home: str) -> None:
    """BadRequest where the home folder is another user's: with sudo, files would get the wrong owner."""
    try:
        owner = os.stat(home).st_uid
    except OSError as error:
        raise BadRequest(f"HOME={home}: {error.strerror}") from error
    if owner != os.geteuid():
        raise BadRequest(f"HOME={home} belongs to another user (uid {owner}): run `fleetgate init` as that user")
