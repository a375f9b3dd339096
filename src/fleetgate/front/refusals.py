"""The responses to requests that no handler sees: too long, too slow, too large, or not HTTP/1.1."""

from __future__ import annotations

from fleetgate.front import limits


def _refusal(status: str, error: str, reason: str) -> bytes:
    body = f'{{"error":"{error}","reason":"{reason}"}}'
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    head += f"x-content-type-options: nosniff\r\ncontent-length: {len(body)}"
    return f"{head}\r\n\r\n{body}".encode()


TOO_LONG = _refusal(
    "431 Request Header Fields Too Large",
    f"the request line and headers are too long: at most {limits.HEAD_BYTES} bytes",
    "too_large",
)
TOO_SLOW = _refusal("408 Request Timeout", "the request took too long to arrive: send it at once", "too_slow")
INVALID = _refusal("400 Bad Request", "this is not a valid HTTP/1.1 request", "bad_request")
UNEXPECTED = _refusal("417 Expectation Failed", "the only valid Expect header is 100-continue", "bad_request")
VERSION = _refusal("505 HTTP Version Not Supported", "valid are HTTP/1.1 and HTTP/1.0", "http_version")


def too_large(most: int) -> bytes:
    """The response to a body that is longer than its request may have."""
    return _refusal("413 Content Too Large", f"the body is too large: at most {most} bytes", "too_large")
