"""Process identity: a string that names one process for ever, and whether that process is gone.

A process is one string, `host|boot|pidns|pid|start`. The boot id, the pid namespace, the pid and the raw start
ticks together name one process and never another: a reused pid has other ticks, a restarted machine another
boot id. The host's name is for people, and for telling a machine that was restarted from another machine.

The rule: `is_gone` returns True only for a process that is certainly gone, because the answer frees slots. A stopped
process is alive. For a process that cannot be seen from here (another machine, another container, another user's
processes under hidepid) it returns None: unknown.

On Linux this reads /proc with bare system calls, because every `fleetgate run` needs it. Elsewhere it uses psutil,
which is imported only then.
"""

from __future__ import annotations

import importlib
import os
import sys
from binascii import crc32

from fleetgate.log.clock import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")

_LINUX = sys.platform == "linux"
_MOST_BYTES = 1 << 18  # of a command line: one argument may have half of that
_MOST_ARGUMENTS = 4096

# What is the same for all processes seen from here: (our pid, host, boot, pidns, does /proc show our pids?).
# Kept per pid: a forked child may be in another pid namespace.
_here: tuple[int, str, str, str, bool] = (0, "", "", "", False)
_this: tuple[int, str] = (0, "")


def host_name() -> str:
    """This machine's name, as it is used in process strings and for `host` pools."""
    return _look_around()[1]


def this_process() -> str:
    """The string of the calling process."""
    global _this
    pid = os.getpid()
    if _this[0] != pid:
        _, host, boot, pidns, _ = _look_around()
        _this = (pid, identify(pid) or f"{host}|{boot}|{pidns}|{pid}|")
    return _this[1]


def identify(pid: int) -> str | None:
    """The string of a process by its pid here; None when there is none, or it has ended and is not reaped yet."""
    start = _start(pid) if pid > 0 else None
    if start is None:
        return None
    _, host, boot, pidns, _ = _look_around()
    return f"{host}|{boot}|{pidns}|{pid}|{start}"


def is_gone(process: str) -> bool | None:
    """True: certainly gone. False: alive. None: it cannot be judged from here."""
    parts = process.split("|")
    if len(parts) != 5:
        return None
    host, boot, pidns, number, start = parts
    _, my_host, my_boot, my_pidns, _ = _look_around()
    # The boot id comes first: machines are renamed while they run (a laptop that changes networks).
    if boot != my_boot:
        return True if host == my_host else None
    pid = _number(number)
    if pidns != my_pidns or pid is None:
        return None
    now = _start(pid)
    if now is None:
        return True
    if not now or not start:
        return None  # a process has this pid, and whether it is the same one cannot be seen
    return now != start


def site_of(process: str) -> str:
    """The site of a process: host, boot and pid namespace. "" for an invalid string."""
    parts = process.split("|")
    return "|".join(parts[:3]) if len(parts) == 5 else ""


def this_site() -> str:
    """The site of this process."""
    _, host, boot, pidns, _ = _look_around()
    return f"{host}|{boot}|{pidns}"


def site_mark(site: str) -> str:
    """A short name for a site, for files."""
    return f"{site.rpartition('|')[2]}-{crc32(site.encode()):08x}"


def pid_of(process: str) -> int | None:
    """The pid, as its own host numbers it; for display. To signal it, see `local_pid`."""
    parts = process.split("|")
    return _number(parts[3]) if len(parts) == 5 else None


def local_pid(process: str) -> int | None:
    """The pid if it means something here: same boot, same pid namespace. Else None."""
    parts = process.split("|")
    _, _, boot, pidns, _ = _look_around()
    return _number(parts[3]) if len(parts) == 5 and parts[1] == boot and parts[2] == pidns else None


def host_of(process: str) -> str:
    """The name of the machine that a process runs on."""
    return process.partition("|")[0]


def parent_of(pid: int) -> int:
    """The pid of the parent; 0 when there is none or it cannot be seen."""
    if not _LINUX:
        return _of_psutil(pid, lambda process: int(process.ppid()), 0)
    try:
        return int(_stat(pid)[1])
    except (OSError, ValueError, IndexError):
        return 0


