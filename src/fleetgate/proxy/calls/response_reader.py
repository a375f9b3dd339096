"""What a response says while it passes by: its usage (rule U1), and errors inside a stream that began well, such as
Anthropic's `error` events and OpenRouter's `finish_reason: error`.

Everything is passed on as it is; one decoded copy serves both. Of a stream, its beginning is read and its end: usage is
in the first event or the last one, and an error ends the stream. To search every event would cost more than to pass it
on. So the latest pieces are kept and read when there are no more. Of any other response, as much is kept as a usual one
has.
"""

from __future__ import annotations

from time import time_ns

from fleetgate.core.usage import Usage
from fleetgate.gate.library.usage_arguments import UNUSED
from fleetgate.signals.classify_http import classify_stream_error
from fleetgate.signals.content_encoding import Decoder, Undecodable
from fleetgate.signals.outcome import Outcome
from fleetgate.signals.response_usage import UsageReader

HEAD, TAIL = 4 * 1024, 12 * 1024  # bytes at the beginning and at the end of a stream that are read
_MOST = 64 * 1024  # of an event that does not end
_MOST_DECODED = 4 << 20  # of one piece: what grows more is not looked at any longer
_WORDS = (b'"error"', b'"response.failed"')


class ResponseReader:
    """Reads one response. `encoding` is its Content-Encoding, `stream`: it is a stream of server-sent events."""

    __slots__ = (
        "_blind",
        "_complete",
        "_decoder",
        "_kept",
        "_latest",
        "_model",
        "_most",
        "_provider",
        "_size",
        "_skipped",
        "_stream",
        "_usage",
        "outcome",
    )

    def __init__(self, provider: str, model: str, encoding: str = "", *, stream: bool = True) -> None:
        try:
            self._decoder = Decoder(encoding) if encoding else None
            self._blind = False
        except Undecodable:
            self._decoder, self._blind = None, True
        self._provider = provider
        self._model = model
        self._stream = stream
        self._usage = UsageReader(stream=stream)
        self._latest: list[bytes] = []  # pieces of a stream that were not read yet
        self._size = 0  # of these, in bytes
        self._most = HEAD  # that are kept; the beginning of the stream was read when it is more
        self._skipped = False  # something between that and the latest pieces was not
        self._kept = b""
        self._complete = False
        self.outcome: Outcome | None = None  # an error that came inside it

    def feed(self, piece: bytes) -> None:
        """The next piece."""
        if self._blind:
            return
        if self._decoder is not None:
            piece = self._decoded(self._decoder, piece)
        if self._stream:
            self._latest.append(piece)
            self._size += len(piece)
            if self._size > self._most:
                self._shorten()
        else:
            self._read(piece)

    def end(self) -> None:
        """The response is over: what is left is an event too, or a body that is an error."""
        self._read_latest()
        self._complete = not self._blind
        if self.outcome is None and self._kept and (_WORDS[0] in self._kept or _WORDS[1] in self._kept):
            self._judge(self._kept)

    def usage(self) -> Usage | None:
        """What was used, by all that has come until now; None where the response has not said so (yet)."""
        if self._blind and not self._stream:
            return None  # what was kept is not its end
        self._read_latest()
        found = self._usage.result(complete=self._complete and self.outcome is None)
        if found is None and self.outcome is not None and not self._stream:
            return UNUSED  # an error with the status of a success
        return found

    def _shorten(self) -> None:
        """Read the beginning of a stream; of what follows, forget all but the end."""
        latest = b"".join(self._latest)
        if self._most == HEAD:
            self._most = 2 * TAIL
            self._read(latest)
            latest = b""
        else:
            latest, self._skipped = latest[-TAIL:], True
        self._latest, self._size = [latest], len(latest)

    def _read_latest(self) -> None:
        latest, self._latest, self._size = b"".join(self._latest), [], 0
        if latest and self._skipped:
            self._usage.skip()
            self._kept, self._skipped = b"", False
        if latest:
            self._read(latest)

    def _read(self, piece: bytes) -> None:
        self._usage.feed(piece)
        if self.outcome is not None:
            return
        data = self._kept + piece if self._kept else piece
        end = max(data.rfind(b"\n\n"), data.rfind(b"\r\n\r\n"))
        if end < 0:
            self._kept = data if len(data) <= _MOST else b""
            return
        self._kept = data[end + 2 :] if len(data) - end <= _MOST else b""
        if _WORDS[0] in data or _WORDS[1] in data:
            self._judge(data[:end])

    def _decoded(self, decoder: Decoder, piece: bytes) -> bytes:
        """The decoded piece; empty once the stream cannot be decoded any more."""
        try:
            found = decoder.feed(piece, _MOST_DECODED)
        except Undecodable:
            self._blind = True
            return b""
        self._blind = decoder.cut
        return found

    def _judge(self, events: bytes) -> None:
        now = time_ns() // 1_000_000
        for event in events.replace(b"\r\n", b"\n").split(b"\n\n"):
            if _WORDS[0] in event or _WORDS[1] in event:
                self.outcome = classify_stream_error(self._provider, event, now, self._model)
                if self.outcome is not None:
                    return
