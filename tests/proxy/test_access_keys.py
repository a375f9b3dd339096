"""Access keys as the API key of a call through the proxy (rules E1, E2)."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.proxy.proxied import Proxied


def create(gate: Proxied, name: str, *options: str) -> str:
    done = gate.cli("key", "create", name, *options, "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["key"])


def test_e1_a_call_with_an_access_key_goes_upstream_with_the_configured_key_and_the_rights_of_the_access_key(
    proxied: Callable[..., Proxied],
) -> None:
    gate = proxied(fake='key_env = "FAKE_KEY"', FAKE_KEY="sk-of-the-config")
    key = create(gate, "ci", "--project", "web", "--class", "batch", "--max-priority", "0")
    mine = {"x_api_key": key, "x-fleetgate-priority": "90", "x-fleetgate-class": "interactive"}
    assert gate.chat(**mine).status == 200
    (seen,) = gate.provider.seen
    assert seen.headers["authorization"] == "Bearer sk-of-the-config"
    assert key not in repr(seen)
    assert gate.line()["project"] == "web"
    granted = [event for event in gate.ok("GET", "/v1/history")["events"] if event["type"] == "granted"]
    assert (granted[-1]["ticket"]["spec"]["work_class"], granted[-1]["ticket"]["priority"]) == ("batch", 0)

    other = gate.chat(**mine, x_fleetgate_project="docs")
    assert (other.status, "works for the project web" in other.body.decode()) == (403, True)
    viewer = create(gate, "wall", "--role", "viewer")
    assert gate.chat(x_api_key=viewer).status == 403
    assert gate.cli("key", "rm", "ci").returncode == 0
    assert gate.chat(**mine).status == 401
    assert gate.chat(Authorization=f"Bearer {key}").status == 401
    assert len(gate.provider.seen) == 1, "none of our keys goes to a provider"
