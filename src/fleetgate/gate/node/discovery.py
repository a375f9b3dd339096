"""The socket of a host's node, the lock that makes a process the node, and how one is started.

The socket is in the runtime folder, named by the pid namespace, the host and the store: a node speaks for processes
that it can see itself, and for one store. The process that holds the lock file beside it is the node; a socket without
a held lock belongs to a node that has died.
"""

from __future__ import annotations

import _socket
import os
from binascii import crc32
from fcntl import F_GETFL, F_SETFL, LOCK_EX, LOCK_NB, LOCK_SH, fcntl, flock
from struct import unpack
from time import monotonic, sleep

from fleetgate.gate.liveness import process_identity
from fleetgate.gate.wakeup import mailbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetgate.core.errors import FleetgateError
    from fleetgate.gate.liveness.turns import Turns
    from fleetgate.log.protocol import StoreError

SUFFIX = ".node"
START_S = 10.0  # until a node that was started answers
_AGAIN_S = 0.01
_HOLD_TRIES = 10
_START_AGAIN_S = 2.0  # many processes notice at once that there is no node: one starts it
_MOST_LOG_BYTES = 1 << 20  # of node.log: while a store is away, every start of a node writes to it
_COMES_S = 4.0  # the time that a node needs to start on a busy machine
_OURS = frozenset({"FLEETGATE_LEASE", "FLEETGATE_MODEL", "FLEETGATE_PROJECT"})  # of one run, and not of the node


def socket_path(folder: str, url: str) -> str:
    """The socket of this host's node for a store. OSError if there cannot be one."""
    return f"{mailbox.runtime_folder(folder)}/{socket_name(url)}"


def socket_name(url: str) -> str:
    pidns = process_identity.this_site().rpartition("|")[2]
    return f"{pidns}-{crc32(f'{process_identity.host_name()} {url}'.encode()):08x}{SUFFIX}"


def connect(path: str) -> _socket.socket | None:
    """A connection to the node; None when there is none, or it has too much to do."""
    try:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        sock.settimeout(2.0)
        sock.connect(path)
        if _is_trusted(sock, path):
            return sock
    except OSError:
        pass
    sock.close()
    return None


def _is_trusted(sock: _socket.socket, path: str) -> bool:
    """Whether the node runs as this user, as root, or as the owner of the state folder.

    In a folder that a group shares, any member could listen here and would decide for all the others.
    """
    uid = peer_uid(sock)
    if uid in (None, os.geteuid(), 0):
        return True
    runtime = os.path.dirname(path)
    return os.path.basename(runtime) == "run" and uid == os.stat(os.path.dirname(runtime)).st_uid


def peer_uid(sock: _socket.socket) -> int | None:
    """The user at the other end; None if the system does not say."""
    option = getattr(_socket, "SO_PEERCRED", None)
    return None if option is None else unpack("3i", sock.getsockopt(_socket.SOL_SOCKET, option, 12))[1]


def is_held(path: str) -> bool:
    """Whether some node holds the lock, whether it answers or not."""
    try:
        fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        flock(fd, LOCK_SH | LOCK_NB)  # many processes may look at once, and must not mistake each other for a node
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def hold(path: str) -> int | None:
    """Become the node: the lock file, to be kept open; None if another process is the node."""
    from fleetgate.log.store_files import make_file

    fd = make_file(f"{path}.lock", exclusive=False)
    for _ in range(_HOLD_TRIES):  # another process may hold it for a moment, to look: see `is_held`
        try:
            flock(fd, LOCK_EX | LOCK_NB)
            return fd
        except BlockingIOError:
            sleep(_AGAIN_S)
    os.close(fd)
    return None


def write_end_reason(path: str, why: StoreError) -> None:
    """Store why there will be no node, for the processes that are waiting for one."""
    _write(f"{path}.why", f"{type(why).__name__}\n{why}")


def read_end_reason(path: str, since: float) -> FleetgateError | None:
    """Why a node has ended since then (wall time); None if it has stored nothing."""
    try:
        with open(f"{path}.why", encoding="utf-8", errors="replace") as file:
            if os.fstat(file.fileno()).st_mtime < since:
                return None
            kind, _, text = file.read().partition("\n")
    except OSError:
        return None
    from fleetgate.gate.node import protocol

    return protocol.raised(protocol.Wrong(kind, text)) if text else None


def note_reached(path: str) -> None:
    """The store has been reached from here."""
    _write(f"{path}.reached", "")


def was_reached(path: str) -> bool:
    """Whether a node of this host has ever reached the store."""
    return bool(path) and os.path.exists(f"{path}.reached")


def _write(path: str, text: str) -> None:
    from fleetgate.log.store_files import make_file

    try:
        fd = make_file(path, exclusive=False)
    except OSError:
        return
    try:
        os.ftruncate(fd, 0)
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def start(folder: str) -> None:
    """Start a node for the store of our environment, in the background, writing to node.log.

    Does nothing if another process has just done so. Two nodes that start at once do no harm: the second one exits
    at the lock.
    """
    if not _starting(folder).take():
        return
    from fleetgate.gate.python_command import python_command

    out = _open_log(f"{folder}/node.log")
    try:
        _spawn(python_command("fleetgate", "node", "--by-itself"), out)
    finally:
        os.close(out)


def _open_log(path: str) -> int:
    """The file that nodes write to, each behind what is there. A large one becomes `.1` first."""
    from fleetgate.log.store_files import make_file

    out = make_file(path, exclusive=False)
    if os.fstat(out).st_size > _MOST_LOG_BYTES:
        os.close(out)
        os.replace(path, f"{path}.1")
        out = make_file(path, exclusive=False)
    fcntl(out, F_SETFL, fcntl(out, F_GETFL) | os.O_APPEND)
    return out


def ended(folder: str) -> None:
    """Record that the node has ended: any process may start another one at once."""
    _starting(folder).give_back()


def _starting(folder: str) -> Turns:
    from fleetgate.gate.liveness.turns import Turns

    return Turns(f"{folder}/starting.{process_identity.site_mark(process_identity.this_site())}", _START_AGAIN_S)


def _spawn(argv: list[str], out: int) -> None:
    """Start a process in the background, which continues when this process or its terminal is closed."""
    import subprocess

    env = {name: value for name, value in os.environ.items() if name not in _OURS}
    line = ["/bin/sh", "-c", 'cd / && "$@" & exit 0', "sh", *argv]
    subprocess.run(line, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, check=False)


def await_node(path: str, within_s: float = START_S) -> _socket.socket | None:
    """A connection to the node, as soon as it answers."""
    began, came = monotonic(), False
    while (sock := connect(path)) is None and (waited_s := monotonic() - began) < within_s:
        held = is_held(path)
        if not held and (came or waited_s > _COMES_S):
            break  # the node has ended: node.log says why
        came = came or held
        sleep(_AGAIN_S)
    return sock
