"""uvicorn's HTTP protocol with an end to how much of a head it takes in: it has none of its own with httptools."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headgate.api.guard import HEAD_BYTES, PATH_BYTES

_MOST = HEAD_BYTES + PATH_BYTES
_BODY = b'{"error":"the request line and headers are too long: at most %d bytes","reason":"too_large"}' % _MOST
_REFUSAL = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


class Protocol(HttpToolsProtocol):
    """Counts the bytes of a head that does not end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = 0
        self._in_head = False

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
            if self._head > _MOST and not self.transport.is_closing():
                self.transport.write(_REFUSAL)
                self.transport.close()
