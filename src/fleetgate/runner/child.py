"""A child that waits for permission before it executes anything.

The wrapper forks, commits the child's pid to the log, and only then lets it go: one byte through a pipe whose
other end no other process has. If the wrapper is killed before that byte, the child reads the end of the pipe and
leaves; if after, it runs on. So no agent ever runs whose pid is not committed, and no committed slot is kept by
anything but a live process (rule L2).

The rule: the program finds everything as if the wrapper had not been there: argv, environment, files, signal mask,
which signals are ignored and which are not. Only the process group may differ, on request, and stdout and stderr may
be pipes of ours, when they are to be read (`output_tap.py`); a terminal never is.

A child may also be forked as a spare, before its command is known: the fork of a process that holds a hundred thousand
tickets takes ten milliseconds, which are better spent while nothing waits for it.

Everything that can be prepared is prepared before the fork, which must happen in a process with one thread. Between
fork and exec nothing is imported, nothing collected and nothing cleaned up: a copy must not close properly what the
wrapper has open (a database).
"""

from __future__ import annotations

import errno
import gc
import marshal
import os
import stat

from fleetgate.core.errors import BadRequest, FleetgateError
from fleetgate.runner.signal_listener import hold, let_go

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable, Mapping, Sequence
    from typing import NoReturn
else:
    import _signal as signal

_GO = b"!"
CANNOT_EXECUTE = 126
NOT_FOUND = 127

