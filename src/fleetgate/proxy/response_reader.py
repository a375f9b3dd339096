"""What a response says while it passes by: its usage (rule U1), and errors inside a stream that began well, such as
Anthropic's `error` events and OpenRouter's `finish_reason: error`.

Everything is passed on as it is; one decoded copy serves both. Pieces are read as they go by. Only an event that has
begun and not ended is kept, and of a response that is no stream, as much as a usual one has.
"""

from __future__ import annotations

from time import time_ns

from fleetgate.core.usage import Usage
from fleetgate.gate.library.usage_arguments import UNUSED
from fleetgate.signals.classify_http import classify_stream_error
from fleetgate.signals.content_encoding import Decoder, Undecodable
from fleetgate.signals.outcome import Outcome
from fleetgate.signals.response_usage import UsageReader

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
        "_model",
        "_provider",
        "_skips",
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
        self._skips = stream  # no event has begun and not ended: one without usage need not be kept
        self._kept = b""
        self._complete = False
        self.outcome: Outcome | None = None  # an error that came inside it

    def feed(self, piece: bytes) -> None:
        """The next piece."""
        if self._blind:
            return
        if self._decoder is not None:
            piece = self._decoded(self._decoder, piece)
        if not self._kept and piece.endswith(b"\n\n") and b'"error"' not in piece and b'"response.failed"' not in piece:
            # Whole events, and none of them an error: almost always, and almost always without usage. Where OpenAI was
            # asked for it, all events but the last have a null there.
            if self._skips and (b'"usage' not in piece or (b'"usage":null' in piece and piece.count(b'"usage') == 1)):
                return
            self._read_usage(piece)
            return
        self._read_usage(piece)
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

    def end(self) -> None:
        """The response is over: what is left is an event too, or a body that is an error."""
        self._complete = not self._blind
        if self.outcome is None and self._kept and (_WORDS[0] in self._kept or _WORDS[1] in self._kept):
            self._judge(self._kept)

    def usage(self) -> Usage | None:
        """What was used, by all that has come until now; None where the response has not said so (yet)."""
        if self._blind and not self._stream:
            return None  # what was kept is not its end
        found = self._usage.result(complete=self._complete and self.outcome is None)
        if found is None and self.outcome is not None and not self._stream:
            return UNUSED  # an error with the status of a success
        return found

    def _read_usage(self, piece: bytes) -> None:
        self._usage.feed(piece)
        self._skips = self._stream and not self._usage.kept

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
