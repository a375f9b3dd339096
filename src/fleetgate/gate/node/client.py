"""Questions to the node of this host over its Unix socket, and what its silence means.

A node that does not answer may be waiting for the store, or may be stopped. After a while it is asked a question that
needs no store.
"""

from __future__ import annotations

import _socket
from time import monotonic

import msgspec

from fleetgate.gate.node import discovery, protocol
from fleetgate.log import fork_safety

ANSWER_S = 5.0  # a node that is silent for this long is stopped, or waits for a stopped process
PROBE_S = 3.0  # after this long without an answer, check whether the node is alive at all
LIVES_S = 2.0  # a live node answers that within this time

_decode = msgspec.json.Decoder(protocol.Answer).decode


class NodeGone(Exception):
    """No node answers; the message says why."""


class NodeSilent(NodeGone):
    """The node is alive and was silent for too long: asking again would take as long again."""


class NodeStopped(NodeSilent):
    """The node does not even say that it is alive: it may still do what was asked when it continues."""


class NodeLink:
    """Questions to a node, one after the other."""

    def __init__(self, path: str, sock: _socket.socket | None = None) -> None:
        self.path = path
        self._sock = sock
        self._asked: _socket.socket | None = None  # the connection on which an answer is expected
        fork_safety.on_fork(self, NodeLink._leave)

    def ask(self, call: protocol.Call, within_s: float = ANSWER_S) -> protocol.Answer:
        """The answer; NodeGone when no node answers, or it takes too long."""
        kept = self._sock is not None
        try:
            return self.ask_once(call, within_s)
        except NodeSilent:
            raise
        except NodeGone:
            if not kept:
                raise
        return self.ask_once(call, within_s)  # an old connection may belong to a dead node

    def ask_once(self, call: protocol.Call, within_s: float, *, probes: bool = True) -> protocol.Answer:
        sock = self._sock or discovery.connect(self.path)
        if sock is None:
            raise NodeGone(f"no node listens at {self.path}")
        self._sock, self._asked = None, sock
        try:
            sock.settimeout(within_s)
            sock.sendall(protocol.frame(protocol.Question(protocol.VERSION, call)))
            if probes and within_s > PROBE_S:
                self._await(sock, within_s)
            answer = _decode(_receive(sock, protocol.length(_receive(sock, 4), protocol.LONGEST_ANSWER)))
        except TimeoutError as error:
            sock.close()
            raise NodeSilent(f"the node at {self.path} has not answered for {within_s:g} s") from error
        except (OSError, ValueError) as error:  # msgspec's own are ValueErrors
            sock.close()
            raise NodeGone(f"the node at {self.path} does not answer: {error}") from error
        except BaseException:
            sock.close()
            raise
        finally:
            self._asked = None
        self._sock = sock
        if answer.wrong is not None and answer.wrong.kind == "Version":
            self.close()
            raise NodeGone(f"the node at {self.path} is of another release ({answer.wrong.text}): restart it")
        return answer

    def _await(self, sock: _socket.socket, within_s: float) -> None:
        """Wait until an answer begins. It may take long while the node is alive, which may be waiting for the store."""
        until = monotonic() + within_s
        while True:
            sock.settimeout(max(min(PROBE_S, until - monotonic()), 0.01))
            try:
                sock.recv(1, _socket.MSG_PEEK)
                break
            except TimeoutError:
                if monotonic() >= until:
                    raise
            if not self._lives():
                sock.close()
                said = f"has said nothing for {PROBE_S + LIVES_S:g} s"
                raise NodeStopped(f"the node at {self.path} {said}: is it stopped?")
        sock.settimeout(within_s)

    def _lives(self) -> bool:
        """Whether the node answers a question that needs no store."""
        other = NodeLink(self.path)
        try:
            other.ask_once(protocol.About(beat=True), LIVES_S, probes=False)
        except NodeSilent:
            return False
        except NodeGone:
            pass  # it answers, or it has ended and the connection is closed
        finally:
            other.close()
        return True

    def _leave(self) -> None:
        """In a forked child: the connection is the parent's, and ends with it."""
        for sock in (self._sock, self._asked):
            if sock is not None:
                sock.close()
        self._sock = None

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def _receive(sock: _socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = sock.recv(min(size, 1 << 20))
        if not part:
            raise OSError("the connection was closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
