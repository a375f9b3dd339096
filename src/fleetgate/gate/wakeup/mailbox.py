"""Mailboxes of waiting processes on this machine: a Unix socket each, woken by one datagram.

A wake-up is only a hint. No process waits for it, several may arrive as one, and it may be lost: the receiver then
finds out at its next poll. So sending never blocks and never raises, and a hostile address
in the log can at worst make a few bytes go to the wrong socket.

Names of Unix sockets are limited to about 100 bytes. The sockets live in `<state>/run`, or under /tmp where
the state folder's name is too long. A socket's file name names its process, so that sockets of killed processes can
be removed.
"""

from __future__ import annotations

# The bare C module, 0.4 ms: `socket` costs 3 to 9 ms (selectors, enum) and adds nothing that a datagram needs.
import _socket
import errno
import os
import stat
import time
from binascii import crc32

from fleetgate.gate.liveness import process_identity
from fleetgate.log import fork_safety

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

SUFFIX = ".wake"
WORKERS = "workers"  # below the runtime folder: the mailboxes of worker processes
_TMP = "/tmp"
_LONGEST_PATH = 100  # bytes; the system's own limit is 103 (macOS) or 107
_LONGEST_NAME = 42  # namespace, pid, start and number, with their dashes and the suffix
_LONGEST_MESSAGE = 4096
_MOST_MAILBOXES = 1000  # of one process
_SETTLED_S = 60  # a socket file older than this is not just about to be bound


class Mailbox:
    """A socket through which others wake this process. Raises OSError if there cannot be one: poll instead."""

    def __init__(self, folder: str) -> None:
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self.address = self._bind(os.path.abspath(folder))
        except BaseException:
            self._socket.close()
            raise
        fork_safety.on_fork(self, Mailbox._leave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Mailbox {self.address}>"

    def fileno(self) -> int:
        """To select on; -1 when closed."""
        return self._socket.fileno()

    def drain(self, most: int = 64) -> list[bytes]:
        """The messages that have arrived, oldest first, without waiting; at most `most`, the others stay."""
        messages: list[bytes] = []
        while len(messages) < most:
            try:
                messages.append(self._socket.recv(_LONGEST_MESSAGE))
            except InterruptedError:
                continue
            except BlockingIOError:
                break
        return messages

    def close(self) -> None:
        """Stop listening."""
        if self._socket.fileno() >= 0:
            _remove(self.address)
            self._socket.close()

    def _leave(self) -> None:
        """In a forked child: only the copy is closed; the name belongs to the parent."""
        self._socket.close()

    def _bind(self, folder: str) -> str:
        like = os.stat(folder)
        for number in range(_MOST_MAILBOXES):
            path = f"{folder}/{_name(number)}"
            try:
                self._socket.bind(path)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            # A user who may enter the folder may send, whatever the umask is.
            _hand_over(path, like.st_uid, like.st_gid, 0o660 if like.st_mode & stat.S_IXGRP else 0o600)
            return path
        raise OSError(errno.EADDRINUSE, "too many mailboxes of one process", folder)


def worker_processes(folder: str) -> list[str]:
    """The mailboxes of all worker processes on this machine."""
    if not folder:
        return []
    try:
        place = f"{runtime_folder(folder)}/{WORKERS}"
        return [f"{place}/{name}" for name in os.listdir(place) if name.endswith(SUFFIX)]
    except OSError:
        return []


def send(address: str, message: bytes) -> bool | None:
    """Send one datagram and do not wait for anything.

    True: sent, or dropped because the receiver has unread ones and will wake anyway. False: certainly no process
    listens there, so check whether the process is gone. None: it could not be sent, which means nothing.
    """
    # The system reads a name up to its first NUL, so that "/dev/log\0.wake" would be /dev/log.
    if not (address.startswith("/") and address.endswith(SUFFIX)) or "\0" in address:
        return None
    try:
        sender = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    except OSError:
        return None
    try:
        sender.setblocking(False)
        sender.sendto(message, address)
        return True
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.ENOBUFS):
            return True
        return False if error.errno in (errno.ECONNREFUSED, errno.ENOENT, errno.ENOTDIR) else None
    except ValueError:  # a name that no file can have
        return None
    finally:
        sender.close()


def runtime_folder(state_folder: str) -> str:
    """The folder for this user's sockets, created if necessary. Raises OSError if it cannot be trusted or created.

    A state folder that its group may write to is shared; then the group may send, too.
    """
    state = os.path.realpath(state_folder)
    like = os.stat(state)
    shared = like.st_mode & stat.S_IWGRP
    folder = os.path.join(state, "run")
    if len(os.fsencode(folder)) + 1 + _LONGEST_NAME <= _LONGEST_PATH:
        if _make(folder):
            mode = stat.S_IMODE(like.st_mode) & 0o2770 if shared else 0o700
            _hand_over(folder, like.st_uid, like.st_gid, mode)
        return folder
    # Each user has a folder, because all users share /tmp; the checksum only keeps state folders apart.
    folder = f"{_TMP}/fleetgate-{os.geteuid()}-{crc32(os.fsencode(state)):08x}"
    _make(folder)
    seen = os.lstat(folder)
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o022:
        raise PermissionError(
            errno.EPERM, "not a folder that only its owner, this user, can write to; remove it", folder
        )
    if shared and (seen.st_gid != like.st_gid or not seen.st_mode & stat.S_IXGRP):
        _hand_over(folder, seen.st_uid, like.st_gid, 0o710)
    return folder


def sweep(folder: str) -> int:
    """Remove the sockets of processes that are gone; how many there were."""
    removed = 0
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    for name in names:
        path = f"{folder}/{name}"
        if name.endswith(SUFFIX) and _is_abandoned(path, name):
            removed += _remove(path)
    return removed


def _name(number: int) -> str:
    pidns, pid, start = process_identity.this_process().split("|")[2:]
    return f"{pidns}-{pid}-{start or 0}-{number}{SUFFIX}"


def _is_abandoned(path: str, name: str) -> bool:
    """Whether a socket's process is gone; where that cannot be seen, whether no process has listened for a while."""
    parts = name[: -len(SUFFIX)].split("-")
    if len(parts) != 4 or not all(part.isdecimal() for part in parts):
        return False
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    if not stat.S_ISSOCK(seen.st_mode):
        return False
    pidns, pid, start, _ = parts
    # Files of earlier boots are judged as if of this one: then, too, no process has this pid and start.
    host, boot, _, _, _ = process_identity.this_process().split("|")
    gone = process_identity.is_gone(f"{host}|{boot}|{pidns}|{pid}|{start if start != '0' else ''}")
    if gone is None:
        return time.time() - seen.st_mtime > _SETTLED_S and not _is_heard(path)
    return gone


def _is_heard(path: str) -> bool:
    """Whether any process has this socket open, in whatever container."""
    probe = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    try:
        probe.connect(path)
    except OSError as error:
        return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    finally:
        probe.close()
    return True


def _make(folder: str) -> bool:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        return False
    return True


def _hand_over(path: str, owner: int, group: int, mode: int) -> None:
    """Set a path's mode and group; and its owner, when root makes it in a user's folder.

    If that is not allowed, fewer users can send, and the others poll.
    """
    try:
        os.chown(path, owner if os.geteuid() == 0 else -1, group)
    except OSError:
        mode &= 0o700  # the group is another one: open nothing to it
    try:
        os.chmod(path, mode)
    except OSError:
        pass


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
