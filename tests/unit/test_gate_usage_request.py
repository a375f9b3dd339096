"""The one HTTP request of a base installation: how many calls a provider counts in flight (rules G1, G4)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import pytest

from fleetgate.config.settings import Provider
from fleetgate.gate.providers import usage_request
from fleetgate.gate.providers.usage_request import Unknown, fetch
from tests.proxy.tls import Authority

KEY = "sk-usage-secret"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"

Answer = Callable[[socket.socket], None]


@contextmanager
def server(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[bytes]]]:
    """An address that reads one request, which it keeps, and answers it."""
    seen: list[bytes] = []

    def serve() -> None:
        try:
            client, _ = listener.accept()
            client = tls.wrap_socket(client, server_side=True) if tls else client
        except OSError:
            return
        with client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(65536)
            seen.append(head)
            try:
                answer(client)
            except OSError:
                pass  # the client has gone

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = Thread(target=serve)
        thread.start()
        yield f"http{'s' if tls else ''}://127.0.0.1:{listener.getsockname()[1]}", seen
        listener.close()
        thread.join()


def send(data: bytes) -> Answer:
    return lambda client: client.sendall(data)


def provider(url: str) -> Provider:
    return Provider(base_url=url, usage_path="/v1/usage", usage_field="n")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_g1_the_key_goes_into_a_header_and_the_number_comes_back() -> None:
    with server(send(HEAD % 7 + b'{"n":3}')) as (url, seen):
        assert fetch(provider(url), KEY) == 3
    assert seen[0].startswith(b"GET /v1/usage HTTP/1.1\r\n")
    assert f"Authorization: Bearer {KEY}\r\n".encode() in seen[0]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "status 302"),
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", "status 401"),
        (HEAD % 300_000 + b" " * 300_000, "the answer is too long"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 300_000, "the answer is too long"),
        (HEAD % 9 + b'{"n":3}', "the question failed: ConnectionError"),
        (b"", "the question failed: RemoteDisconnected"),
        (b"SSH-2.0-OpenSSH\r\n", "the question failed: BadStatusLine"),
        (HEAD % 3 + b"yes", "the answer is not JSON"),
    ],
)
def test_g4_what_is_not_an_answer_is_unknown(data: bytes, why: str) -> None:
    with server(send(data)) as (url, _), pytest.raises(Unknown) as unknown:
        fetch(provider(url), KEY)
    assert str(unknown.value) == why


@pytest.mark.parametrize("head", [b"", HEAD % 1000, b"HTTP/1.1 200 OK\r\n\r\n"])
def test_g4_a_server_that_sends_byte_by_byte_is_cut_off_in_time(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_request, "TIMEOUT_S", 0.4)

    def drip(client: socket.socket) -> None:
        client.sendall(head)
        while True:
            client.sendall(b"H")
            sleep(0.05)

    with server(drip) as (url, _):
        began = monotonic()
        with pytest.raises(Unknown, match=r"no answer within 0\.4 s"):
            fetch(provider(url), KEY)
        assert monotonic() - began < 3


def test_g4_a_server_that_is_not_there_is_named_without_the_key() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unknown, match=rf"^cannot connect to 127\.0\.0\.1:{port}: Connection refused$"):
        fetch(provider(f"http://127.0.0.1:{port}"), KEY)


def test_g4_a_key_that_no_header_can_hold_is_not_repeated() -> None:
    with pytest.raises(Unknown, match=r"^the question failed: ValueError$"):
        fetch(provider("http://127.0.0.1:9"), "sk-secret\r\nx")


def test_g1_a_certificate_must_be_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    answer = send(HEAD % 7 + b'{"n":6}')
    with server(answer, authority.context) as (url, seen), pytest.raises(Unknown, match="cannot connect to 127"):
        fetch(provider(url), KEY)
    assert not seen
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    with server(answer, authority.context) as (url, _):
        assert fetch(provider(url), KEY) == 6


def test_g1_the_proxy_of_the_environment_is_used_and_its_exceptions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(send(HEAD % 7 + b'{"n":4}')) as (url, seen):
        monkeypatch.setenv("http_proxy", url.replace("//", "//me:word@"))
        assert fetch(provider("http://usage.test"), KEY) == 4
    assert seen[0].startswith(b"GET http://usage.test/v1/usage HTTP/1.1\r\n")
    assert b"proxy-authorization: basic " in seen[0].lower()
    with server(send(HEAD % 7 + b'{"n":5}')) as (url, seen):
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert fetch(provider(url), KEY) == 5
    assert seen[0].startswith(b"GET /v1/usage HTTP/1.1\r\n")