_ABSENT = (errno.ENOENT, errno.ENOTDIR)
# An error in one folder of PATH after which the next is tried, as execvp(3) does.
_TRY_NEXT = (*_ABSENT, errno.EACCES, errno.ESTALE, errno.ENODEV, errno.ETIMEDOUT)
# What Python ignores for itself, and a program expects to die of.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class CannotRun(FleetgateError):
    """The command could not be executed: 127 when there is no such program, 126 when it cannot be run."""

    def __init__(self, exit_code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class Child:
    """A forked process: waiting for `start`, or running a program, or abandoned."""

    __slots__ = ("_command", "_go", "_go_fd", "_report_fd", "mask", "own_group", "pid", "taps")
    started = 0  # how many this process has let go

    def __init__(
        self,
        pid: int,
        command: Command | None,
        go_fd: int,
        report_fd: int,
        own_group: bool,
        taps: list[tuple[int, int]],
    ) -> None:
        self.pid = pid
        self.own_group = own_group
        self.taps = taps  # of stdout and stderr, which are read on the way: the number, and where to read it
        self.mask: set[int] | None = None  # the signal mask from before `start`, while signals are held back
        self._command = command
        self._go = _GO  # what lets it go
        self._go_fd = go_fd
        self._report_fd = report_fd

    def __repr__(self) -> str:
        state = "waits to be started" if self._go_fd >= 0 else "was let go"
        return f"<Child {self.pid} {state}: {'a spare' if self._command is None else self._command.argv!r}>"

    @classmethod
    def prepare(
        cls, argv: Sequence[str], env: Mapping[str, str], *, own_group: bool, taps: Sequence[Sequence[int]] = ()
    ) -> Child:
        """Fork a child that waits. It ends by itself if this process dies before `start`.

        `taps` are the files to be read on the way, as `tappable` tells them.
        """
        return cls._forked(Command(argv, env), own_group, taps)

    @classmethod
    def spare(cls, *, own_group: bool, taps: Sequence[Sequence[int]] = ()) -> Child:
        """The same for a command that is not known yet: see `give`."""
        return cls._forked(None, own_group, taps)

    @classmethod
    def _forked(cls, command: Command | None, own_group: bool, taps: Sequence[Sequence[int]]) -> Child:
        # Children of a process that ignores SIGCHLD vanish without saying how they ended.
        chld_ignored = signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
        if chld_ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        caught = [number for number in signal.valid_signals() if callable(signal.getsignal(number))]
        go_read, go_write = os.pipe()
        report_read, report_write = os.pipe()
        pipes = [(files, *os.pipe()) for files in taps]
        outputs = [(file, write_fd) for files, _, write_fd in pipes for file in files]
        # No signal may find the copy with the wrapper's handlers in place.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        collecting = gc.isenabled()
        gc.disable()
        try:
            pid = os.fork()
            if pid == 0:
                _wait_and_exec(
                    command, (go_read, go_write), report_write, outputs, own_group, mask, caught, chld_ignored
                )
        except OSError as error:
            for fd in (go_write, report_read, *(read_fd for _, read_fd, _ in pipes)):
                os.close(fd)
            raise CannotRun(CANNOT_EXECUTE, f"cannot start another process: {_why(error.errno)}") from error
        finally:
            if collecting:
                gc.enable()
            for fd in (go_read, report_write, *(write_fd for _, _, write_fd in pipes)):
                os.close(fd)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return cls(pid, command, go_write, report_read, own_group, [(files[0], read_fd) for files, read_fd, _ in pipes])

    def give(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        """Tell a spare what it is to execute, and in which folder, once it is let go."""
        self._command = Command(argv, env)
        self._go = self._command.packed(cwd)

    def lives(self) -> bool:
        """Whether a spare is still there; one that is not needs no more care."""
        if os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            return True
        self._go_fd, self._report_fd = _closed(self._go_fd), _closed(self._report_fd)
        self._close_taps()
        return False

    def start(self) -> None:
        """Let the child execute its command; returns when it does, and raises CannotRun when it cannot.

        From here on signals are held back: `supervise` must follow, and passes them on. A child that was killed
        while it waited is no error here: `supervise` tells how it ended.
        """
        mask = hold()
        Child.started += 1
        go = memoryview(self._go)
        try:
            while go:
                go = go[os.write(self._go_fd, go) :]
        except BrokenPipeError:
            pass
        self._go_fd = _closed(self._go_fd)
        report = b""
        while part := os.read(self._report_fd, 64):
            report += part
        self._report_fd = _closed(self._report_fd)
        if not report:  # the pipe was closed by a successful exec
            self.mask = mask
            return
        os.waitpid(self.pid, 0)
        self._close_taps()
        let_go(mask)
        number, _, tried = report.partition(b" ")
        assert self._command is not None
        raise self._command.refusal(int(number), int(tried))

    def abandon(self) -> None:
        """End a child that waits, for good. Does nothing to one that was started or abandoned."""
        if self._go_fd < 0:
            return
        # Killed, and not just left to read the end of the pipe: it may be stopped.
        os.kill(self.pid, signal.SIGKILL)
        self._go_fd = _closed(self._go_fd)
        self._report_fd = _closed(self._report_fd)
        self._close_taps()
        os.waitpid(self.pid, 0)

    def _close_taps(self) -> None:
        for _, fd in self.taps:
            os.close(fd)
        self.taps = []


class Command:
    """What to execute, as the bytes that the system takes, and where it may be."""

    __slots__ = ("argv", "env", "paths")

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        if not argv:
            raise BadRequest("there is no command to run: give one after --")
        try:
            self.argv = [os.fsencode(word) for word in argv]
            self.env = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
        except UnicodeEncodeError as error:
            raise CannotRun(CANNOT_EXECUTE, f"cannot run {argv[0]!r}: {error.object!r} has no bytes here") from error
        if any(b"\0" in text for text in (*self.argv, *self.env, *self.env.values())):
            raise CannotRun(CANNOT_EXECUTE, f"cannot run {argv[0]!r}: a zero byte in its arguments or environment")
        self.paths = self._places()

    def _places(self) -> list[bytes]:
        name = self.argv[0]
        if b"/" in name or not name:
            return [name]
        folders = self.env.get(b"PATH", os.fsencode(os.defpath))
        return [os.path.join(folder, name) for folder in folders.split(b":")]

    def packed(self, cwd: str) -> bytes:
        """As a message to a spare."""
        data = marshal.dumps((os.fsencode(cwd), self.argv, self.env, self.paths))
        return _GO + len(data).to_bytes(8, "little") + data

    @classmethod
    def received(cls, fd: int) -> Command | None:
        """The command of a spare child, in its folder; None if the process that sends it died in between."""
        size = _exactly(fd, 8)
        data = b"" if size is None else _exactly(fd, int.from_bytes(size, "little"))
        if not data:
            return None
        command = cls.__new__(cls)
        cwd, command.argv, command.env, command.paths = marshal.loads(data)
        os.chdir(cwd)
        return command

    def execute(self) -> tuple[int, int]:
        """Become the program. Returns only if that fails: the error, and which of the paths it was about."""
        refused: tuple[int, int] | None = None
        for index, path in enumerate(self.paths):
            try:
                os.execve(path, self.argv, self.env)
            except OSError as error:
                failed = (error.errno or errno.EIO, index)
            if failed[0] not in _TRY_NEXT:
                return failed
            # "Permission denied" says more than the "not found" of the folders after it.
            if failed[0] not in _ABSENT and refused is None:
                refused = failed
        return refused or (errno.ENOENT, 0)

    def refusal(self, number: int, tried: int) -> CannotRun:
        """The sentence and the exit code for an error of `execute`."""
        name, path = os.fsdecode(self.argv[0]), os.fsdecode(self.paths[tried])
        searched = b"/" not in self.argv[0]
        exists = any(os.path.isfile(path) for path in self.paths)
        if not exists and (searched or number in _ABSENT):
            where = "there is no such program in PATH" if searched else "there is no such file"
            return CannotRun(NOT_FOUND, f"cannot run {name!r}: {where}")
        if number in _ABSENT:
            why = "the interpreter that its first line or its format names does not exist"
        elif number == errno.EACCES:
            why = f"{path!r} is a folder" if os.path.isdir(path) else f"no permission to execute {path!r}"
        elif number == errno.ENOEXEC:
            why = f"{path!r} is not a program that this system can execute (a script needs a #! line)"
        else:
            why = _why(number)
        return CannotRun(CANNOT_EXECUTE, f"cannot run {name!r}: {why}")


def become(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replace this process by a program, which finds everything as if we had not been there. CannotRun."""
    command = Command(argv, env)
    caught = [number for number in signal.valid_signals() if callable(signal.getsignal(number))]
    for number in (*caught, *_IGNORED_BY_PYTHON):
        signal.signal(number, signal.SIG_DFL)
    raise command.refusal(*command.execute())


def tappable(*, terminals: bool = False) -> list[tuple[int, ...]]:
    """Which of stdout and stderr may be read on the way: not what the child will find closed, and not terminals,
    unless these are wanted.

    Two that are one file (`2>&1`) come together, and get one pipe: else their order would be lost.
    """
    files = [fd for fd in (1, 2) if _is_passed(fd) and (terminals or not os.isatty(fd))]
    return [(1, 2)] if len(files) == 2 and _are_one(1, 2) else [(fd,) for fd in files]


def _is_passed(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def _are_one(fd: int, other: int) -> bool:
    """Whether what is written to both has an order. On /dev/null it has none."""
    facts, others = os.fstat(fd), os.fstat(other)
    if (facts.st_dev, facts.st_ino) != (others.st_dev, others.st_ino) or stat.S_ISCHR(facts.st_mode):
        return False
    # A file that was opened twice (`>a 2>a`) has two positions.
    return not stat.S_ISREG(facts.st_mode) or os.lseek(fd, 0, 1) == os.lseek(other, 0, 1)


def _exactly(fd: int, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        part = os.read(fd, size - len(data))
        if not part:
            return None
        data += part
    return data


def _wait_and_exec(
    command: Command | None,
    go: tuple[int, int],
    report_fd: int,
    outputs: Iterable[tuple[int, int]],
    own_group: bool,
    mask: Iterable[int],
    caught: Iterable[int],
    chld_ignored: bool,
) -> NoReturn:
    """The child's whole life as a copy of the wrapper. It ends here, in exec or _exit, whatever happens."""
    try:
        if own_group:
            os.setpgid(0, 0)
        for number in (*caught, *_IGNORED_BY_PYTHON):
            signal.signal(number, signal.SIG_DFL)
        if chld_ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(go[1])  # or there would be no end of the pipe when the wrapper dies
        if os.read(go[0], 1):
            command = command or Command.received(go[0])
            if command is not None:
                for file, fd in outputs:
                    os.dup2(fd, file)
                error, tried = command.execute()
                os.write(report_fd, b"%d %d" % (error, tried))
    except BaseException:  # above this frame is the wrapper's code, which must not run twice
        os.write(report_fd, b"%d 0" % errno.EIO)
    finally:
        os._exit(NOT_FOUND)


def _closed(fd: int) -> int:
    os.close(fd)
    return -1


def _why(number: int | None) -> str:
    return os.strerror(number or errno.EIO)
