"""Notices from other machines: LISTEN, on a connection and in a thread of its own.

A notice is only a hint, like the datagrams of one machine (gate/wakeup/mailbox.py): it may be lost, and a waiting
process finds out at its next poll. With the thread, the descriptor to wait on stays the same while
connections come and go, and the owner's loop never waits for a server. After each connecting the owner is woken once,
since something may have been missed.
"""

from __future__ import annotations

import select
import socket
from threading import Event, Thread
from time import sleep
from typing import TYPE_CHECKING, Any

from fleetgate.log.postgres.connection import ConnectionLost, connect
from fleetgate.log.postgres.url import Address
from fleetgate.log.protocol import StoreError

if TYPE_CHECKING:
    from psycopg import Connection

MISSED = "*"  # something may have been missed
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_LONGEST_MESSAGE = 8192
_LINGER_S = 0.05  # a process that was just woken and closes this has more urgent things to do


def channel(namespace: int) -> str:
    return f"fleetgate_{namespace}"


class NoticeListener:
    """The notices of a namespace. Close it."""

    def __init__(self, address: Address, namespace: int) -> None:
        self._address = address
        self._channel = channel(namespace)
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        self._stop, self._stopped = socket.socketpair()
        self._ends = Event()
        self.listens = Event()  # set while there is a connection
        self._thread = Thread(target=self._run, name="fleetgate-listen", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<NoticeListener at {self._address.shown}>"

    def fileno(self) -> int:
        """To select on; -1 when closed."""
        return self._ours.fileno()

    def drain(self) -> list[str]:
        """The notices since the last call, without waiting."""
        told: list[str] = []
        while True:
            try:
                told.append(self._ours.recv(_LONGEST_MESSAGE).decode("utf-8", "replace"))
            except (BlockingIOError, InterruptedError):
                return told

    def close(self) -> None:
        """Stop listening. Harmless when done twice. The thread ends by itself, and is not waited for."""
        self._ends.set()
        self._stop.close()
        self._ours.close()

    # The thread.

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        try:
            while not self._ends.is_set():
                conn = None
                try:
                    conn = connect(self._address)
                    conn.execute(f"LISTEN {self._channel}")
                    pause_s = _FIRST_PAUSE_S
                    self._pass_on(MISSED)
                    self.listens.set()
                    self._follow(conn)
                except (ConnectionLost, StoreError):
                    pass
                except Exception as error:
                    if not _is_drivers(error):
                        raise
                finally:
                    if conn is not None:
                        conn.close()
                self.listens.clear()
                self._ends.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            self._theirs.close()
            self._stopped.close()

    def _follow(self, conn: Connection[Any]) -> None:
        poll = select.poll()
        poll.register(conn.pgconn.socket, select.POLLIN)
        poll.register(self._stopped, select.POLLIN)
        while not self._ends.is_set():
            if any(fd == self._stopped.fileno() for fd, _ in poll.poll()):
                sleep(_LINGER_S)
                return
            conn.pgconn.consume_input()
            while (told := conn.pgconn.notifies()) is not None:
                self._pass_on(told.extra.decode("utf-8", "replace"))

    def _pass_on(self, text: str) -> None:
        try:
            self._theirs.send(text.encode())
        except OSError:
            pass  # unread ones are there: the owner will wake anyhow; or it has closed


def _is_drivers(error: Exception) -> bool:
    import psycopg

    return isinstance(error, psycopg.Error)


def reaches(address: Address, namespace: int, patience_s: float = 2.0) -> bool:
    """Whether LISTEN works here: whether one connection receives the notice of another.

    Behind a pooler that assigns a connection for each transaction, it does not.
    """
    import psycopg

    try:
        with connect(address) as ear, connect(address) as mouth:
            ear.execute(f"LISTEN {channel(namespace)}")
            mouth.execute("SELECT pg_notify(%s, %s)", (channel(namespace), ""))
            return any(True for _ in ear.notifies(timeout=patience_s, stop_after=1))
    except (ConnectionLost, psycopg.Error):
        return False
