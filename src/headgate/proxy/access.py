"""The access log: a line of JSON for each request, without keys, queries or anything that was said.

Lines are gathered and written a few times a second. A file that has grown large becomes `access.log.1`. That it cannot
be written disturbs nobody.
"""

from __future__ import annotations

import asyncio
import os
from time import time

import msgspec

from headgate.log.files import make_file
from headgate.present.times import utc
from headgate.proxy.exchange import Exchange

_EVERY_S = 0.25
_MOST_LINES = 10_000
_MOST_BYTES = 32 << 20
_encode = msgspec.json.Encoder().encode


class AccessLog:
    """Writes to `access.log` in a folder; to nothing without one."""

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/access.log" if folder else ""
        self._folder = folder
        self._lines: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def note(self, exchange: Exchange, seconds: float) -> None:
        """What became of a request."""
        if not self._path or len(self._lines) >= _MOST_LINES:
            return
        x = exchange
        line: dict[str, object] = {
            "at": utc(int(time() * 1000)),
            "method": x.method,
            "provider": x.route.provider,
            "path": x.path.decode("latin-1")[:200],
            "status": x.status or None,
            "model": x.model or None,
            "attempts": x.attempts,
            "waited_ms": round(x.line_s * 1000, 1),
            "upstream_ms": round(x.upstream_s * 1000, 1),
            "ms": round(seconds * 1000, 1),
            "bytes": x.bytes_sent,
            "project": x.project,
            "outcome": x.outcome.kind if x.outcome is not None else "ok",
        }
        if x.gone:
            line["client_left"] = True
        if x.error:
            line["error"] = x.error
        elif x.outcome is not None and x.outcome.evidence:
            line["error"] = x.outcome.evidence
        if x.client:
            line["run"] = x.client
        self._lines.append(_encode(line))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self.flush)

    def flush(self) -> None:
        """Write what has gathered."""
        self._timer = None
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        try:
            fd = make_file(self._path, exclusive=False, like=self._folder)
            try:
                if os.fstat(fd).st_size > _MOST_BYTES:
                    os.replace(self._path, f"{self._path}.1")
                    os.close(fd)
                    fd = make_file(self._path, exclusive=False, like=self._folder)
                os.lseek(fd, 0, os.SEEK_END)
                os.write(fd, b"\n".join(lines) + b"\n")
            finally:
                os.close(fd)
        except OSError:
            pass

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.flush()
