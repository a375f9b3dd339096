"""The local user at the other end of a loopback connection, and whether the service trusts that user.

Every account on a machine can connect to 127.0.0.1, so an address proves nothing. The kernel knows which user owns the
socket at the other end, and Linux answers that question for one connection in about 10 µs (netlink, sock_diag). A
caller without a token is trusted only if that user is:

- this process's own user, or root, who can read everything anyway;
- with `[serve] local_users = "group"`, a member of the group that the state folder belongs to;
- with `[serve] local_users = "all"`, any user of this machine.

The rule: when the kernel does not name the user, the caller is not trusted. A socket that its owner has closed already
reports user 0 and inode 0; it must not pass for root's. Where netlink cannot be used, `/proc/net` has the same columns.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from ipaddress import ip_address
from time import monotonic

from fleetgate.gate.store_users import groups_of

Address = tuple[str, int]

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_NO_COOKIE = 0xFFFFFFFF
_ALL_STATES = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_REQUEST = struct.Struct("=BBBxI")  # struct inet_diag_req_v2, up to the socket: family, protocol, extensions, states
_PORTS = struct.Struct("!HH")
_INTERFACE_AND_COOKIE = struct.Struct("=III")
_OWNER = struct.Struct("=II")  # of struct inet_diag_msg: user, inode
_STATE_AT = _HEADER.size + 1
_OWNER_AT = _HEADER.size + 4 + 48 + 12
_OPEN = (1, 4, 5, 8)  # TCP states of a socket that its owner may still have: established, half closed by either side
_MEMBERSHIP_S = 60.0  # how long the groups of a user are remembered
_UNMAPPED_USER = 65534  # what a user namespace shows for a user that it does not map


class LocalUsers:
    """Which users of this machine the service trusts without a token."""

    def __init__(self, choice: str, folder: str) -> None:
        self._all = choice == "all"
        self._me = os.geteuid()
        self._group = _group_of(folder) if choice == "group" else None
        self._members: dict[int, tuple[bool, float]] = {}
        self._netlink: socket.socket | None = None

    def trusts(self, client: Address | None, server: Address | None) -> bool:
        """Whether the user at the client's end of a loopback connection is one of them.

        `client` and `server` are the two ends of a connection that this process has accepted and that is still open.
        """
        if client is None or server is None or not ip_address(client[0].partition("%")[0]).is_loopback:
            return False
        if self._all:
            return True
        user = self._user_of(client, server)
        if user is None:
            return False
        return user in (self._me, 0) or (self._group is not None and self._is_member(user))

    def is_own(self, client: Address | None, server: Address | None) -> bool:
        """Whether it is this process's own user, or root, who can read all that this user can."""
        if client is None or server is None or not ip_address(client[0].partition("%")[0]).is_loopback:
            return False
        return self._user_of(client, server) in (self._me, 0)

    def close(self) -> None:
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None

    def _user_of(self, client: Address, server: Address) -> int | None:
        """The user who owns the client's socket; None where the kernel does not say."""
        if sys.platform != "linux":
            return self._me if _is_own_socket(client, server) else None
        owner = self._ask_netlink(client, server) or _find_in_proc(client, server)
        if owner is None or not owner[1] or owner[0] == _UNMAPPED_USER:
            return None
        return owner[0]

    def _ask_netlink(self, client: Address, server: Address) -> tuple[int, int] | None:
        try:
            if self._netlink is None:
                kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
                self._netlink = socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG)
                self._netlink.settimeout(1.0)
            self._netlink.send(_question(client, server))
            return _owner_in(self._netlink.recv(4096))
        except (OSError, ValueError):
            self.close()  # an answer that comes late must not be taken for that of the next question
            return None

    def _is_member(self, user: int) -> bool:
        known, until = self._members.get(user, (False, 0.0))
        now = monotonic()
        if now >= until:
            known = self._group in groups_of(user)
            self._members[user] = known, now + _MEMBERSHIP_S
        return known


class Peer:
    """The other end of one connection. The kernel is asked once, when the answer first matters."""

    __slots__ = ("_client", "_own", "_server", "_trusted", "_users")

    def __init__(self, users: LocalUsers, client: Address | None, server: Address | None) -> None:
        self._users = users
        self._client = client
        self._server = server
        self._trusted: bool | None = None
        self._own: bool | None = None

    @property
    def trusted(self) -> bool:
        if self._trusted is None:
            self._trusted = self._users.trusts(self._client, self._server)
        return self._trusted

    @property
    def own(self) -> bool:
        if self._own is None:
            self._own = self._users.is_own(self._client, self._server)
        return self._own


def _question(client: Address, server: Address) -> bytes:
    """A netlink request for the one socket whose own address is `client` and whose peer is `server`."""
    family = socket.AF_INET6 if ":" in client[0] else socket.AF_INET
    request = b"".join(
        (
            _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _ALL_STATES),
            _PORTS.pack(client[1], server[1]),
            socket.inet_pton(family, client[0].partition("%")[0]).ljust(16, b"\0"),
            socket.inet_pton(family, server[0].partition("%")[0]).ljust(16, b"\0"),
            _INTERFACE_AND_COOKIE.pack(0, _NO_COOKIE, _NO_COOKIE),
        )
    )
    return _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0) + request


def _owner_in(answer: bytes) -> tuple[int, int] | None:
    """The user and the inode in an answer; None when it is an error, such as "no such socket"."""
    if len(answer) < _OWNER_AT + _OWNER.size or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    user, inode = _OWNER.unpack_from(answer, _OWNER_AT)
    return user, inode if answer[_STATE_AT] in _OPEN else 0


def _find_in_proc(client: Address, server: Address) -> tuple[int, int] | None:
    """The same from the list of all sockets, for kernels without sock_diag."""
    wanted = [_in_hexadecimal(client), _in_hexadecimal(server)]
    try:
        with open(f"/proc/net/tcp{'6' if ':' in client[0] else ''}") as lines:
            for line in lines:
                columns = line.split()
                if columns[1:3] == wanted:
                    return int(columns[7]), int(columns[9]) if int(columns[3], 16) in _OPEN else 0
    except (OSError, ValueError, IndexError):
        pass
    return None


def _in_hexadecimal(address: Address) -> str:
    """An address as /proc/net writes it: words in the byte order of the machine."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    packed = socket.inet_pton(family, address[0].partition("%")[0])
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"


def _is_own_socket(client: Address, server: Address) -> bool:
    """Without netlink (macOS): whether one of this user's processes has the client's socket."""
    import psutil

    me = os.geteuid()
    for process in psutil.process_iter(["uids"]):
        try:
            if process.info["uids"] is None or process.info["uids"].effective != me:
                continue
            for each in process.net_connections("tcp"):
                if each.laddr[:2] == client[:2] and each.raddr[:2] == server[:2]:
                    return True
        except psutil.Error:
            continue  # it has ended, or is not ours to look at
    return False


def _group_of(folder: str) -> int | None:
    """The group that shares a folder; None where the folder is private."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_gid if found.st_mode & 0o020 else None
