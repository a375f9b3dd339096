"""An access key is in one answer, and then nowhere: no file, no log, no metric, no other answer, no error (rule E1)."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from fleetgate.testing.provider import FakeProvider
from tests.api.test_access_keys import create, routes
from tests.proxy.proxied import Proxied

NAMES = {"{ident}": "x", "{name}": "ci", "{path}": "x", "{ident:path}": "x"}


def use(gate: Proxied, key: str) -> list[bytes]:
    """Send a key in all the ways that clients have, and in some that they should not; what is answered."""
    answers = [
        gate.request("GET", "/v1/session", token=key),
        gate.request("POST", "/v1/leases", {"models": ["fake/m1"]}, token=key),
        gate.request("POST", "/v1/session", {"key": key}, token=""),
        gate.chat(x_api_key=key),
        gate.chat(Authorization=f"Bearer {key}", x_api_key=""),
        gate.chat(f"/fake/v1/chat/completions?key={key}", x_api_key=""),
        gate.chat(x_api_key=f"Bearer {key}"),
        gate.chat(Authorization=f"Basic {key}", x_api_key=""),
        gate.chat(Authorization=key, x_api_key=""),
        gate.chat(Authorization=f"Bearer {key}", x_api_key="a-key-of-the-providers"),
        gate.chat(f"/fake/v1/chat/completions?api_key={key}", x_api_key=key),
        gate.chat(f"/fake/v1/{key}/chat/completions", x_api_key=key),
        gate.chat(f"/{key}/v1/chat/completions", x_api_key=key),
        gate.chat(x_api_key=key + "x"),
        gate.request("POST", "/v1/session", {"key": key + "x"}, token=""),
        gate.request("GET", "/v1/session", token=key + "x"),
    ]
    return [answer.body + repr(answer.headers).encode() for answer in answers]


def run_with(gate: Proxied, key: str) -> None:
    """Show a key to commands whose words are stored and shown."""
    gate.cli("run", "-m", "fake/m1", "--", "true", "-H", f"x-api-key: {key}", key)
    gate.request("POST", "/v1/leases", {"models": ["fake/m1"], "command": f"call {key}", "name": key}, token=key)


def test_e1_no_key_is_written_logged_counted_or_answered_again(tmp_path: Path):
    with FakeProvider() as provider:
        gate = Proxied(tmp_path, provider, fake='key_env = "FAKE_KEY"', FAKE_KEY="sk-of-the-config").start()
        try:
            first = create(gate, "ci", "--project", "web")
            admin = create(gate, "root", "--role", "admin")
            rotated = gate.request("POST", "/v1/keys/ci/rotate", {}, token=admin).json["key"]
            other = gate.request("POST", "/v1/keys", {"name": "new", "project": "web"}, token=admin).json["key"]
            keys = [first, admin, rotated, other]
            answered = [body for key in keys for body in use(gate, key)]
            for key in keys:
                run_with(gate, key)
            for method, path in routes(gate):
                if method == "GET" and path != "/v1/events":  # a stream of what /v1/history has
                    for name, value in NAMES.items():
                        path = path.replace(name, value)
                    answered.append(gate.request("GET", path, token=admin).body)
            answered += [gate.get(path).body for path in ("/metrics", "/v1/history?limit=10000", "/")]
            shown = [gate.cli(*words).stdout for words in (("history", "--json"), ("key", "ls", "--json"), ("ps",))]
            assert gate.process is not None
            gate.process.send_signal(signal.SIGTERM)
            said = "".join(gate.process.communicate(timeout=60))
        finally:
            gate.kill()
        seen = repr(provider.seen)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(path.name == "access.log" for path in files)
    for key in keys:
        secret = key.removeprefix("fgk_")
        assert not [body for body in answered if secret.encode() in body]
        assert not [text for text in [*shown, said, seen] if secret in text]
        assert not [path for path, data in files.items() if secret.encode() in data or secret[:20].encode() in data]
        listed = json.dumps([list(map(str, files)), list(gate.environ.values())])
        assert secret not in listed
