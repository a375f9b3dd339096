"""The access log: a line of JSON for each request, without keys, queries or content.

Lines are collected and written a few times a second. A file that has grown large becomes `access.log.1`. Errors while
writing are ignored.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from time import time

import msgspec

from fleetgate.gate.access_keys import PREFIX
from fleetgate.log.store_files import make_file
from fleetgate.present.wall_time import utc
from fleetgate.proxy.access_record import AccessRecord
from fleetgate.proxy.calls.exchange import Exchange
from fleetgate.signals.redaction import SHOWN_CHARS, shown_text

_EVERY_S = 0.25
_AT_ONCE = 50  # lines
_MOST_BYTES = 32 << 20
_encode = msgspec.json.Encoder().encode


def _shown_path(path: bytes) -> str:
    """The beginning of a path, without an access key that a client has put there."""
    text = path.decode("latin-1")
    return shown_text(text) if PREFIX in text else text[:SHOWN_CHARS]


class AccessLog:
    """Writes to `access.log` in a folder; to nothing without one."""

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/access.log" if folder else ""
        self._folder = folder
        self._lines: list[AccessRecord] = []
        self._timer: asyncio.TimerHandle | None = None

    def note(self, exchange: Exchange, seconds: float) -> None:
        """What became of a request."""
        if not self._path:
            return
        said = exchange.outcome
        self._lines.append(
            AccessRecord(
                time(),
                exchange.method,
                exchange.route.said,
                _shown_path(exchange.path),
                exchange.status or None,
                exchange.model or None,
                exchange.attempts,
                int(exchange.queue_s * 1000),
                int(exchange.upstream_s * 1000),
                int(seconds * 1000),
                exchange.bytes_sent,
                exchange.project,
                "ok" if said is None else said.kind,
                exchange.gone,
                exchange.error or ("" if said is None else said.evidence),
                exchange.client,
            )
        )
        if len(self._lines) >= _AT_ONCE:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self.flush)

    def flush(self) -> None:
        """Write what has gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        for line in lines:
            line.at = utc(int(float(line.at) * 1000)) or ""
        try:
            fd = make_file(self._path, exclusive=False, like=self._folder)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)  # several processes may write it
                size, current = os.lseek(fd, 0, os.SEEK_END), os.path.samestat(os.fstat(fd), os.stat(self._path))
                if current and size > _MOST_BYTES:
                    os.replace(self._path, f"{self._path}.1")  # the next lines begin a new one
                os.write(fd, b"".join(_encode(line) + b"\n" for line in lines))
            finally:
                os.close(fd)
        except OSError:
            pass

    def close(self) -> None:
        self.flush()
