"""One HTTP request for the number of calls that a provider counts in flight (rules G1, G4).

Every failure is an `Unknown` with a sentence, and no sentence contains the key. The request blocks, so it belongs in
a thread. Nothing but the standard library is needed: a base installation has no HTTP client.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Timer
from time import monotonic
from urllib.error import URLError
from urllib.request import HTTPHandler, OpenerDirector, ProxyHandler, Request

import msgspec

from fleetgate.config.settings import Provider

TIMEOUT_S = 5.0
_LONGEST_ANSWER = 256 * 1024
_LARGEST_COUNT = 1 << 53  # every JSON reader can hold it


class Unknown(Exception):
    """The reason why there is no number."""


def fetch(provider: Provider, key: str) -> int:
    """The number of calls that the provider counts in flight. Blocks for up to TIMEOUT_S. Raises Unknown."""
    return number_at(_get(provider.base_url + provider.usage_path, key), provider.usage_field)


def _get(url: str, key: str) -> bytes:
    deadline = monotonic() + TIMEOUT_S
    cutter: Timer | None = None

    def cut_at_deadline(sock: socket.socket) -> None:
        # The socket's own timeout is for each read. A server that sends one byte now and then would outlast it.
        nonlocal cutter
        cutter = Timer(max(deadline - monotonic(), 0), _cut, (sock,))
        cutter.daemon = True
        cutter.start()

    try:
        request = Request(url, headers={"Authorization": f"Bearer {key}", "Accept": "application/json"})
        host = request.host.rpartition("@")[2]
        with _opener(cut_at_deadline).open(request, timeout=TIMEOUT_S) as response:
            if response.status != 200:
                raise Unknown(f"status {response.status}")
            body: bytes = response.read(_LONGEST_ANSWER + 1)
            if len(body) > _LONGEST_ANSWER:
                raise Unknown("the answer is too long")
            if response.length or monotonic() >= deadline:  # `read` does not raise when a body ends early
                raise ConnectionError
    except (OSError, HTTPException, ValueError) as error:  # its text may repeat the key
        why = error.reason if isinstance(error, URLError) else error
        if isinstance(why, TimeoutError) or monotonic() >= deadline:
            raise Unknown(f"no answer within {TIMEOUT_S:g} s") from None
        if isinstance(error, URLError) and isinstance(why, OSError):
            raise Unknown(f"cannot connect to {host}: {why.strerror or type(why).__name__}") from None
        raise Unknown(f"the question failed: {type(why).__name__}") from None
    finally:
        if cutter is not None:
            cutter.cancel()
    return body


def _cut(sock: socket.socket) -> None:
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not that of TLS, which says goodbye first
    except OSError:
        pass  # it is closed already


def _opener(on_connect: Callable[[socket.socket], None]) -> OpenerDirector:
    """HTTP and HTTPS with the proxies of the environment. Redirects are answers like any other: not followed."""

    class CutConnection(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            on_connect(self.sock)

    class TlsConnection(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            on_connect(self.sock)

    class Handler(HTTPHandler):
        https_request = HTTPHandler.http_request

        def http_open(self, request: Request) -> HTTPResponse:
            return self.do_open(CutConnection, request)

        def https_open(self, request: Request) -> HTTPResponse:
            return self.do_open(TlsConnection, request)

    opener = OpenerDirector()
    for handler in (ProxyHandler(), Handler()):
        opener.add_handler(handler)
    return opener


def number_at(body: bytes, field: str) -> int:
    """The number at a dotted path of a JSON document, as a count. Raises Unknown."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unknown("the answer is not JSON") from None
    for name in field.split("."):
        if not isinstance(value, dict) or name not in value:
            raise Unknown(f"the answer has nothing at {field}")
        value = value[name]
    return count_of(value, f"at {field}")


def count_of(value: object, where: str) -> int:
    """A count: finite, not negative, truncated. Raises Unknown."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unknown(f"no number {where}")
    if not math.isfinite(value) or value < 0:
        raise Unknown(f"{value} {where} is not a count")
    return min(int(value), _LARGEST_COUNT)
