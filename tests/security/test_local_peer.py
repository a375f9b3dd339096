"""Which users of this machine the service trusts: the kernel says whose socket is at the other end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleetgate.gate.serving.local_peer import LocalUsers, Peer

STRANGER = 12_345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

# Connects, says so, and stays connected until its standard input ends.
CLIENT = """
import encodings.idna, os, socket, sys  # all that is needed: another user may be unable to read Python's own files
if int(sys.argv[3]) != os.getuid():
    os.setgroups([])
    os.setresgid(*3 * [int(sys.argv[3])])
    os.setresuid(*3 * [int(sys.argv[3])])
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
    print("connected", flush=True)
    if sys.stdin.readline() == "close\\n":
        connection.close()
        print("closed", flush=True)
        sys.stdin.readline()
"""


@contextmanager
def connection_of(user: int, host: str = "127.0.0.1", *, closed: bool = False) -> Iterator[socket.socket]:
    """The accepted end of a connection that a process of `user` has made."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        server.settimeout(60)
        port = server.getsockname()[1]
        argv = [sys.executable, "-I", "-c", CLIENT, host, str(port), str(user)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            accepted, _ = server.accept()
            with accepted:
                assert client.stdout.readline() == "connected\n"
                if closed:
                    client.stdin.write("close\n")
                    client.stdin.flush()
                    assert client.stdout.readline() == "closed\n"
                yield accepted
            client.stdin.close()


def trusts(users: LocalUsers, accepted: socket.socket) -> bool:
    try:
        return users.trusts(accepted.getpeername()[:2], accepted.getsockname()[:2])
    finally:
        users.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.7.7.7", "::1"])
def test_the_services_own_user_is_trusted(tmp_path: Path, host: str) -> None:
    with connection_of(os.getuid(), host) as accepted:
        assert trusts(LocalUsers("self", str(tmp_path)), accepted)


@as_root
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("choice", ["self", "group"])
def test_another_user_of_the_machine_is_not_trusted(tmp_path: Path, host: str, choice: str) -> None:
    with connection_of(STRANGER, host) as accepted:
        assert not trusts(LocalUsers(choice, str(tmp_path)), accepted)


@as_root
def test_every_user_is_trusted_where_the_config_says_all(tmp_path: Path) -> None:
    with connection_of(STRANGER) as accepted:
        assert trusts(LocalUsers("all", str(tmp_path)), accepted)


def test_a_member_of_the_state_folders_group_is_trusted_where_the_config_says_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = STRANGER if os.geteuid() == 0 else os.geteuid()
    if os.geteuid() != 0:
        monkeypatch.setattr("os.geteuid", lambda: STRANGER)  # the service is another user's
    group = tmp_path.stat().st_gid
    monkeypatch.setattr("fleetgate.gate.serving.local_peer.groups_of", lambda user: [group] if user == member else [])
    tmp_path.chmod(0o770)
    with connection_of(member) as accepted:
        assert trusts(LocalUsers("group", str(tmp_path)), accepted)
        assert not trusts(LocalUsers("self", str(tmp_path)), accepted)
    tmp_path.chmod(0o700)
    with connection_of(member) as accepted:
        assert not trusts(LocalUsers("group", str(tmp_path)), accepted), "a private folder has no group"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/net is Linux's")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_kernel_without_netlink_answers_by_its_list_of_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(LocalUsers, "_ask_netlink", lambda *args: None)
    with connection_of(os.getuid(), host) as accepted:
        assert trusts(LocalUsers("self", str(tmp_path)), accepted)
    if os.geteuid() == 0:
        with connection_of(STRANGER, host) as accepted:
            assert not trusts(LocalUsers("self", str(tmp_path)), accepted)
        with connection_of(STRANGER, host, closed=True) as accepted:
            assert not trusts(LocalUsers("self", str(tmp_path)), accepted)


def test_the_kernel_is_asked_once_for_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def trusts(*ends: object) -> bool:
        asked.append(ends)
        return True

    monkeypatch.setattr(LocalUsers, "trusts", trusts)
    peer = Peer(LocalUsers("self", str(tmp_path)), ("127.0.0.1", 1), ("127.0.0.1", 2))
    assert not asked, "not before it matters"
    assert peer.trusted
    assert peer.trusted
    assert len(asked) == 1


@as_root
def test_a_socket_that_its_owner_has_closed_does_not_pass_for_roots(tmp_path: Path) -> None:
    with connection_of(STRANGER, closed=True) as accepted:
        assert not trusts(LocalUsers("self", str(tmp_path)), accepted)


def test_a_connection_that_is_not_there_is_not_trusted(tmp_path: Path) -> None:
    users = LocalUsers("self", str(tmp_path))
    try:
        assert not users.trusts(("127.0.0.1", 1), ("127.0.0.1", 2))
        assert not users.trusts(None, ("127.0.0.1", 2))
    finally:
        users.close()


def test_an_address_of_another_machine_is_not_trusted_whatever_the_config_says(tmp_path: Path) -> None:
    assert not LocalUsers("all", str(tmp_path)).trusts(("192.0.2.7", 4000), ("192.0.2.1", 4180))