def owner_of(pid: int) -> int | None:
    """The user that a process runs as; None when it is gone or cannot be seen."""
    if not _LINUX:
        return _of_psutil(pid, lambda process: int(process.uids().effective), None)
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by Ctrl-Z or a debugger; False where that cannot be seen, or it is gone."""
    try:
        return _stat(pid)[0] in (b"T", b"t")
    except (OSError, ValueError):
        return False


def has_variable(pid: int, pair: str) -> bool:
    """Whether a process of this user was started with this variable (`NAME=VALUE`); True where that cannot be seen."""
    if not _LINUX:
        return True
    try:
        return pair.encode() in read(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return False


def all_pids() -> list[int]:
    """The pids of all processes that can be seen from here."""
    if not _LINUX:
        psutil = psutil_or_none()
        return list(psutil.pids()) if psutil else []
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def describe(pid: int) -> str:
    """The command line of a process for a message: one printable line, not long, without secrets."""
    from fleetgate.signals.redaction import shown_command

    argv = command_line(pid)
    text = shown_command(argv) if argv else _short_name(pid)
    text = "".join(char if char.isprintable() else " " for char in text).strip()
    return (text if len(text) <= 80 else text[:77] + "...") or "unknown process"


def command_line(pid: int) -> list[str]:
    """The arguments that a process was started with; empty for kernel threads, zombies and what is not there."""
    if not _LINUX:
        return _of_psutil(pid, lambda process: list(process.cmdline()), [])
    try:
        data = read(f"/proc/{pid}/cmdline", most=_MOST_BYTES)
    except OSError:
        return []
    # Anyone can start a process with a million arguments: what is over the most is one long last one.
    return data.rstrip(b"\0").decode("utf-8", "replace").split("\0", _MOST_ARGUMENTS) if data else []


def read(path: str, most: int = 1 << 20) -> bytes:
    """A file's content; of a long one, what was read by the time that there were `most` bytes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, 4096)
        # A short read is not the end: some files under /proc hand out whole lines only.
        while data and len(data) < most and (more := os.read(fd, 65536)):
            data += more
        return data
    finally:
        os.close(fd)


def _number(text: str) -> int | None:
    """A pid; None for what cannot be one. Never 0 or less, which to a signal mean whole groups."""
    return int(text) or None if text.isdecimal() and text.isascii() and len(text) < 30 else None


def _look_around() -> tuple[int, str, str, str, bool]:
    global _here
    pid = os.getpid()
    if _here[0] != pid:
        host, boot = _names()
        _here = (pid, host, boot, _pid_namespace(), _proc_is_ours())
    return _here


def _names() -> tuple[str, str]:
    """This machine's name and boot. FLEETGATE_HOST names a separate host, whatever machine it runs on."""
    boot = boot_id().replace("-", "").lower()[:12]
    given = "".join(char for char in os.environ.get("FLEETGATE_HOST", "")[:200] if char.isprintable()).strip()
    if given:
        return given.replace("|", "-"), f"{crc32(given.encode()):08x}{boot[:4]}"
    return os.uname().nodename.replace("|", "-") or "localhost", boot


def _pid_namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def _proc_is_ours() -> bool:
    """Whether /proc numbers processes as we do: not so under `unshare --pid` without a /proc of its own."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _start(pid: int) -> str | None:
    """When a living process started, in the kernel's raw units. None: no such process, or a zombie.

    "" when there is a process of that pid but nothing more can be seen of it.
    """
    if not _LINUX:
        return _psutil_start(pid)
    if not _look_around()[4]:
        return _by_signal(pid)
    try:
        fields = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return _by_signal(pid)  # hidepid hides live processes, too
    except (OSError, ValueError):
        return ""
    # A leader that has exited is a zombie for as long as other threads of the process run: they are counted.
    ended = fields[0] in b"XxZ" and int(fields[17]) <= 1
    return None if ended else fields[19].decode()


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the third to the 22nd: state, parent, …, threads, …, start.

    The second is the program's name in parentheses, and may hold anything, parentheses and blanks included.
    """
    data = read(f"/proc/{pid}/stat", most=1)  # one read has it all
    return data[data.rindex(b")") + 1 :].split(None, 20)


def _by_signal(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except OSError:
        pass
    return ""


def _short_name(pid: int) -> str:
    """The kernel's own name of a process that has no command line, in brackets as ps shows it."""
    try:
        return f"[{read(f'/proc/{pid}/comm').decode('utf-8', 'replace').strip()}]"
    except OSError:
        return ""


# Where there is no /proc.


def psutil_or_none() -> Any:
    """psutil, or None where it is not installed. Imported by name: it has no types of its own."""
    try:
        return importlib.import_module("psutil")
    except ImportError:
        return None


def _psutil_start(pid: int) -> str | None:
    psutil = psutil_or_none()
    if psutil is None:
        return _by_signal(pid)
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        try:
            # As the kernel recorded it: the public call moves with the wall clock in newer versions.
            created = process._proc.create_time(monotonic=True)
        except TypeError:
            created = process.create_time()
        return str(int(created * 1000))
    except psutil.NoSuchProcess:
        return None
    except (psutil.Error, OSError):
        return _by_signal(pid)


def _of_psutil(pid: int, read: Callable[[Any], T], otherwise: T) -> T:
    """What psutil tells about a process; `otherwise` where it is not there, or the process cannot be seen."""
    psutil = psutil_or_none()
    try:
        return read(psutil.Process(pid)) if psutil else otherwise
    except (psutil.Error, OSError):
        return otherwise
