"""Hosts with a network of their own: a bridge with the database at it, and a wire from each host that can be cut.

All of it is in network namespaces that end with the processes in them, and those with the test: nothing is left on the
machine, however the test ends. Unix sockets do not care for network namespaces, so that the test itself, which stays
outside, still reaches the database by one.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from tests.postgres_server import die_with_parent

HUB = "10.213.0.1"
_CLONE_NEWNET = 0x40000000


class NoNetwork(Exception):
    """Network namespaces are not to be had; the sentence says why."""


class Namespace:
    """A network namespace, with nothing in it but its own loopback."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(["unshare", "-n", "sleep", "infinity"], preexec_fn=die_with_parent)
        self.pid = self._holder.pid
        until = monotonic() + 20
        while self._is_ours():
            if self._holder.poll() is not None or monotonic() > until:
                self.close()
                raise NoNetwork("`unshare -n` does not work here")
            sleep(0.005)
        self.ip("link", "set", "lo", "up")

    def _is_ours(self) -> bool:
        try:
            return Path(f"/proc/{self.pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink()
        except OSError:
            return True

    def ip(self, *words: str) -> None:
        with self.inside():
            done = subprocess.run(["ip", *words], capture_output=True, text=True)
        if done.returncode:
            raise NoNetwork(f"`ip {' '.join(words)}` does not work here: {done.stderr.strip()}")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What this thread starts meanwhile is in the namespace."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/proc/thread-self/ns/net").open("rb") as ours, Path(f"/proc/{self.pid}/ns/net").open("rb") as theirs:
            if libc.setns(theirs.fileno(), _CLONE_NEWNET):
                raise NoNetwork(f"another network namespace cannot be entered: {os.strerror(ctypes.get_errno())}")
            try:
                yield
            finally:
                if libc.setns(ours.fileno(), _CLONE_NEWNET):
                    os._exit(70)  # in the wrong network nothing that follows would mean anything

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()


class Network:
    """A hub and some hosts, each with a wire of its own to it."""

    def __init__(self, hosts: str) -> None:
        if os.geteuid() or not shutil.which("unshare") or not shutil.which("ip"):
            raise NoNetwork("network namespaces need root, `unshare` and `ip` (iproute2)")
        self._all: list[Namespace] = []
        try:
            self.hub = self._make()
            self.hub.ip("link", "add", "hub", "type", "bridge")
            self.hub.ip("addr", "add", f"{HUB}/24", "dev", "hub")
            self.hub.ip("link", "set", "hub", "up")
            self.hosts = {name: self._host(name, number) for number, name in enumerate(hosts, 2)}
        except NoNetwork:
            self.close()
            raise

    def _make(self) -> Namespace:
        self._all.append(Namespace())
        return self._all[-1]

    def _host(self, name: str, number: int) -> Namespace:
        host = self._make()
        self.hub.ip("link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
        self.hub.ip("link", "set", f"to-{name}", "master", "hub", "up")
        host.ip("addr", "add", f"{HUB.rpartition('.')[0]}.{number}/24", "dev", "eth0")
        host.ip("link", "set", "eth0", "up")
        return host

    def cut(self, name: str) -> None:
        """From now on what a host sends, and what is sent to it, is lost, and no process learns of it."""
        self.hub.ip("link", "set", f"to-{name}", "down")

    def mend(self, name: str) -> None:
        self.hub.ip("link", "set", f"to-{name}", "up")

    def close(self) -> None:
        for each in self._all:
            each.close()
