"""A wire to a server that can be cut: from then on nothing comes through, and no process learns of it."""

from __future__ import annotations

import select
import socket
import threading


class Relay:
    """Listens on a port of its own and passes everything on."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._whole = threading.Event()
        self._whole.set()
        self._ended = False
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    def close(self) -> None:
        self._ended = True
        self._whole.set()
        for sock in (self._listener, *self._sockets):
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                self._whole.wait()
                far = socket.create_connection(self._to)
            except OSError:
                return
            self._sockets += [near, far]
            threading.Thread(target=self._pass_on, args=(near, far), daemon=True).start()

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        try:
            while not self._ended:
                for sock in select.select([near, far], [], [])[0]:
                    self._whole.wait()
                    data = sock.recv(1 << 16)
                    if not data:
                        return
                    other[sock].sendall(data)
        except (OSError, ValueError):
            return
        finally:
            near.close()
            far.close()
