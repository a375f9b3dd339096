"""Ways to a provider: TLS, and the proxies that the environment names. With the real service."""

from __future__ import annotations

import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.proxy.proxied import Proxied
from tests.proxy.tls import Authority
from tests.proxy.upstream import RawUpstream, read_request

JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
SAID = JSON + b'Content-Length: 8\r\n\r\n{"a": 1}'
AZURE = "name.openai.azure.com"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, AZURE)


class Provider(RawUpstream):
    """Answers each request with the same, many times on a connection; keeps what it got."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(lambda connection: None)
        self.context = context
        self.got: list[bytes] = []
        self.connections = 0

    def serve(self, connection: socket.socket) -> None:
        self.connections += 1
        if self.context is not None:
            connection = self.context.wrap_socket(connection, server_side=True)
        with connection:
            while True:
                self.got.append(read_request(connection))
                connection.sendall(SAID)


class Tunnels(RawUpstream):
    """A proxy: takes every CONNECT to one place; `refuses` with something else."""

    def __init__(self, to: str, refuses: bytes = b"") -> None:
        super().__init__(lambda connection: None)
        self._to = ("127.0.0.1", int(to.rpartition(":")[2]))
        self._refuses = refuses
        self.got: list[bytes] = []

    def serve(self, connection: socket.socket) -> None:
        self.got.append(read_request(connection))
        if self._refuses:
            connection.sendall(self._refuses)
            return
        with socket.create_connection(self._to) as other:
            connection.sendall(b"HTTP/1.1 200 Connection established\r\nVia: a test\r\n\r\n")
            threading.Thread(target=_pass_on, args=(other, connection), daemon=True).start()
            _pass_on(connection, other)


def _pass_on(source: socket.socket, to: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.fixture
def provider(authority: Authority) -> Iterator[Provider]:
    with Provider(authority.context) as provider:
        yield provider


def _https(url: str, host: str = "127.0.0.1") -> str:
    return f"https://{host}:{url.rpartition(':')[2]}"


def test_tls_to_a_provider_whose_authority_is_trusted(
    proxied: Callable[..., Proxied], provider: Provider, authority: Authority
) -> None:
    gate = proxied(_https(provider.url), SSL_CERT_FILE=str(authority.file))
    for _ in range(3):
        answer = gate.chat()
        assert (answer.status, answer.json) == (200, {"a": 1})
    assert provider.connections == 1, "one handshake for all"
    large = {"model": "m1", "messages": ["x" * (3 << 20)]}
    assert gate.chat(body=large).status == 200
    assert len(provider.got[-1]) > 3 << 20


def test_a_certificate_that_is_not_trusted_is_a_502_that_says_so(
    proxied: Callable[..., Proxied], provider: Provider
) -> None:
    answer = proxied(_https(provider.url)).chat()
    assert answer.status == 502
    assert "its certificate is not trusted" in answer.json["error"]["message"]
    assert not provider.got


def test_a_certificate_of_another_host_is_not_trusted(
    proxied: Callable[..., Proxied], provider: Provider, authority: Authority
) -> None:
    answer = proxied(_https(provider.url, "localhost"), SSL_CERT_FILE=str(authority.file)).chat()
    assert answer.status == 502
    assert "not valid for 'localhost'" in answer.json["error"]["message"]


def test_https_proxy_is_a_tunnel_with_tls_to_the_provider_inside(
    proxied: Callable[..., Proxied], provider: Provider, authority: Authority
) -> None:
    with Tunnels(provider.url) as tunnels:
        proxy = tunnels.url.replace("//", "//user:p%40ss@")
        gate = proxied(_https(provider.url, AZURE), SSL_CERT_FILE=str(authority.file), HTTPS_PROXY=proxy)
        assert gate.chat().json == {"a": 1}
        assert gate.chat().status == 200
    [asked] = tunnels.got
    assert asked.startswith(f"CONNECT {AZURE}:{provider.url.rpartition(':')[2]} HTTP/1.1\r\n".encode())
    assert b"proxy-authorization: Basic " + b64encode(b"user:p@ss") in asked
    assert len(provider.got) == 2
    assert b"proxy-authorization" not in provider.got[0], "that is the proxy's business"


@pytest.mark.parametrize(
    ("refuses", "says"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "said 407 Proxy Authentication"),
        (b"no\r\n\r\n", "nothing sensible"),
        (b"HTTP/1.1 200", "did not answer"),
    ],
)
def test_a_proxy_that_refuses_is_a_502_that_says_so(proxied: Callable[..., Proxied], refuses: bytes, says: str) -> None:
    with Tunnels("http://127.0.0.1:9", refuses) as tunnels:
        answer = proxied(f"https://{AZURE}", HTTPS_PROXY=tunnels.url).chat()
    assert answer.status == 502
    assert says in answer.json["error"]["message"]
    assert "the proxy 127.0.0.1" in answer.json["error"]["message"]


def test_http_proxy_gets_the_whole_address_and_no_proxy_is_heeded(proxied: Callable[..., Proxied]) -> None:
    with Provider() as proxy, Provider() as direct:
        more = f'[providers.near]\nbase_url = "{direct.url}/v1"\n[providers.tls]\nbase_url = "https://nobody.invalid"'
        no_proxy = f"other.example,{direct.url.removeprefix('http://')}"
        address = proxy.url.replace("//", "//user:pass@")
        gate = proxied("http://far.example", more=more, HTTP_PROXY=address, NO_PROXY=no_proxy)
        assert gate.chat().status == 200
        assert proxy.got[0].startswith(b"POST http://far.example/v1/chat/completions HTTP/1.1\r\nhost: far.example\r\n")
        assert b"proxy-authorization: Basic " in proxy.got[0]
        assert gate.chat("/near/chat/completions").status == 200
        assert direct.got[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
        assert b"proxy-authorization" not in direct.got[0]
        assert gate.chat("/tls/chat/completions").status == 502, "it is for http alone"
        assert len(proxy.got) == 1


def test_a_proxy_that_cannot_be_used_is_named(proxied: Callable[..., Proxied]) -> None:
    answer = proxied(f"https://{AZURE}", HTTPS_PROXY="socks5://127.0.0.1:9").chat()
    assert answer.status == 502
    assert "HTTPS_PROXY: only http:// proxies can be used, not socks5://" in answer.json["error"]["message"]


# Azure: a deployment in the path stands for the model, and its key has a header of its own.


def test_x1_azures_paths_and_its_key(proxied: Callable[..., Proxied]) -> None:
    with Provider() as azure:
        more = f'[providers.azure]\nbase_url = "http://{AZURE}"\nkey_env = "AZURE_KEY"'
        gate = proxied("http://nobody.invalid", more=more, AZURE_KEY="key-of-azure", HTTP_PROXY=azure.url)
        path = "/azure/openai/deployments/gpt-5/chat/completions?api-version=2025-01-01"
        answer = gate.request("POST", path, {"messages": []}, token="")
        assert answer.headers["x-fleetgate-model"] == "azure/gpt-5"
        first = azure.got[0]
        target = b"/openai/deployments/gpt-5/chat/completions?api-version=2025-01-01"
        assert first.startswith(b"POST http://" + AZURE.encode() + target + b" HTTP/1.1\r\n")
        assert b"\r\napi-key: key-of-azure\r\n" in first
        assert b"authorization: Bearer" not in first
        answer = gate.request("POST", path, {"messages": []}, token="", api_key="key-of-a-client")
        assert answer.headers["x-fleetgate-model"].startswith("azure@key-"), "a key of one's own is an account"
        assert b"\r\napi-key: key-of-a-client\r\n" in azure.got[1]
