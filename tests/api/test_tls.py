"""`[serve] tls_cert` and `tls_key`: the service speaks HTTPS, and `fleetgate open` finds it."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from pathlib import Path

from tests.api.served import PATIENCE_S, Served
from tests.proxy.tls import Authority


class Encrypted(Served):
    """A service behind TLS."""

    def __init__(self, home: Path) -> None:
        self.authority = Authority(home)
        both = home / "server.pem"  # the key and the certificate
        super().__init__(home, f'[serve]\ntls_cert = "{both}"\ntls_key = "{both}"\n')

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"it ended: {self.process.communicate()[1]}"
        try:
            self.port = json.loads((self.home / "serve.json").read_bytes())["port"]
        except (OSError, ValueError):
            return False
        return True


def test_the_service_speaks_https_and_nothing_else(tmp_path: Path) -> None:
    with Encrypted(tmp_path) as served:
        context = ssl.create_default_context(cafile=str(served.authority.file))
        connection = http.client.HTTPSConnection("127.0.0.1", served.port, timeout=PATIENCE_S, context=context)
        for _ in range(2):
            connection.request("GET", "/v1/status")
            response = connection.getresponse()
            assert response.status == 200
            response.read()
        connection.close()
        link = served.cli("open", "--print")
        assert link.stdout.startswith(f"https://127.0.0.1:{served.port}/#code="), link
        with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP/1.1" not in plain.recv(100)
        assert served.stop() == 0


def test_a_certificate_without_its_key_is_an_error_of_the_config(tmp_path: Path) -> None:
    served = Served(tmp_path, '[serve]\ntls_cert = "/nowhere/tls.pem"\n')
    ended = served.cli("serve", "--port", "0")
    assert ended.returncode == 78
    assert "it needs both `tls_cert` and `tls_key`" in ended.stderr
    served.config.write_text('[serve]\ntls_cert = "/nowhere/tls.pem"\ntls_key = "/nowhere/tls.key"\n')
    ended = served.cli("serve", "--port", "0")
    assert ended.returncode == 78
    assert "No such file" in ended.stderr
